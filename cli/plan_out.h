/* plan_out.h - the answer of moewe plan in words, as JSON and as a picture.  plan_*.c write it, cmd_plan.c makes it. */
#ifndef MOEWE_CLI_PLAN_OUT_H
#define MOEWE_CLI_PLAN_OUT_H

#include <stdio.h>

#include "../planner/planner.h"
#include "cli.h"

typedef struct plan_answer {
    const planner_facts *facts;
    planner_plan plan;
    const moewe_device *device;
    const moewe_plan *layer; /* of the MoE layers; NULL when there are none */
    moewe_need need;
    int32_t w_dtype;         /* that a CPU would hold the experts in */
    uint64_t one_pass, one_per_layer;
    int on_cpu;              /* cpu says something: nothing is sharded */
    planner_cpu cpu;
    int compare;
    uint64_t scratch[PLANNER_LAYOUT_COUNT];
    const char *scratch_type; /* of the values between the GEMMs in these */
} plan_answer;

int plan_print_words(const plan_answer *a);
int plan_print_json(const plan_answer *a);

/* A memory map of one rank, to scale.  The file is replaced. */
int plan_write_svg(const plan_answer *a, const char *path);

/* ---- the rows of the map, shared by words and picture ------------------------------------------------------- */

typedef struct plan_row {
    const char *name, *colour;
    uint64_t bytes;
} plan_row;

enum { PLAN_ROWS_MAX = PLANNER_PART_COUNT + 5 };

/* Weights part by part, then scales, KV cache, state and workspaces; rows of 0 bytes are left out. */
size_t plan_rows(const planner_plan *p, plan_row rows[PLAN_ROWS_MAX]);

#endif
