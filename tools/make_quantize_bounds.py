#!/usr/bin/env python3
"""make_quantize_bounds.py - what gguf's own quantizers leave of error on the numbers of tests/formats/test_quantize.c.

Needs numpy and the Python package gguf; prints the constants that the test holds.  The numbers are sums of four uniform
ones from a linear congruential generator, exact in f32, so that both sides have the same bits.
"""
import numpy
from gguf import GGMLQuantizationType as kind
from gguf import quants

ROWS, COLS, UNITS = 64, 512, 2.0 ** -20


def numbers(n):
    out, state = numpy.empty(n, numpy.float32), 12345
    for i in range(n):
        total = 0
        for _ in range(4):
            state = (state * 1664525 + 1013904223) % 2**32
            total += state >> 16
        out[i] = (total - 131070) * UNITS
    return out.reshape(ROWS, COLS)


def relative(found, wanted):
    off = found.astype(numpy.float64) - wanted
    return float(numpy.sqrt((off**2).sum() / (wanted.astype(numpy.float64) ** 2).sum()))


def main():
    w = numbers(ROWS * COLS)
    for name in ("Q8_0", "Q4_0"):
        of = getattr(kind, name)
        print(f"{name}: {relative(quants.dequantize(quants.quantize(w, of), of), w):.6f}")


if __name__ == "__main__":
    main()
