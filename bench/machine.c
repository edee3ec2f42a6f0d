/* machine.c - reads /proc and the control groups; what cannot be read is unknown. */
#include "machine.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The number after "NAME:" in a file of lines, times 1024; 0 = not there. */
static uint64_t meminfo(const char *name)
{
    unsigned long long kib = 0;
    char line[256];
    size_t n = strlen(name);
    FILE *f = fopen("/proc/meminfo", "r");
    if (!f) return 0;
    while (fgets(line, sizeof line, f))
        if (!strncmp(line, name, n) && sscanf(line + n, ": %llu kB", &kib) == 1) break;
    fclose(f);
    return kib * 1024;
}

static void cpu_name(char *out, size_t cap)
{
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "r");
    snprintf(out, cap, "unknown");
    if (!f) return;
    while (fgets(line, sizeof line, f)) {
        char *value = strchr(line, ':');
        if (strncmp(line, "model name", 10) || !value) continue;
        value += 1 + strspn(value + 1, " \t");
        value[strcspn(value, "\n")] = '\0';
        snprintf(out, cap, "%s", value);
        break;
    }
    fclose(f);
}

static int32_t usable_cores(void)
{
    cpu_set_t set;
    if (!sched_getaffinity(0, sizeof set, &set)) return CPU_COUNT(&set);
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int32_t)online : 1;
}

bench_machine bench_machine_get(void)
{
    bench_machine m = {.cores = usable_cores(), .memory = meminfo("MemTotal")};
    cpu_name(m.cpu, sizeof m.cpu);
    return m;
}

/* ---- control groups ------------------------------------------------------------------ */

static int read_number(const char *folder, const char *name, uint64_t *out)
{
    char path[1200];
    unsigned long long n;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "r");
    if (!f) return -1;
    int found = fscanf(f, "%llu", &n) == 1; /* "max" is no number: no limit */
    fclose(f);
    if (found) *out = n;
    return found ? 0 : -1;
}

/* Version 2: the group named in /proc/self/cgroup and every one above it may have a limit. */
static uint64_t left_in_groups(void)
{
    char folder[1024] = "/sys/fs/cgroup", line[900];
    uint64_t left = UINT64_MAX, most, used;
    FILE *f = fopen("/proc/self/cgroup", "r");
    if (!f) return left;
    while (fgets(line, sizeof line, f))
        if (!strncmp(line, "0::/", 4)) {
            line[strcspn(line, "\n")] = '\0';
            snprintf(folder, sizeof folder, "/sys/fs/cgroup%s", line + 3);
        }
    fclose(f);
    for (;;) {
        if (!read_number(folder, "memory.max", &most) && !read_number(folder, "memory.current", &used)) {
            uint64_t here = most > used ? most - used : 0;
            if (here < left) left = here;
        }
        char *slash = strrchr(folder, '/');
        if (!slash || !strcmp(folder, "/sys/fs/cgroup")) break;
        *slash = '\0';
    }
    return left;
}

uint64_t bench_memory_available(void)
{
    uint64_t machine = meminfo("MemAvailable"), groups = left_in_groups();
    return machine < groups ? machine : groups;
}
