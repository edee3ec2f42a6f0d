/* fuzz_plan.c - bytes as the fields of a moewe_config: as they come, or brought into the range where configs are
 * valid.  The rules are those of check_plan.c. */
#include <stddef.h>
#include <string.h>

#include "fuzz.h"

/* Half of the values are small, a quarter are near a power of two. */
static int32_t width(fuzz_reader *r, int32_t low, int32_t high)
{
    int32_t kind = fuzz_range(r, 0, 3), at = fuzz_range(r, 0, 20);
    if (kind < 2) return fuzz_range(r, low, high < 64 ? high : 64);
    if (kind == 3) return fuzz_range(r, low, high);
    int64_t near = ((int64_t)1 << at) + fuzz_range(r, -2, 2);
    return (int32_t)(near < low ? low : near > high ? high : near);
}

static float small_float(fuzz_reader *r)
{
    static const float values[] = {0.0f, 0.5f, 1.0f, 1.702f, 7.0f, 1e-20f, -1.0f, 3e38f};
    return values[fuzz_range(r, 0, 7)];
}

static moewe_config shaped(fuzz_reader *r)
{
    moewe_config c;
    MOEWE_INIT(c);
    c.score = fuzz_range(r, MOEWE_SCORE_SOFTMAX, MOEWE_SCORE_GIVEN);
    c.act = fuzz_range(r, MOEWE_ACT_SWIGLU, MOEWE_ACT_GELU_TANH);
    c.hidden = width(r, 1, 1 << 20);
    c.inter = width(r, 1, 1 << 20);
    c.n_experts = width(r, 1, 1 << 16);
    c.n_null = fuzz_range(r, 0, 3) ? 0 : width(r, 0, 1 << 16);
    c.top_k = width(r, 1, c.n_experts < 1024 ? c.n_experts : 1024);
    c.max_tokens = fuzz_range(r, 0, 2) ? width(r, 1, 1 << 20) : fuzz_range(r, 1, INT32_MAX);
    if (!fuzz_range(r, 0, 2)) {
        c.first_expert = fuzz_range(r, 0, c.n_experts - 1);
        c.n_local = fuzz_range(r, 0, c.n_experts - c.first_expert);
    }
    if (!fuzz_range(r, 0, 2) && !c.n_null && c.score < MOEWE_SCORE_SPARSEMIXER) {
        int32_t size = 1 + c.n_experts / 64;
        while (c.n_experts % size) size++;
        c.n_group = c.n_experts / size;
        c.top_group = fuzz_range(r, 1, c.n_group);
        c.group_best = fuzz_range(r, 0, size);
        if ((int64_t)c.top_k > (int64_t)c.top_group * size) c.top_k = c.top_group * size;
    }
    c.x_dtype = fuzz_range(r, 0, 1) * MOEWE_DTYPE_BF16;
    c.w_dtype = fuzz_range(r, 0, MOEWE_DTYPE_Q6_K);
    c.down_dtype = c.n_experts % 3 ? 0 : c.n_experts % (MOEWE_DTYPE_Q6_K + 1);
    c.y_dtype = fuzz_range(r, 0, 1) * MOEWE_DTYPE_BF16;
    c.shared_inter = fuzz_range(r, 0, 1) ? 0 : width(r, 0, 1 << 20);
    c.latent = fuzz_range(r, 0, 1) ? 0 : width(r, 0, 1 << 20);
    if (c.w_dtype >= MOEWE_DTYPE_E4M3 || c.down_dtype >= MOEWE_DTYPE_E4M3) { /* whole blocks of any */
        c.hidden = (c.hidden + 255) / 256 * 256;
        c.inter = (c.inter + 255) / 256 * 256;
        c.latent = (c.latent + 255) / 256 * 256;
    }
    c.flags = (uint32_t)fuzz_range(r, 0, 3) & (c.score == MOEWE_SCORE_GIVEN ? ~(uint32_t)MOEWE_FLAG_RENORMALIZE : ~0u);
    c.act_limit = small_float(r);
    c.shared_limit = small_float(r);
    c.act_alpha = c.act_beta = 1.0f;
    c.routed_scale = small_float(r);
    c.shared_scale = small_float(r);
    return c;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char name[128];
    fuzz_reader r = {data, size};
    moewe_config c;
    int32_t kind = fuzz_range(&r, 0, 255), threads = kind & 2 ? 3 : kind & 4 ? 2 : 1;
    uint64_t extra_limit = fuzz_take(&r, 8) >> (kind >> 3) % 32;
    if (kind & 1) {
        MOEWE_INIT(c);
        size_t n = r.size < sizeof c - sizeof c.struct_size ? r.size : sizeof c - sizeof c.struct_size;
        if (n) memcpy((char *)&c + sizeof c.struct_size, r.data, n);
    } else {
        c = shaped(&r);
    }
    c.name = NULL;
    if (size > 16) { /* longer than what is kept, with no control characters: names come from the caller */
        for (size_t i = 0; i + 1 < sizeof name; i++) name[i] = (char)(' ' + data[i % size] % 95);
        c.name = name;
    }
    fuzz_check_plan(fuzz_device(threads), &c, extra_limit);
    return 0;
}
