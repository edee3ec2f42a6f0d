/* csv.h - results as one row a point, with the machine they are of. */
#ifndef MOEWE_BENCH_CSV_H
#define MOEWE_BENCH_CSV_H

#include "layer.h"
#include "machine.h"

/* Appends one row to path, the line of names first when there is no such file or it is empty. */
int bench_csv_append(const char *path, const bench_layer_ask *ask, const bench_machine *m, const bench_point *p,
                     fmt_error *e);

#endif
