/* test_oracle.c - owns the comparison of the f64 oracle with arithmetic done by hand.  It must never run the library:
 * the oracle is what the other tests hold it to. */
#include "../support/layer_case.h"

#include <math.h>

static void oracle_knows_its_formulas(void **state)
{
    moewe_config cfg = small_config();
    ref_value logits[4] = {{log(1.0), 0}, {log(2.0), 0}, {log(3.0), 0}, {log(4.0), 0}}, scores[4], weights[2], margin;
    const ref_value two = {2.0, 0.0}, three = {3.0, 0.0};
    const float bias[4] = {0.9f, 0.0f, 0.0f, 0.0f};
    uint16_t half;
    int32_t ids[2];

    (void)state;
    cfg.n_experts = 4;
    cfg.top_k = 2;
    cfg = ref_defaults(&cfg);
    ref_scores(&cfg, logits, scores); /* 0.1 0.2 0.3 0.4 */
    for (int i = 0; i < 4; i++) assert_true(fabs(scores[i].v - 0.1 * (i + 1)) < 1e-15);
    ref_choose(&cfg, scores, bias, ids, &margin); /* 1.0 0.2 0.3 0.4 */
    assert_int_equal(ids[0], 0);
    assert_int_equal(ids[1], 3);
    assert_true(fabs(margin.v - 0.1) < 1e-7);
    cfg.routed_scale = 2.5f;
    ref_weigh(&cfg, scores, ids, weights);
    ref_finish(&cfg, NULL, ids, weights); /* 0.1 and 0.4 of 0.5, times 2.5 */
    assert_true(fabs(weights[0].v - 0.5) < 1e-15 && fabs(weights[1].v - 2.0) < 1e-15);

    cfg.score = MOEWE_SCORE_SOFTMAX_TOPK;
    cfg.flags = 0;
    ref_scores(&cfg, logits, scores);
    ref_choose(&cfg, scores, NULL, ids, &margin);
    ref_weigh(&cfg, scores, ids, weights);
    ref_finish(&cfg, NULL, ids, weights); /* 4/7 and 3/7, times 2.5 */
    assert_true(fabs(weights[0].v - 10.0 / 7.0) < 1e-14 && fabs(weights[1].v - 7.5 / 7.0) < 1e-14);
    cfg.score = MOEWE_SCORE_SIGMOID;
    ref_scores(&cfg, logits, scores); /* e^z / (1 + e^z) */
    assert_true(fabs(scores[2].v - 0.75) < 1e-15);
    cfg.score = MOEWE_SCORE_SQRTSOFTPLUS;
    ref_scores(&cfg, logits, scores); /* sqrt(log(1 + e^z)) */
    assert_true(fabs(scores[2].v - sqrt(log(4.0))) < 1e-15);

    cfg.act = MOEWE_ACT_REGLU;
    assert_true(ref_act(&cfg, cfg.act_limit, two, three).v == 6.0);
    cfg.act = MOEWE_ACT_RELU2;
    assert_true(ref_act(&cfg, cfg.act_limit, two, three).v == 9.0);
    cfg.act_limit = 1.5f;
    assert_true(ref_act(&cfg, cfg.act_limit, two, three).v == 2.25);
    cfg.act = MOEWE_ACT_REGLU;
    assert_true(ref_act(&cfg, cfg.act_limit, two, three).v == 2.25);
    cfg.act_limit = 0.0f;
    cfg.act = MOEWE_ACT_SILU; /* z * sigmoid(z) */
    assert_true(fabs(ref_act(&cfg, cfg.act_limit, two, two).v - 1.7615941559557649) < 1e-14);
    cfg.act = MOEWE_ACT_GELU; /* z * Phi(z), Phi(2) = 0.97724986805182079 */
    assert_true(fabs(ref_act(&cfg, cfg.act_limit, two, two).v - 1.9544997361036416) < 1e-14);
    cfg.act = MOEWE_ACT_GEGLU_TANH; /* differs from erf in the fourth digit: 1.9545976940877752 at 2 */
    assert_true(fabs(ref_act(&cfg, cfg.act_limit, two, three).v - 3.0 * 1.9545976940877752) < 1e-12);
    cfg.act = MOEWE_ACT_SWIGLU_OAI; /* g sigmoid(1.702 g) (u + 1) */
    assert_true(fabs(ref_act(&cfg, cfg.act_limit, two, three).v - 8.0 / (1.0 + exp(-2.0 * (double)1.702f))) < 1e-14);

    store(&half, MOEWE_DTYPE_F16, 1.0 + ldexp(1.0, -10));
    assert_int_equal(half, 0x3c01);
    assert_true(ref_load(&half, MOEWE_DTYPE_F16) == 1.0 + ldexp(1.0, -10));
    store(&half, MOEWE_DTYPE_F16, -ldexp(1.0, -24));
    assert_int_equal(half, 0x8001);
    store(&half, MOEWE_DTYPE_BF16, 1.0 + ldexp(1.0, -8)); /* a tie goes to even */
    assert_int_equal(half, 0x3f80);
}

static void oracle_knows_the_rarer_formulas(void **state)
{
    moewe_config cfg = small_config();
    ref_value logits[4] = {{log(1.0), 0}, {log(2.0), 0}, {log(3.0), 0}, {log(4.0), 0}}, scores[4], weights[3], margin;
    const ref_value two = {2.0, 0.0}, nine = {9.0, 0.0};
    const float scale[4] = {1.0f, 10.0f, 100.0f, 1000.0f};
    int32_t ids[3] = {3, -7, 1};

    (void)state;
    cfg.n_experts = 4;
    cfg.act_limit = 1.5f;
    cfg.act = MOEWE_ACT_SWIGLU_STEP; /* silu(2) = 1.76 becomes 1.5, 9 becomes 1.5; silu(1.5) is 1.226 */
    assert_true(ref_act(&cfg, 1.5, two, nine).v == 2.25);
    cfg.act = MOEWE_ACT_SWIGLU;
    assert_true(fabs(ref_act(&cfg, 1.5, two, nine).v - 1.5 * 1.5 / (1.0 + exp(-1.5))) < 1e-14);
    cfg.act = MOEWE_ACT_RELU;
    assert_true(ref_act(&cfg, 0.0, two, nine).v == 9.0 && ref_act(&cfg, 1.5, two, nine).v == 1.5);
    cfg.act = MOEWE_ACT_GELU_TANH;
    assert_true(fabs(ref_act(&cfg, 0.0, nine, two).v - 1.9545976940877752) < 1e-12);

    cfg = ref_defaults(&cfg);
    assert_true(cfg.shared_scale == 1.0f);
    cfg.renorm_eps = 0.125f;
    ref_scores(&cfg, logits, scores); /* 0.1 0.2 0.3 0.4: 0.4 and 0.2 of 0.725, the slot between is nobody's */
    ref_weigh(&cfg, scores, ids, weights);
    ref_finish(&cfg, scale, ids, weights);
    assert_true(fabs(weights[0].v - 400.0 / 0.725) < 1e-9 && weights[1].v == 0.0);
    assert_true(fabs(weights[2].v - 2.0 / 0.725) < 1e-9);
    cfg.renorm_floor = 2.0f; /* the sum is 0.725: less */
    ref_weigh(&cfg, scores, ids, weights);
    ref_finish(&cfg, NULL, ids, weights);
    assert_true(fabs(weights[0].v - 0.2) < 1e-14 && fabs(weights[2].v - 0.1) < 1e-14);
    cfg.flags = 0;
    cfg.score = MOEWE_SCORE_SOFTMAX_TOPK; /* 4 and 2 of 6 */
    ref_weigh(&cfg, logits, ids, weights);
    assert_true(fabs(weights[0].v - 2.0 / 3.0) < 1e-14 && weights[1].v == 0.0);
    cfg.logit_softcap = 3.0f;
    logits[0].v = 1e9;
    logits[1].v = -3.0;
    ref_softcap(&cfg, logits);
    assert_true(logits[0].v == 3.0 && fabs(logits[1].v + 3.0 * 0.76159415595576489) < 1e-14);

    /* 10 9 8 1, eps 0.06: of 10, those within 1.2 (size 10), which is 9; of 9, those within 1.08, which is 8; of 8,
     * 10 is no longer in play and 1 is too far */
    cfg.score = MOEWE_SCORE_SPARSEMIXER;
    cfg.sparsemixer_eps = 0.06f;
    cfg.top_k = 3;
    logits[0].v = 9.0, logits[1].v = 1.0, logits[2].v = 10.0, logits[3].v = 8.0;
    ref_sparsemixer(&cfg, logits, ids, weights, &margin);
    assert_true(ids[0] == 2 && ids[1] == 0 && ids[2] == 3);
    assert_true(fabs(weights[0].v - 1.0 / (1.0 + exp(-1.0))) < 1e-14);
    assert_true(fabs(weights[1].v - 1.0 / (1.0 + exp(-1.0))) < 1e-14 && weights[2].v == 1.0);
    assert_true(fabs(margin.v - (0.12 - 1.0 / 9.0)) < 1e-8); /* 8 of 9 is the nearest to leaving */
    logits[0].v = logits[3].v = -INFINITY;                   /* one masked, then two: 10 alone, 1 alone, nobody */
    ref_sparsemixer(&cfg, logits, ids, weights, &margin);
    assert_true(ids[0] == 2 && ids[1] == 1 && weights[0].v == 1.0 && weights[1].v == 1.0 && weights[2].v == 0.0);
}

static void oracle_groups(void **state)
{
    moewe_config cfg = small_config();
    /* groups {0 1} {2 3} {4 5} {6 7}: best 9 8 7 6, best two 9 16 13 12 */
    const ref_value scores[8] = {{9, 0}, {0, 0}, {8, 0}, {8, 0}, {7, 0}, {6, 0}, {6, 0}, {6, 0}};
    ref_value margin;
    int32_t ids[3];

    (void)state;
    cfg.n_group = 4;
    cfg.top_group = 2;
    cfg = ref_defaults(&cfg);
    ref_choose(&cfg, scores, NULL, ids, &margin);
    assert_true(ids[0] == 0 && ids[1] == 2 && ids[2] == 3);
    cfg.group_best = 2;
    ref_choose(&cfg, scores, NULL, ids, &margin);
    assert_true(ids[0] == 2 && ids[1] == 3 && ids[2] == 4);
    assert_true(margin.v == 1.0); /* 13 against 12, and 7 against 6 */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(oracle_knows_its_formulas),
        cmocka_unit_test(oracle_knows_the_rarer_formulas),
        cmocka_unit_test(oracle_groups),
    };

    return cmocka_run_group_tests_name("oracle", tests, NULL, NULL);
}
