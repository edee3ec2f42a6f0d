"""What the program's tests share: running it, and reading and writing safetensors without the code under test."""
import array
import json
import os
import struct
import subprocess
import sys
import tempfile
import unittest

PROGRAM, SOURCE = None, None
VECTORS, WORDMATH = {}, None


def main():
    """Called by each test file: arguments are the program and the source folder."""
    global PROGRAM, SOURCE, WORDMATH
    PROGRAM, SOURCE = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    WORDMATH = os.path.join(SOURCE, "models", "wordmath")
    for name in ("qwen3_moe", "mixtral"):
        VECTORS[name] = os.path.join(SOURCE, "tests", "data", "vectors", name)
    unittest.main(argv=[sys.argv[0]] + sys.argv[3:])


def environment(**changes):
    """Without the switches of whoever runs the tests."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("MOEWE_")}
    env.update(changes)
    return env


def moewe(*args, stdin=b"", env=None, **how):
    return subprocess.run([PROGRAM, *map(str, args)], input=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          env=env or environment(), timeout=500, **how)


class Case(unittest.TestCase):
    maxDiff = None

    def good(self, *args, **how):
        """Runs; must succeed and stay silent on stderr.  Returns what it printed."""
        r = moewe(*args, **how)
        self.assertEqual((r.returncode, r.stderr.decode()), (0, ""), args)
        return r.stdout.decode()

    def bad(self, status, parts, *args, **how):
        """Runs; must fail with this status and one line on stderr that has all the parts."""
        r = moewe(*args, **how)
        text = r.stderr.decode()
        self.assertEqual(r.returncode, status, (args, text))
        self.assertEqual((text.count("\n"), text[-1:]), (1, "\n"), (args, text))
        self.assertTrue(text.startswith("moewe"), text)
        for part in parts:
            self.assertIn(str(part), text, args)
        return text

    def folder(self):
        made = tempfile.TemporaryDirectory(prefix="moewe-cli-")
        self.addCleanup(made.cleanup)
        return made.name


# ---- safetensors ------------------------------------------------------------------------------------

CODES = {"F32": "f", "I32": "i", "I64": "q", "BF16": "H", "F16": "H"}


def read_safetensors(path):
    """name -> (dtype, shape, array); 16-bit floats as their bits."""
    with open(path, "rb") as f:
        (length,) = struct.unpack("<Q", f.read(8))
        header, data = json.loads(f.read(length)), f.read()
    out = {}
    for name, t in header.items():
        if name != "__metadata__":
            a, b = t["data_offsets"]
            out[name] = t["dtype"], t["shape"], array.array(CODES[t["dtype"]], data[a:b])
    return out


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, (dtype, shape, values) in tensors.items():
        raw = array.array(CODES[dtype], values).tobytes()
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def edit_header(path, change):
    """Rewrites a file's header: change(dict) edits it; the data stays as it is."""
    with open(path, "rb") as f:
        (length,) = struct.unpack("<Q", f.read(8))
        header, data = json.loads(f.read(length)), f.read()
    change(header)
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def fnv1a(data):
    h = 0xCBF29CE484222325
    for byte in data:
        h = (h ^ byte) * 0x100000001B3 % 2**64
    return "%016x" % h


def relative_error(found, wanted):
    difference = sum((a - b) ** 2 for a, b in zip(found, wanted))
    return (difference / sum(b * b for b in wanted)) ** 0.5
