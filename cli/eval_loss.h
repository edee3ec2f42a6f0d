/* eval_loss.h - the mean loss of a model on token ids that are given. */
#ifndef MOEWE_CLI_EVAL_LOSS_H
#define MOEWE_CLI_EVAL_LOSS_H

#include "cli.h"

/* where: FILE:TENSOR, integers; prints the mean over all tokens but the first of -log(probability of the token given
 * those before it), and with stats where the engine's bytes are.  An exit status. */
int eval_loss(const char *dir, const cli_common *common, const char *where, int stats);

#endif
