/* csv.c - the columns of a result, in order, and the file they go to. */
#include "csv.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static const char columns[] =
    "date,cpu,cores,memory_bytes,version,backend,threads,pinned,shape,layer,type,x_dtype,y_dtype,skew,tokens,layers,routings,"
    "calls,median_ms,p10_ms,p90_ms,experts,weight_bytes,operations,gb_s,gflop_s,scratch_bytes,peak_kind,"
    "read_before_gb_s,read_after_gb_s,peak_before_gflop_s,peak_after_gflop_s,roofline_ms,roofline_share";

static void put_text(FILE *f, const char *text)
{
    fputc('"', f);
    for (; *text; text++) {
        if (*text == '"') fputc('"', f);
        fputc(*text, f);
    }
    fputs("\",", f);
}

static void put_row(FILE *f, const bench_layer_ask *a, const bench_machine *m, const bench_point *p)
{
    char date[32] = "";
    time_t now = time(NULL);
    struct tm utc;
    uint32_t v = moewe_version();
    if (gmtime_r(&now, &utc)) strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &utc);
    fprintf(f, "%s,", date);
    put_text(f, m->cpu);
    fprintf(f, "%d,%llu,%u.%u.%u,%s,%d,%d,", (int)m->cores, (unsigned long long)m->memory, v >> 16, v >> 8 & 255, v & 255,
            moewe_device_backend(a->dev), (int)moewe_device_threads(a->dev), a->pinned);
    put_text(f, a->shape.name);
    fprintf(f, "%s,%s,%s,%s,%g,%d,%d,%d,%d,", a->whole ? "whole" : "experts", a->type.name,
            moewe_dtype_name(a->x_dtype), moewe_dtype_name(a->y_dtype), a->skew, (int)p->tokens, (int)p->layers,
            (int)p->routings, (int)p->calls);
    fprintf(f, "%.6g,%.6g,%.6g,%.6g,%.0f,%.0f,%.5g,%.5g,%llu,", p->median * 1e3, p->p10 * 1e3, p->p90 * 1e3, p->experts,
            p->bytes, p->operations, p->bytes / p->median * 1e-9, p->operations / p->median * 1e-9,
            (unsigned long long)p->scratch);
    fprintf(f, "%s,%.5g,%.5g,%.5g,%.5g,%.6g,%.4g\n", bench_peak_name(p->peak), p->before.read * 1e-9,
            p->after.read * 1e-9, p->before.peak * 1e-9, p->after.peak * 1e-9, p->roofline * 1e3,
            p->roofline / p->median);
}

int bench_csv_append(const char *path, const bench_layer_ask *ask, const bench_machine *m, const bench_point *p,
                     fmt_error *e)
{
    FILE *f = fopen(path, "a");
    if (!f) return fmt_fail(e, "%.300s: cannot be opened for writing: %s", path, strerror(errno));
    errno = 0;
    fseek(f, 0, SEEK_END);
    if (ftell(f) == 0) fprintf(f, "%s\n", columns);
    put_row(f, ask, m, p);
    int bad = ferror(f);
    if (fclose(f) || bad) return fmt_fail(e, "%.300s: cannot be written: %s", path, strerror(errno ? errno : EIO));
    return 0;
}
