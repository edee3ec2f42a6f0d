/* case_planner.h - owns what the planner's table lends to the other tables. */
#ifndef MOEWE_TESTS_CASE_PLANNER_H
#define MOEWE_TESTS_CASE_PLANNER_H

#include "accident.h"

extern const entry planner_entries[];

/* C092: bytes of a table of experts in its 4-bit format. */
void packed_experts(accident *a);

#endif
