/* main.c - the program: finds the command and hands over.  Owns nothing but the table of commands. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

static const struct {
    const char *name;
    cli_command run;
    const char *text;
} commands[] = {
    {"info", cmd_info, "version, back ends, cores, memory, environment variables"},
    {"generate", cmd_generate, "continue a prompt"},
    {"eval", cmd_eval, "score a model on problems in GSM8K form"},
    {"verify", cmd_verify, "compare MoE blocks with a reference"},
    {"run", cmd_run, "run one MoE block over the rows of a tensor"},
    {"plan", cmd_plan, "how much workspace a model's MoE layers take, and why"},
    {"quantize", cmd_quantize, "write a checkpoint with its weights in fewer bits"},
    {"bench", cmd_bench, "time layers, the engine and the machine itself"},
};
enum { COMMANDS = sizeof commands / sizeof *commands };

/* Static, so that the first write does not allocate: programs count allocations after start. */
static char stdout_buffer[1 << 16];

static void log_line(void *ctx, moewe_log_level level, const char *line)
{
    static const char *const names[] = {"error", "warn", "info", "trace"};
    (void)ctx;
    fprintf(stderr, "moewe: [%s] %s\n", names[level], line);
}

static int print_help(void)
{
    printf("usage: moewe COMMAND [options]\n\n"
           "Mixture-of-experts layers and models, run in one workspace.\n\ncommands:\n");
    for (int i = 0; i < COMMANDS; i++) printf("  %-10s %s\n", commands[i].name, commands[i].text);
    printf("\nmoewe COMMAND --help explains a command; moewe --version prints the version.\n"
           "Exit status: 0 success, 1 failure, 2 usage error.\n");
    return cli_finish(CLI_OK);
}

static int print_version(void)
{
    uint32_t v = moewe_version();
    printf("moewe %u.%u.%u\n", v >> 16, v >> 8 & 255, v & 255);
    return cli_finish(CLI_OK);
}

static int run_command(int argc, char **argv)
{
    for (int i = 0; i < COMMANDS; i++)
        if (!strcmp(commands[i].name, argv[0])) {
            cli_begin(commands[i].name);
            return cli_finish(commands[i].run(argc, argv));
        }
    return cli_usage("unknown command '%s' (moewe help lists them)", argv[0]);
}

int main(int argc, char **argv)
{
    setvbuf(stdout, stdout_buffer, _IOFBF, sizeof stdout_buffer);
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is a write error, which is told and cleaned up */
    if (getenv("MOEWE_LOG")) moewe_log_set(log_line, NULL, MOEWE_LOG_WARN);
    if (argc < 2) return cli_usage("no command given (moewe help lists them)");
    if (!strcmp(argv[1], "--version")) return print_version();
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")) return print_help();
    if (!strcmp(argv[1], "help")) {
        char help[] = "--help";
        if (argc == 2) return print_help();
        if (argc > 3) return cli_usage("unexpected argument '%s'; usage: moewe help [COMMAND]", argv[3]);
        char *again[] = {argv[2], help, NULL};
        return run_command(2, again);
    }
    return run_command(argc - 1, argv + 1);
}
