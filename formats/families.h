/* families.h - the row type of the table of model families: everything that differs between families in
 * config.json and in tensor names, as data.  Only model.c, model_block.c and families.c see it. */
#ifndef MOEWE_FORMATS_FAMILIES_H
#define MOEWE_FORMATS_FAMILIES_H

#include "model.h"

enum { FAMILY_SPELLINGS = 3 };

/* Names of one config.json field in different releases of transformers, NULL after the last. */
typedef const char *family_field[FAMILY_SPELLINGS];

struct model_family {
    const char *model_type;

    /* config.json fields.  A NULL name: the family has no such field. */
    family_field n_experts, top_k, expert_inter;
    family_field dense_inter;    /* of layers without experts; no name: every layer has experts */
    const char  *dense_list;     /* array of layers that have no experts */
    const char  *moe_step;       /* of the others, layer i has experts when (i + 1) % step == 0 */
    const char  *renormalize;    /* boolean */
    const char  *attention_bias; /* boolean */
    const char  *window_switch;  /* boolean without which sliding_window does not count */

    /* What holds when config.json does not say, as in transformers' configuration class. */
    int32_t renormalize_default;
    double  rope_theta_default, rms_eps_default;

    /* Facts of the architecture. */
    int32_t score; /* moewe_score */
    int32_t qk_norm;

    /* Names.  {L} stands for the layer, {E} for the expert. */
    const char *module; /* the MoE block as transformers names its module */
    const char *prefix; /* of the block's tensors on disk; the names below follow it */
    const char *router;
    const char *expert_gate, *expert_up, *expert_down;
    const char *stacked_gate_up, *stacked_down; /* [E, 2I, H] gate rows first, [E, H, I]; NULL: no such form */
    const char *part[MODEL_PART_COUNT];
};

extern const model_family model_families[];
extern const size_t       model_family_count;

enum { MODEL_NAME_CAP = 192 };

/* Replaces {L} and {E}; the result always fits MODEL_NAME_CAP for the table's templates. */
void model_expand(const char *prefix, const char *name, int32_t layer, int32_t expert, char buf[MODEL_NAME_CAP]);

#endif
