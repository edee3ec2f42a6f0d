/* topology.c - see topology.h.  Lists are read whole and believed only when every character is understood. */
#include "topology.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { LIST_BYTES = 16384, PATH_BYTES = 512 };

int32_t cpu_numbers_count(const cpu_numbers *s)
{
    int32_t n = 0;
    for (int i = 0; i < CPU_SET_WORDS; i++) n += __builtin_popcountl(s->words[i]);
    return n;
}

int cpu_allowed(cpu_numbers *out)
{
    memset(out, 0, sizeof *out);
    return sched_getaffinity(0, sizeof *out, (cpu_set_t *)(void *)out->words) ? errno : 0;
}

/* ---- lists: "0-3,8\n" ------------------------------------------------------------------ */

/* The digits at *at; -1 when there are none or the number is no CPU's. */
static int32_t read_number(const char **at)
{
    int32_t n = 0;
    const char *p = *at;
    if (*p < '0' || *p > '9') return -1;
    for (; *p >= '0' && *p <= '9'; p++) {
        n = n * 10 + (*p - '0');
        if (n >= CPU_SET_BITS) return -1;
    }
    *at = p;
    return n;
}

/* 0 when all of text was understood; an empty list is one. */
static int parse_list(const char *text, cpu_numbers *out)
{
    memset(out, 0, sizeof *out);
    for (int first = 1; *text && *text != '\n'; first = 0) {
        if (!first && *text++ != ',') return -1;
        int32_t low = read_number(&text), high = low;
        if (low >= 0 && *text == '-') {
            text++;
            high = read_number(&text);
        }
        if (low < 0 || high < low) return -1;
        for (int32_t i = low; i <= high; i++) cpu_numbers_add(out, i);
    }
    return *text == '\n' && text[1] ? -1 : 0;
}

/* 1, or 0 when there is no such file to read; -1 and what is wrong with it. */
static int read_list(const char *root, const char *name, cpu_numbers *out, char *why, size_t cap)
{
    char path[PATH_BYTES], text[LIST_BYTES];
    size_t have = 0;
    ssize_t got = 1;
    if ((size_t)snprintf(path, sizeof path, "%s/%s", root, name) >= sizeof path) {
        snprintf(why, cap, "the path of %s is too long", name);
        return -1;
    }
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    while (have < sizeof text - 1 && got) {
        got = read(file, text + have, sizeof text - 1 - have);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) break;
        have += (size_t)got;
    }
    int error = errno;
    close(file);
    text[have] = 0;
    if (got < 0)
        snprintf(why, cap, "%s cannot be read (%s)", path, strerror(error));
    else if (got)
        snprintf(why, cap, "%s has %d bytes or more, expected a shorter list", path, LIST_BYTES - 1);
    else if (strlen(text) != have || parse_list(text, out))
        snprintf(why, cap, "%s has '%.*s', expected numbers below %d such as 0-3,8", path,
                 (int)strcspn(text, "\n"), text, CPU_SET_BITS);
    else
        return 1;
    return -1;
}

/* ---- places ------------------------------------------------------------------------------ */

/* Node of each place.  -1 and why when the lists contradict themselves. */
static int read_nodes(const char *root, cpu_place *places, int32_t n, char *why, size_t cap)
{
    cpu_numbers nodes, cpus;
    char name[64];
    int found = read_list(root, "node/online", &nodes, why, cap);
    for (int32_t i = 0; i < n; i++) places[i].node = found ? -1 : 0;
    for (int32_t node = 0; found > 0 && node < CPU_SET_BITS; node++) {
        if (!cpu_numbers_has(&nodes, node)) continue;
        snprintf(name, sizeof name, "node/node%d/cpulist", node);
        found = read_list(root, name, &cpus, why, cap);
        if (!found) {
            snprintf(why, cap, "%s/%s cannot be opened, though %s/node/online has node %d", root, name, root, node);
            return -1;
        }
        for (int32_t i = 0; found > 0 && i < n; i++) {
            if (!cpu_numbers_has(&cpus, places[i].cpu)) continue;
            if (places[i].node >= 0) {
                snprintf(why, cap, "%s/%s has CPU %d, which node %d has too", root, name, places[i].cpu,
                         places[i].node);
                return -1;
            }
            places[i].node = node;
        }
    }
    return found < 0 ? -1 : 0;
}

static int read_core(const char *root, cpu_place *place, char *why, size_t cap)
{
    cpu_numbers siblings;
    char name[64];
    snprintf(name, sizeof name, "cpu/cpu%d/topology/thread_siblings_list", place->cpu);
    int found = read_list(root, name, &siblings, why, cap);
    place->core = place->cpu;
    if (found <= 0) return found;
    if (!cpu_numbers_has(&siblings, place->cpu)) {
        snprintf(why, cap, "%s/%s does not have CPU %d itself", root, name, place->cpu);
        return -1;
    }
    for (int32_t i = place->cpu; i >= 0; i--)
        if (cpu_numbers_has(&siblings, i)) place->core = i;
    return 0;
}

static int comes_before(const cpu_place *a, const cpu_place *b)
{
    if (a->of_core != b->of_core) return a->of_core < b->of_core;
    if (a->of_node != b->of_node) return a->of_node < b->of_node;
    return a->node < b->node;
}

/* places are in ascending order of their CPUs. */
static void order_places(cpu_place *places, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        places[i].of_core = places[i].of_node = 0;
        for (int32_t j = 0; j < i; j++) places[i].of_core += places[j].core == places[i].core;
        for (int32_t j = 0; j < i; j++)
            places[i].of_node += places[j].node == places[i].node && places[j].of_core == places[i].of_core;
    }
    for (int32_t i = 1; i < n; i++) {
        cpu_place moving = places[i];
        int32_t at = i;
        for (; at > 0 && comes_before(&moving, &places[at - 1]); at--) places[at] = places[at - 1];
        places[at] = moving;
    }
}

int32_t cpu_places(const char *root, const cpu_numbers *allowed, cpu_place *places, char *why, size_t cap)
{
    int32_t n = 0, kept = 0;
    for (int32_t cpu = 0; cpu < CPU_SET_BITS; cpu++)
        if (cpu_numbers_has(allowed, cpu)) places[n++] = (cpu_place){.cpu = cpu};
    if (read_nodes(root, places, n, why, cap)) return -1;
    for (int32_t i = 0; i < n; i++)
        if (places[i].node >= 0) places[kept++] = places[i];
    for (int32_t i = 0; i < kept; i++)
        if (read_core(root, &places[i], why, cap)) return -1;
    if (!kept) {
        snprintf(why, cap, "no node of %s/node/online has one of the %d CPUs that the process may use", root, n);
        return -1;
    }
    order_places(places, kept);
    return kept;
}

int32_t cpu_nodes(const cpu_place *places, int32_t n, cpu_numbers *out)
{
    memset(out, 0, sizeof *out);
    for (int32_t i = 0; i < n; i++) cpu_numbers_add(out, places[i].node);
    return cpu_numbers_count(out);
}
