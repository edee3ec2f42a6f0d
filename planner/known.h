/* known.h - the table of built-in config.json files, which known.cmake makes.  Only open.c sees it. */
#ifndef MOEWE_PLANNER_KNOWN_H
#define MOEWE_PLANNER_KNOWN_H

#include <stddef.h>

typedef struct planner_known_model {
    const char *name;          /* "nemotron-3-super" */
    const unsigned char *json; /* the file: {"hf_id": ..., "config": {...}, ...} */
    size_t bytes;
} planner_known_model;

extern const planner_known_model planner_known_models[];
extern const size_t planner_known_count;

#endif
