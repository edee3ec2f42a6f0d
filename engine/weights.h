/* weights.h - the walk over a decoder's weights; see weights.c.  Needs the layers' plans and blocks. */
#ifndef MOEWE_ENGINE_WEIGHTS_H
#define MOEWE_ENGINE_WEIGHTS_H

#include "internal.h"

/* With a null base it counts; the second walk, with memory of that size, packs and points the engine at it. */
int engine_take_weights(engine *g, engine_arena *a, fmt_error *e);

#endif
