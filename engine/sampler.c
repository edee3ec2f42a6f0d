/* sampler.c - from logits to a token: greedy, temperature, top-k, top-p, in that order.  Owns the random numbers.
 * Never allocates: candidates stand in the caller's scratch, as a heap from which only those looked at are taken. */
#include <math.h>

#include "generate.h"

/* splitmix64 (Steele, Lea, Flood 2014): every state is good and a step is three multiplications. */
static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

uint64_t gen_seed(uint64_t seed, uint64_t sequence_index)
{
    return mix(mix(seed + 0x9E3779B97F4A7C15u) ^ mix(sequence_index * 0xD1B54A32D192ED03u + 1));
}

/* Uniform in [0, 1), 53 bits. */
static double uniform(uint64_t *rng)
{
    *rng += 0x9E3779B97F4A7C15u;
    return (double)(mix(*rng) >> 11) * 0x1p-53;
}

/* The largest logit, the lowest id among equals; a NaN is never chosen before a number. */
static int32_t largest(const float *logits, int32_t vocab)
{
    int32_t best = -1;
    for (int32_t i = 0; i < vocab; i++)
        if (!isnan(logits[i]) && (best < 0 || logits[i] > logits[best])) best = i;
    return best < 0 ? 0 : best;
}

/* ---- a max-heap; pop moves the largest behind the heap's end -------------------- */

static int before(const gen_candidate *a, const gen_candidate *b)
{
    return a->logit > b->logit || (a->logit >= b->logit && a->id < b->id);
}

static void sift(gen_candidate *heap, int32_t n, int32_t at)
{
    gen_candidate moved = heap[at];
    for (;;) {
        int64_t child = 2 * (int64_t)at + 1;
        if (child >= n) break;
        if (child + 1 < n && before(&heap[child + 1], &heap[child])) child++;
        if (!before(&heap[child], &moved)) break;
        heap[at] = heap[child];
        at = (int32_t)child;
    }
    heap[at] = moved;
}

/* The largest of heap[0 .. n) goes to heap[n - 1]; what remains is a heap of n - 1. */
static const gen_candidate *pop(gen_candidate *heap, int32_t n)
{
    gen_candidate top = heap[0];
    heap[0] = heap[n - 1];
    heap[n - 1] = top;
    sift(heap, n - 1, 0);
    return &heap[n - 1];
}

/* ---- choice ------------------------------------------------------------------------ */

typedef struct weigher {
    double high, temperature;
} weigher;

static double weight(const weigher *w, float logit)
{
    return exp(((double)logit - w->high) / w->temperature);
}

/* All tokens count: ids in ascending order, no heap. */
static int32_t draw_all(const weigher *w, const float *logits, int32_t vocab, uint64_t *rng)
{
    double total = 0.0, mark, sum = 0.0;
    int32_t last = largest(logits, vocab);
    for (int32_t i = 0; i < vocab; i++)
        if (!isnan(logits[i])) total += weight(w, logits[i]);
    mark = uniform(rng) * total;
    for (int32_t i = 0; i < vocab; i++) {
        double one = isnan(logits[i]) ? 0.0 : weight(w, logits[i]);
        sum += one;
        if (sum > mark) return i;
        if (one > 0.0) last = i;
    }
    return last; /* rounding left the mark at the very end */
}

int32_t gen_sample(const gen_sampling *s, const float *logits, int32_t vocab, gen_candidate *scratch, uint64_t *rng)
{
    int32_t best = largest(logits, vocab), n = 0, kept, limit;
    int by_mass = s->top_p > 0.0f && s->top_p < 1.0f;
    weigher w = {logits[best], s->temperature};
    double total = 0.0, mass = 0.0, mark, sum = 0.0;

    if (!(s->temperature > 0.0f) || s->top_k == 1 || !isfinite(w.high)) return best;
    if (!by_mass && (s->top_k <= 0 || s->top_k >= vocab)) return draw_all(&w, logits, vocab, rng);

    for (int32_t i = 0; i < vocab; i++)
        if (!isnan(logits[i])) scratch[n++] = (gen_candidate){logits[i], i};
    for (int32_t i = n / 2; i-- > 0;) sift(scratch, n, i);
    limit = s->top_k > 0 && s->top_k < n ? s->top_k : n;

    /* The probabilities that top-p adds up are those among the top-k tokens. */
    if (limit == n)
        for (int32_t i = 0; i < n; i++) total += weight(&w, scratch[i].logit);
    else
        for (int32_t i = 0; i < limit; i++) total += weight(&w, pop(scratch, n - i)->logit);
    for (kept = 0; kept < limit && (kept == 0 || !by_mass || mass < (double)s->top_p * total); kept++)
        mass += weight(&w, (limit == n ? pop(scratch, n - kept) : &scratch[n - 1 - kept])->logit);

    mark = uniform(rng) * mass;
    for (int32_t i = 0; i < kept; i++) {
        sum += weight(&w, scratch[n - 1 - i].logit);
        if (sum > mark) return scratch[n - 1 - i].id;
    }
    return scratch[n - kept].id;
}
