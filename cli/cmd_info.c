/* cmd_info.c - moewe info: what this build is and what this machine offers it. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "args.h"

typedef size_t (*describe_fn)(char *buf, size_t cap);

/* The library's text, each line indented. */
static int print_lines(describe_fn describe)
{
    size_t length = describe(NULL, 0);
    char *text = malloc(length + 1);
    if (!text) return cli_fail("no memory for a text of %zu bytes", length);
    describe(text, length + 1);
    for (char *line = text, *next; *line; line = next) {
        size_t n = strcspn(line, "\n");
        next = line + n + (line[n] == '\n');
        printf("  %.*s\n", (int)n, line);
    }
    free(text);
    return CLI_OK;
}

static void print_cores(void)
{
    cpu_set_t set;
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    if (sched_getaffinity(0, sizeof set, &set))
        printf("cores: %ld online\n", online);
    else
        printf("cores: %d usable of %ld online\n", CPU_COUNT(&set), online);
}

static void print_memory(void)
{
    unsigned long long total = 0, available = 0;
    char line[256];
    FILE *f = fopen("/proc/meminfo", "r");
    if (f) {
        while (fgets(line, sizeof line, f)) {
            sscanf(line, "MemTotal: %llu kB", &total);
            sscanf(line, "MemAvailable: %llu kB", &available);
        }
        fclose(f);
    }
    if (total)
        printf("memory: %llu MiB, %llu MiB available\n", total / 1024, available / 1024);
    else
        printf("memory: unknown (/proc/meminfo is not readable)\n");
}

int cmd_info(int argc, char **argv)
{
    const args_spec spec = {
        .synopsis = "",
        .about =
            "Prints the version, each back end with 'yes' or the reason why it cannot run here, the cores and the\n"
            "memory, and the environment variables that the library reads.",
    };
    int status = args_parse(&spec, argc, argv);
    if (status != ARGS_GO) return status;

    uint32_t v = moewe_version();
    printf("moewe %u.%u.%u\n", v >> 16, v >> 8 & 255, v & 255);
    printf("build: %s\n", moewe_build_info());
    printf("back ends:\n");
    status = print_lines(moewe_device_list);
    if (status) return status;
    print_cores();
    print_memory();
    printf("environment:\n");
    return print_lines(moewe_env_describe);
}
