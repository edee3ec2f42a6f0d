/* replay.c - main of a fuzz target without libFuzzer: runs it once over every file of the folders and files that
 * are named, in the order of their names.  For any compiler; must fail when there was nothing to run. */
#include "fuzz.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { LARGEST = 1 << 22 };

static int replay_file(const char *path)
{
    uint8_t *data = malloc(LARGEST);
    FILE *f = data ? fopen(path, "rb") : NULL;
    if (!f) {
        fprintf(stderr, "%s: cannot be read: %s\n", path, strerror(errno));
        free(data);
        return -1;
    }
    size_t size = fread(data, 1, LARGEST, f);
    int bad = ferror(f);
    fclose(f);
    /* exactly as large as the input, so that a sanitizer sees a read behind its end */
    uint8_t *exact = bad ? NULL : malloc(size ? size : 1);
    if (exact) {
        memcpy(exact, data, size);
        fprintf(stderr, "%s\n", path); /* the last line names the input that stopped the program */
        LLVMFuzzerTestOneInput(exact, size);
    }
    free(exact);
    free(data);
    return exact ? 0 : -1;
}

static int visible(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

/* The number of inputs that were run, or -1. */
static int replay(const char *path)
{
    struct stat st;
    struct dirent **entries;
    if (stat(path, &st) == 0 && !S_ISDIR(st.st_mode)) return replay_file(path) ? -1 : 1;
    int n = scandir(path, &entries, visible, alphasort), failed = 0;
    if (n < 0) fprintf(stderr, "%s: cannot be listed: %s\n", path, strerror(errno));
    for (int i = 0; i < n; i++) {
        char file[1024];
        snprintf(file, sizeof file, "%s/%s", path, entries[i]->d_name);
        failed |= replay_file(file);
        free(entries[i]);
    }
    if (n >= 0) free(entries);
    return failed ? -1 : n;
}

int main(int argc, char **argv)
{
    int total = 0;
    for (int i = 1; i < argc; i++) {
        int n = replay(argv[i]);
        if (n < 0) return 1;
        total += n;
    }
    printf("%d inputs replayed\n", total);
    return total ? 0 : 1;
}
