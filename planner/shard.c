/* shard.c - owns how a model is cut over ranks.
 *
 *   ranks      tp x dp of them.  Attention, dense MLPs, shared experts and embeddings are cut over tp and repeated on
 *              each of dp ranks, which work on tokens of their own.
 *   experts    are spread over ep ranks, whole: the first n % ep ranks have one more than the others (30 over 8 are
 *              4,4,4,4,4,4,3,3).  ep groups take tp ranks first: an expert is cut over tp / gcd(tp, ep) ranks.
 *              An MoE call then sees the tokens of ep / gcd(tp, ep) data-parallel ranks.
 *   heads      are cut over tp, as are the inner columns of MLPs and the rows of embeddings (the last rank's may be
 *              fewer).  Where there are fewer KV heads than tp ranks, several ranks hold the same one.
 *   repeated   on every rank: norms, routers and their biases, latent projections, the low-rank halves of MLA and so
 *              its cache, indexers, short convolutions, and all that is shorter than a head.
 *
 * A cut may not go through a quantisation group or block: each part is a multiple of it.  What is not cut may end in
 * a part of a group.  Never knows a family: the cut is a substitution of the variables that count heads and columns. */
#include "internal.h"

#include <stdio.h>

void planner_experts_of(int32_t n_experts, int32_t ep, int32_t rank, int32_t *first, int32_t *count)
{
    int32_t each = n_experts / ep, more = n_experts % ep;
    *count = each + (rank < more);
    *first = rank * each + (rank < more ? rank : more);
}

static int splits(int64_t size, int32_t parts, uint32_t tile)
{
    return size % parts == 0 && (parts == 1 || size / parts % (tile ? tile : 1) == 0);
}

int planner_split(const char *what, int64_t size, int32_t parts, uint32_t tile, int64_t *each, fmt_error *e)
{
    char works[128] = "";
    size_t at = 0;
    int shown = 0;
    if (parts >= 1 && splits(size, parts, tile)) {
        *each = size / parts;
        return 0;
    }
    for (int32_t n = 1; n <= 1024 && n <= size && shown < 12; n++)
        if (splits(size, n, tile)) {
            at += (size_t)snprintf(works + at, sizeof works - at, "%s%d", shown++ ? ", " : "", (int)n);
            if (at >= sizeof works) break;
        }
    if (parts >= 1 && size % parts == 0)
        return fmt_fail(
            e,
            "%s %lld over tp %d is %lld, which is no multiple of the %u values that share a scale; tp sizes "
            "that work: %s",
            what, (long long)size, (int)parts, (long long)(size / parts), (unsigned)tile, works);
    return fmt_fail(e, "%s %lld does not divide over tp %d; tp sizes that work (with whole groups of %u): %s", what,
                    (long long)size, (int)parts, (unsigned)(tile ? tile : 1), works);
}

static int32_t gcd(int32_t a, int32_t b)
{
    while (b) {
        int32_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

int planner_shard_of(const planner_facts *f, const planner_ask *ask, planner_shard *out, fmt_error *e)
{
    enum { MOST = 4096 };
    planner_shard s = {.tp = ask->tp ? ask->tp : 1, .ep = ask->ep ? ask->ep : 1};
    if (ask->tp < 0 || ask->ep < 0 || ask->dp < 0 || ask->tp > MOST || ask->ep > MOST || ask->dp > MOST)
        return fmt_fail(e, "tp %d, ep %d, dp %d: each must be 1 to %d", (int)ask->tp, (int)ask->ep, (int)ask->dp, MOST);
    int32_t common = gcd(s.tp, s.ep);
    s.dp = ask->dp ? ask->dp : s.ep / common;
    int32_t ranks = s.tp * s.dp;
    if (ranks % s.ep || s.dp % (s.ep / common))
        return fmt_fail(
            e,
            "experts over %d ranks (ep) do not fit %d ranks (tp %d x dp %d): ep must divide them; with tp %d, "
            "dp must be a multiple of %d",
            (int)s.ep, (int)ranks, (int)s.tp, (int)s.dp, (int)s.tp, (int)(s.ep / common));
    if (f->n_experts && s.ep > f->n_experts)
        return fmt_fail(e, "%s: ep is %d, the model has %lld experts: ranks would be left without one", f->file,
                        (int)s.ep, (long long)f->n_experts);
    s.expert_tp = s.tp / common;
    s.gathered = s.ep / common;
    int32_t first;
    planner_experts_of((int32_t)f->n_experts, s.ep, 0, &first, &s.n_local);
    s.kv_copies = 1;
    *out = s;
    return 0;
}
