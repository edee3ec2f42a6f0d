#!/usr/bin/env python3
"""Codes of quantised weight types and the f32 values that other people's programs take them for, as bits.

    python3 -m venv venv && venv/bin/pip install gguf==0.19.0 ml_dtypes==0.6.0 numpy==2.4.6
    venv/bin/python tools/make_quant_vectors.py > tests/data/quant_vectors.h

GGUF blocks: Q8_0 and Q4_0 are quantised from random numbers, Q4_K and Q6_K are random bits with sane outer scales;
the last block of each has a negative d, and of the K types one whose d is a denormal.
It must never read anything of moewe.
"""
import gguf
import ml_dtypes
import numpy as np
from gguf import GGMLQuantizationType as T
from gguf.quants import dequantize, quantize

rng = np.random.default_rng(20240)


def lines(values, per, form):
    for i in range(0, len(values), per):
        print("    " + " ".join(form % v + "," for v in values[i:i + per]))


def bits(values):
    return np.ascontiguousarray(values, dtype=np.float32).reshape(-1).view(np.uint32).tolist()


def table(name, values):
    print(f"static const uint32_t {name}[{len(values)}] = {{")
    lines(values, 10, "0x%08x")
    print("};\n")


def halves(block, at, values):
    block[at:at + 2 * len(values)] = np.array(values, dtype=np.float16).view(np.uint8)


def k_blocks(size, d_at, dmin):
    blocks = []
    for d in (0.0123, 3.7e-6, -0.5):
        block = rng.integers(0, 256, size, dtype=np.uint8)
        halves(block, d_at, [d, d * 7.3] if dmin else [d])
        blocks.append(block)
    return np.stack(blocks)


def gguf_blocks(name, kind, blocks):
    values = dequantize(blocks.reshape(1, -1), kind)
    data = blocks.reshape(-1).tolist()
    print(f"static const uint8_t {name}_bytes[{len(data)}] = {{")
    lines(data, 24, "%d")
    print("};\n")
    table(f"{name}_values", bits(values))


print("/* quant_vectors.h - owns bits of quantised weights and the f32 values that the Python packages gguf and ml_dtypes\n"
      " * take them for.  Made by tools/make_quant_vectors.py; not to be edited. */")
print("#ifndef MOEWE_TESTS_QUANT_VECTORS_H\n#define MOEWE_TESTS_QUANT_VECTORS_H\n\n#include <stdint.h>\n")
codes = np.arange(256, dtype=np.uint8)
table("e4m3_values", bits(codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32)))
table("e8m0_values", bits(codes.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)))
table("e2m1_values", bits(codes[:16].view(ml_dtypes.float4_e2m1fn).astype(np.float32)))
for name, kind in (("q8_0", T.Q8_0), ("q4_0", T.Q4_0)):
    blocks = quantize(rng.standard_normal((1, 96)).astype(np.float32), kind).reshape(3, -1)
    halves(blocks[2], 0, [-float(blocks[2][:2].view(np.float16)[0])])
    gguf_blocks(name, kind, blocks)
gguf_blocks("q4_k", T.Q4_K, k_blocks(144, 0, True))
gguf_blocks("q6_k", T.Q6_K, k_blocks(210, 208, False))
print("#endif")
