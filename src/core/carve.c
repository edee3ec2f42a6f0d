/* carve.c - the one walk that counts and carves a workspace. */
#include "core.h"

void *carve_take(carve *c, const char *name, uint64_t count, uint64_t each, moewe_stage first, moewe_stage last)
{
    uint64_t bytes = moewe_align_up(moewe_mul(count, each), MOEWE_ALIGN), at = c->at;
    c->at = moewe_add(at, bytes);
    if (!bytes || c->at == UINT64_MAX) return NULL;
    if (c->regions && c->n_regions < MOEWE_MAX_REGIONS) {
        moewe_region *r = &c->regions[c->n_regions++];
        r->name = name;
        r->offset = at;
        r->bytes = bytes;
        r->first_stage = first;
        r->last_stage = last;
    }
    return c->base ? c->base + at : NULL;
}
