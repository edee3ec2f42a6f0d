#!/usr/bin/env python3
"""bench_table.py [--write] - what moewe bench layer wrote to bench/results/*.csv, as the tables of docs/benchmarks.md.

Prints them; with --write puts them into that page between its two marks instead.  One table for each machine, back end,
number of threads, shape and kind of layer; of rows that say the same thing the newest counts.  It must never need more
than the Python standard library.
"""
import csv
import glob
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGE = os.path.join(ROOT, "docs", "benchmarks.md")
BEGIN, END = "<!-- made by tools/bench_table.py: begin -->\n", "<!-- end -->\n"
TYPES = ["f32", "bf16", "f16", "fp8", "int8", "q8_0", "q6_k", "int4", "nvfp4", "mxfp4", "q4_0", "q4_k"]


def rows():
    for path in sorted(glob.glob(os.path.join(ROOT, "bench", "results", "*.csv"))):
        with open(path, newline="", encoding="utf-8") as f:
            yield from csv.DictReader(f)


def table_of(row):
    return tuple(row[k] for k in ("cpu", "cores", "backend", "threads", "pinned", "shape", "layer", "x_dtype", "y_dtype",
                                  "skew"))


def tables(all_rows):
    """table -> type -> tokens -> row, the newest of each."""
    out = {}
    for row in sorted(all_rows, key=lambda r: r["date"]):
        out.setdefault(table_of(row), {}).setdefault(row["type"], {})[int(row["tokens"])] = row
    return out


def type_key(name):
    stem = name.split("-g")[0]
    return TYPES.index(stem) if stem in TYPES else len(TYPES), name


def mean(row, what):
    return (float(row["%s_before_%s" % what]) + float(row["%s_after_%s" % what])) / 2


def span(values, form="%.0f"):
    low, high = form % min(values), form % max(values)
    return low if low == high else low + " to " + high


def short(value):
    """Three digits."""
    value = float(value)
    return "%.0f" % value if value >= 100 else "%.3g" % value


def cell(row):
    return "%s ms (%.0f%%)" % (short(row["median_ms"]), 100 * float(row["roofline_share"]))


def print_table(key, types, out):
    cpu, cores, backend, threads, pinned, shape, layer, x, y, skew = key
    every = [r for by_tokens in types.values() for r in by_tokens.values()]
    tokens = sorted({t for by_tokens in types.values() for t in by_tokens})
    out.append("### %s, %s, %s threads%s on %s" % (shape, backend, threads, " (pinned)" if pinned == "1" else "", cpu))
    out.append("")
    reads = [mean(r, ("read", "gb_s")) for r in every]
    peaks = {}
    for r in every:
        if r["peak_kind"] != "none":
            peaks.setdefault(r["peak_kind"], []).append(mean(r, ("peak", "gflop_s")))
    out.append("%s of %s cores; x %s, y %s%s; %s. Ceilings around the points: read %s GB/s%s." % (
        "The whole layer" if layer == "whole" else "Routed experts", cores, x, y,
        "" if float(skew) == 0 else "; skew " + skew, span(sorted({r["date"][:10] for r in every}), "%s"),
        span(reads, "%.1f"), "".join(", %s %s G/s" % (k, span(v)) for k, v in sorted(peaks.items()))))
    out.append("")
    last = max(tokens)
    out.append("| weights | %s | GB/s T=%d | GFLOP/s T=%d | scratch T=%d |" % (
        " | ".join("T=%d" % t for t in tokens), min(tokens), last, last))
    out.append("|---|" + "---:|" * (len(tokens) + 3))
    for name in sorted(types, key=type_key):
        of = types[name]
        first, end = of.get(min(tokens)), of.get(last)
        out.append("| %s | %s | %s | %s | %s |" % (
            name, " | ".join(cell(of[t]) if t in of else "-" for t in tokens), short(first["gb_s"]) if first else "-",
            short(end["gflop_s"]) if end else "-", "%.2f MiB" % (int(end["scratch_bytes"]) / 2**20) if end else "-"))
    out.append("")


def render():
    out = []
    for key, types in sorted(tables(rows()).items(), key=lambda item: (item[0][0], item[0][5], item[0])):
        print_table(key, types, out)
    return "\n".join(out) + ("\n" if out and out[-1] else "")


def main():
    if sys.argv[1:] not in ([], ["--write"]):
        print(__doc__)
        return 2
    text = render()
    if not sys.argv[1:]:
        print(text, end="")
        return 0
    with open(PAGE, encoding="utf-8") as f:
        page = f.read()
    if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(BEGIN) > page.index(END):
        print("%s: its marks are not there once each, in order" % PAGE, file=sys.stderr)
        return 1
    head, tail = page.split(BEGIN)[0], page.split(END)[1]
    with open(PAGE, "w", encoding="utf-8") as f:
        f.write(head + BEGIN + "\n" + text + END + tail)
    return 0


if __name__ == "__main__":
    sys.exit(main())
