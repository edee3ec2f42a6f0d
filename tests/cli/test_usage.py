"""Help, version, usage errors, and what happens when nobody can or wants to read the output."""
import os
import re
import signal
import subprocess
import unittest

import support
from support import Case, moewe

COMMANDS = {
    "info": [],
    "generate": ["--prompt", "--max-tokens", "--temperature", "--top-p", "--top-k", "--seed", "--context", "--stats", "--stop",
                 "--backend", "--threads", "--workspace-limit", "--dtype"],
    "eval": ["--data", "--limit", "--shots", "--batch", "--max-tokens", "--backend", "--threads", "--workspace-limit",
             "--dtype"],
    "verify": ["--reference", "--dtype", "--rows", "--workspace-limit", "--threads", "--backend"],
    "run": ["--layer", "--input", "--output", "--ids", "--weights", "--dtype", "--workspace-limit", "--threads",
            "--backend"],
    "plan": ["--tokens", "--context", "--sequences", "--tp", "--ep", "--dp", "--weights", "--kv", "--memory",
             "--utilization", "--lanes", "--workspace-limit", "--dtype", "--backend", "--threads", "--json", "--svg",
             "--compare"],
    "quantize": ["--type", "--experts-only"],
    "bench": ["--shape", "--type", "--tokens", "--csv", "--skew", "--threads", "--backend", "--pin"],
}


class Usage(Case):
    def test_version_and_help(self):
        with open(os.path.join(support.SOURCE, "include", "moewe.h")) as f:
            header = f.read()
        version = ".".join(re.search(r"define MOEWE_VERSION_%s (\d+)" % p, header)[1]
                           for p in ("MAJOR", "MINOR", "PATCH"))
        self.assertEqual(self.good("--version"), "moewe %s\n" % version)
        text = self.good("help")
        self.assertEqual(self.good("--help"), text)
        for command, options in COMMANDS.items():
            self.assertRegex(text, r"\n  %s " % command)
            explained = self.good(command, "--help")
            self.assertEqual(self.good("help", command), explained)
            self.assertTrue(explained.startswith("usage: moewe %s" % command))
            for option in options + ["--help"]:
                self.assertRegex(explained, r"\n  %s " % option)

    def test_usage_errors(self):
        generate = ("generate", "DIR", "--prompt", "x")
        run = ("run", "DIR", "--layer", "0", "--input", "x", "--output", "y")
        for parts, args in (
            (["no command"], ()),
            (["unknown command", "frobnicate"], ("frobnicate",)),
            (["unknown command", "frobnicate"], ("help", "frobnicate")),
            (["moewe info:", "unexpected argument", "extra"], ("info", "extra")),
            (["moewe generate:", "DIR is missing"], ("generate", "--prompt", "x")),
            (["--prompt is missing"], ("generate", "DIR")),
            (["--prompt needs a value"], ("generate", "DIR", "--prompt")),
            (["--prompt needs a value"], ("generate", "DIR", "--prompt", "--stats")),
            (["unknown option", "--color"], generate + ("--color",)),
            (["unknown option", "-v"], generate + ("-v",)),
            (["--prompt is given twice"], generate + ("--prompt", "y")),
            (["--stats takes no value", "yes"], generate + ("--stats=yes",)),
            (["unexpected argument", "DIR2"], generate + ("DIR2",)),
            (["--max-tokens", "'12x'", "whole number"], generate + ("--max-tokens", "12x")),
            (["--max-tokens", "''"], generate + ("--max-tokens=",)),
            (["--max-tokens", "'0'", "from 1"], generate + ("--max-tokens", "0")),
            (["--max-tokens", "'-1'"], generate + ("--max-tokens", "-1")),
            (["--max-tokens", "'2147483648'"], generate + ("--max-tokens", "2147483648")),
            (["--temperature", "'hot'"], generate + ("--temperature", "hot")),
            (["--temperature", "'nan'"], generate + ("--temperature", "nan")),
            (["--temperature", "'-0.5'"], generate + ("--temperature", "-0.5")),
            (["--top-p", "'1.5'", "0 to 1"], generate + ("--top-p", "1.5")),
            (["--seed", "'18446744073709551616'"], generate + ("--seed", 2**64)),
            (["--threads", "'0'"], generate + ("--threads", "0")),
            (["--dtype", "'f16'", "f32|bf16"], generate + ("--dtype", "f16")),
            (["--workspace-limit", "'64Q'", "64K"], generate + ("--workspace-limit", "64Q")),
            (["--workspace-limit", "'1.5M'"], generate + ("--workspace-limit", "1.5M")),
            (["--workspace-limit", "'0'"], generate + ("--workspace-limit", "0")),
            (["--workspace-limit", "'17179869184G'"], generate + ("--workspace-limit", "17179869184G")),
            (["--stop has 0 bytes"], generate + ("--stop", "")),
            (["--stop has 201 bytes", "1 to 200"], generate + ("--stop", "x" * 201)),
            (["--data is missing"], ("eval", "DIR")),
            (["--rows", "'two'", "one|all"], ("verify", "DIR", "--rows", "two")),
            (["--layer is missing"], ("run", "DIR", "--input", "x", "--output", "y")),
            (["--input is missing"], ("run", "DIR", "--layer", "0", "--output", "y")),
            (["--output is missing"], ("run", "DIR", "--layer", "0", "--input", "x")),
            (["--ids", "--weights"], run + ("--ids", "t")),
            (["--ids", "--weights"], run + ("--weights", "t")),
            (["DIR_OR_CONFIG is missing"], ("plan",)),
            (["--tokens", "'4K'"], ("plan", "DIR", "--tokens", "4K")),
        ):
            self.assertEqual(moewe(*args).stdout, b"")
            self.bad(2, parts, *args)

    def test_a_message_is_one_line_whatever_the_argument(self):
        self.bad(2, ["a?b?[31m"], "info", "a\nb\033[31m")

    def test_sizes(self):
        """What a suffix is worth, read back from the plan."""
        import json
        for text, bytes_ in (("1048576", 2**20), ("1024K", 2**20), ("1024KiB", 2**20), ("3M", 3 * 2**20),
                             ("3MiB", 3 * 2**20), ("2G", 2**31), ("2GiB", 2**31)):
            plan = json.loads(self.good("plan", support.WORDMATH, "--json", "--workspace-limit", text))
            self.assertEqual(plan["workspace_limit"], bytes_)

    def test_info(self):
        text = self.good("info")
        self.assertRegex(text, r"\Amoewe \d+\.\d+\.\d+\nbuild: .+\n")
        self.assertRegex(text, r"\n  cpu-scalar: yes\n")
        self.assertIn("%d usable" % len(os.sched_getaffinity(0)), text)
        with open("/proc/meminfo") as f:
            total = int(re.search(r"MemTotal:\s+(\d+)", f.read())[1]) // 1024
        self.assertRegex(text, r"\nmemory: %d MiB, \d+ MiB available\n" % total)
        for name in ("MOEWE_BACKEND", "MOEWE_THREADS", "MOEWE_LOG"):
            self.assertIn(name, text)
        self.assertIn("MOEWE_THREADS=3", self.good("info", env=support.environment(MOEWE_THREADS="3")))

    def test_log_lines_only_when_asked(self):
        args = ("verify", support.VECTORS["mixtral"])
        quiet = moewe(*args)
        loud = moewe(*args, env=support.environment(MOEWE_LOG="info"))
        self.assertEqual((quiet.returncode, quiet.stderr), (0, b""))
        self.assertEqual((loud.returncode, loud.stdout), (0, quiet.stdout))
        self.assertRegex(loud.stderr.decode(), r"\A(moewe: \[info\] .+\n)+\Z")

    def test_full_disk(self):
        for args in (("info",), ("--version",), ("help",), ("plan", "--help"), ("plan", support.WORDMATH),
                     ("plan", "--json", support.WORDMATH),
                     ("generate", support.WORDMATH, "--prompt", "Question:", "--max-tokens", "4")):
            with open("/dev/full", "wb") as full:
                r = subprocess.run([support.PROGRAM, *args], stdout=full, stderr=subprocess.PIPE,
                                   env=support.environment())
            text = r.stderr.decode()
            self.assertEqual((r.returncode, text.count("\n")), (1, 1), (args, text))
            self.assertIn("standard output: No space left on device", text)

    def test_reader_gone(self):
        """Whether the signal is at its default or ignored: quiet, and not a success."""
        for restore, status in ((True, -signal.SIGPIPE), (False, 1)):
            read_end, write_end = os.pipe()
            os.close(read_end)
            r = subprocess.run([support.PROGRAM, "info"], stdout=write_end, stderr=subprocess.PIPE,
                               env=support.environment(), restore_signals=restore)
            os.close(write_end)
            self.assertEqual((r.returncode, r.stderr), (status, b""))


if __name__ == "__main__":
    support.main()
