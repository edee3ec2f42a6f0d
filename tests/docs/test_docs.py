"""The documents against the program: test_docs.py PROGRAM SOURCE [unittest arguments].

Every line of a block tagged sh that begins with moewe or build/moewe runs with status 0, and each line of a block
tagged output that follows is a line that the command before it printed.  Links to files exist, with their headings.
Man pages are well formed where a checker is installed, and name every option of the program and every function of the
header.  Needs nothing but the Python standard library.
"""
import glob
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

PROGRAM, SOURCE = None, None
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```\s*$", re.M | re.S)
LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")


def documents():
    """README.md and all of docs/, as (path within the project, text)."""
    paths = [os.path.join(SOURCE, "README.md")] + sorted(glob.glob(os.path.join(SOURCE, "docs", "**", "*.md"), recursive=True))
    for path in paths:
        with open(path, encoding="utf-8") as f:
            yield os.path.relpath(path, SOURCE), f.read()


def environment():
    return {k: v for k, v in os.environ.items() if not k.startswith("MOEWE_")}


def commands(block):
    """The command lines of a block that run the program; a backslash continues a line."""
    for line in block.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words and words[0] in ("moewe", "build/moewe", "./build/moewe"):
            yield words[1:]


def squeezed(text):
    return " ".join(text.split())


class Commands(unittest.TestCase):
    def setUp(self):
        """A folder in which the paths of the documents lead where they should, and files that are written go away."""
        self.place = tempfile.TemporaryDirectory(prefix="moewe-docs-")
        self.addCleanup(self.place.cleanup)
        for name in ("models", "tests", "docs"):
            os.symlink(os.path.join(SOURCE, name), os.path.join(self.place.name, name))

    def run_program(self, words):
        r = subprocess.run([PROGRAM, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=self.place.name,
                           env=environment(), stdin=subprocess.DEVNULL, timeout=500)
        self.assertEqual((r.returncode, r.stderr.decode()), (0, ""), words)
        return r.stdout.decode()

    def test_commands_run_and_print_what_is_shown(self):
        count = 0
        for name, text in documents():
            printed = None
            for tag, block in FENCE.findall(text):
                if tag == "sh":
                    for words in commands(block):
                        with self.subTest(document=name, command=" ".join(words)):
                            printed = [squeezed(line) for line in self.run_program(words).splitlines()]
                        count += 1
                if tag == "output":
                    for line in filter(None, block.splitlines()):
                        with self.subTest(document=name, shown=line):
                            self.assertIsNotNone(printed, "no command before it")
                            self.assertIn(squeezed(line), printed)
        self.assertGreater(count, 0)


class Links(unittest.TestCase):
    def headings(self, path):
        with open(path, encoding="utf-8") as f:
            lines = re.findall(r"^#+ (.*)$", FENCE.sub("", f.read()), re.M)
        return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in lines}

    def test_links_lead_somewhere(self):
        for name, text in documents():
            for target in LINK.findall(FENCE.sub("", text)):
                path, _, heading = target.partition("#")
                if re.match(r"[a-z]+:", path):
                    continue
                with self.subTest(document=name, link=target):
                    full = os.path.join(SOURCE, os.path.dirname(name), path) if path else os.path.join(SOURCE, name)
                    self.assertTrue(os.path.exists(full))
                    if heading:
                        self.assertIn(heading, self.headings(full))

    def test_paths_in_backquotes_exist(self):
        """`src/core/plan.c` and the like; names with a star, braces or capitals in place of words are left alone."""
        seen = 0
        for name, text in documents():
            for path in re.findall(r"`((?:docs|fuzz|tests|tools|src|include|formats|models|examples)/[a-z0-9_./-]+)`", text):
                seen += 1
                with self.subTest(document=name, path=path):
                    self.assertTrue(os.path.exists(os.path.join(SOURCE, path)))
        self.assertGreater(seen, 0)


class Manuals(unittest.TestCase):
    def page(self, name):
        with open(os.path.join(SOURCE, "docs", "man", name), encoding="utf-8") as f:
            return f.read()

    def test_well_formed(self):
        paths = [os.path.join(SOURCE, "docs", "man", n) for n in ("moewe.1", "moewe.3")]
        if shutil.which("mandoc"):
            r = subprocess.run(["mandoc", "-Tlint", "-Wwarning", *paths], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            self.assertEqual((r.returncode, r.stdout.decode()), (0, ""))
        elif shutil.which("groff"):
            for path in paths:
                r = subprocess.run(["groff", "-mdoc", "-Tascii", "-ww", "-z", path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
                self.assertEqual((r.returncode, r.stdout.decode()), (0, ""))
        else:
            self.skipTest("neither mandoc nor groff is installed")

    def test_page_names_every_option(self):
        """moewe.1 has the options that --help shows, all of them and no others."""
        shown = set()
        listing = subprocess.run([PROGRAM, "--help"], stdout=subprocess.PIPE, env=environment()).stdout.decode()
        names = re.findall(r"^\s+moewe (\w+)|^  (\w+)  ", listing, re.M)
        names = sorted({a or b for a, b in names} - {"COMMAND"})
        self.assertIn("plan", names, listing)
        for command in names:
            text = subprocess.run([PROGRAM, command, "--help"], stdout=subprocess.PIPE, env=environment()).stdout.decode()
            shown |= set(re.findall(r"^  --([a-z0-9-]+)", text, re.M))
            self.assertRegex(self.page("moewe.1"), r"(?m)^\.It Cm %s$" % command)
        page = set(re.findall(r"^\.It Fl -([a-z0-9-]+)", self.page("moewe.1"), re.M))
        self.assertEqual((sorted(shown - page), sorted(page - shown)), ([], []), "missing in moewe.1, and too many there")

    def test_page_names_every_function(self):
        with open(os.path.join(SOURCE, "include", "moewe.h"), encoding="utf-8") as f:
            functions = set(re.findall(r"^MOEWE_API [^(]*?(moewe_\w+)\(", f.read(), re.M))
        page = set(re.findall(r"^\.Fn (moewe_\w+)", self.page("moewe.3"), re.M))
        self.assertGreater(len(functions), 30)
        self.assertEqual((sorted(functions - page), sorted(page - functions)), ([], []), "missing in moewe.3, and too many there")


if __name__ == "__main__":
    PROGRAM, SOURCE = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    unittest.main(argv=[sys.argv[0]] + sys.argv[3:])
