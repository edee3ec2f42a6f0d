#!/usr/bin/env python3
"""check_layout.py [ROOT] - who may include whom (design, section 3), who may call what, how long a file may be.

Reads the #include lines and the calls of every C file under ROOT (default: the checkout this file lies in) and
prints one line a violation; exit 1 when there is any.  --self-test plants violations and sees that each is found.
It must never need more than the Python standard library.
"""
import os
import re
import sys
import tempfile

LINES_MAX = 800
AREAS = ("include", "src", "formats", "engine", "planner", "cli", "server", "python", "bench", "examples", "tests", "fuzz")
SKIPPED = {".git", "build", "__pycache__"}

# Project headers that a file may include, by the folder the file is in (longest match first).  A folder of src/
# that is not named here is a back end: it sees backend.h and itself.
ALLOWED = {
    "include": (),
    "src/core": ("include", "src/backend.h", "src/core"),
    "src/ref": ("include", "src/ref"),
    "src/backend.h": ("include",),
    "formats": ("include", "formats"),
    "engine": ("include", "formats", "engine"),
    "planner": ("include", "formats", "planner"),
    "cli": ("include", "formats", "engine", "planner", "bench", "cli"),
    "server": ("include", "server"),
    "python": ("include", "python"),
    "bench": ("include", "formats", "engine", "planner", "bench"),
    "examples": ("include", "examples"),
}
# Headers from outside the project that src/ and include/ have no business with.
LEAF_ONLY = re.compile(r"^(jansson|pcre2|cmocka|microhttpd|curl)")

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.M)
NOT_MEMBER = r"(?<![\w.>])"
ALLOCATE = re.compile(NOT_MEMBER + r"(malloc|calloc|realloc|reallocarray|free|posix_memalign|aligned_alloc|memalign|valloc"
                      r"|strdup|strndup|asprintf|vasprintf|getline)\s*\(")
ENVIRONMENT = re.compile(NOT_MEMBER + r"(getenv|secure_getenv|setenv|putenv)\s*\(")
OUTSPOKEN = re.compile(NOT_MEMBER + r"(printf|fprintf|vprintf|vfprintf|dprintf|puts|fputs|putchar|perror|exit|_exit|_Exit|quick_exit"
                       r"|abort|assert|raise|err|errx|warn|warnx|syslog)\s*\(")


def strip(text):
    """Comments and the insides of literals become blanks; newlines stay, so that line numbers hold."""
    pattern = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.S)
    return pattern.sub(lambda m: re.sub(r"[^\n]", " ", m.group(0)), text)


def line_of(text, at):
    return text.count("\n", 0, at) + 1


def c_files(root):
    for area in AREAS:
        for folder, subs, names in os.walk(os.path.join(root, area)):
            subs[:] = sorted(s for s in subs if s not in SKIPPED)
            for name in sorted(names):
                if name.endswith((".c", ".h", ".cu", ".cuh", ".cc", ".cpp")):
                    yield os.path.relpath(os.path.join(folder, name), root).replace(os.sep, "/")


def sized_files(root):
    for area in AREAS + ("tools", "cmake"):
        for folder, subs, names in os.walk(os.path.join(root, area)):
            subs[:] = [s for s in subs if s not in SKIPPED]
            for name in names:
                if name.endswith((".c", ".h", ".cu", ".cuh", ".py", ".sh", ".cmake")):
                    yield os.path.relpath(os.path.join(folder, name), root).replace(os.sep, "/")


def resolve(root, source, quote, name):
    """Path of an included header within the project, or None for one from outside."""
    places = [os.path.dirname(source)] if quote == '"' else []
    places += ["include", "src", "", "src/core", "src/cpu"]
    for place in places:
        path = os.path.normpath(os.path.join(place, name)).replace(os.sep, "/")
        if not path.startswith("..") and os.path.isfile(os.path.join(root, path)):
            return path
    return None


def allowed_for(path):
    if path in ALLOWED:
        return ALLOWED[path]
    parts = path.split("/")
    for n in (2, 1):
        folder = "/".join(parts[:n])
        if len(parts) > n and folder in ALLOWED:
            return ALLOWED[folder]
    if parts[0] == "src" and len(parts) > 2:
        return ("include", "src/backend.h", "/".join(parts[:2]))
    return None  # tests, fuzz: they look wherever they have to


def within(path, places):
    return any(path == p or path.startswith(p + "/") for p in places)


def check_includes(root, path, text, out):
    allowed = allowed_for(path)
    library = path.startswith(("src/", "include/"))
    for m in INCLUDE.finditer(text):
        quote, name = m.groups()
        target = resolve(root, path, quote, name)
        where = f"{path}:{line_of(text, m.start())}"
        if target is None:
            if quote == '"':
                out.append(f"{where}: includes \"{name}\", which is not in the project")
            elif library and LEAF_ONLY.match(name):
                out.append(f"{where}: includes <{name}>, the library needs no such thing")
            continue
        if allowed is not None and not within(target, allowed):
            out.append(f"{where}: includes {target}, may see only {', '.join(allowed) or 'nothing of the project'}")


def check_calls(path, code, out):
    if not path.startswith("src/"):
        return
    for pattern, exempt, why in (
        (ALLOCATE, "src/core/alloc.c", "only src/core/alloc.c allocates"),
        (ENVIRONMENT, "src/core/env.c", "only src/core/env.c reads the environment"),
        (OUTSPOKEN, None, "the library never prints, exits or aborts"),
    ):
        if path == exempt:
            continue
        for m in pattern.finditer(code):
            out.append(f"{path}:{line_of(code, m.start())}: calls {m.group(1)}, {why}")


def check(root):
    out = []
    files = list(c_files(root))
    for path in files:
        with open(os.path.join(root, path), encoding="utf-8", errors="replace") as f:
            text = f.read()
        no_comments = re.sub(r"/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m.group(0)), text, flags=re.S)
        check_includes(root, path, no_comments, out)
        check_calls(path, strip(text), out)
    for path in sized_files(root):
        with open(os.path.join(root, path), "rb") as f:
            lines = f.read().count(b"\n")
        if lines > LINES_MAX:
            out.append(f"{path}: {lines} lines, at most {LINES_MAX}")
    if not any(p.startswith("src/core/") for p in files):
        out.append(f"{root}: no src/core here, nothing was checked")
    return out


def self_test():
    clean = {
        "include/moewe.h": "#include <stdint.h>\n",
        "src/backend.h": "#include <moewe.h>\n",
        "src/core/core.h": '#include "../backend.h"\n',
        "src/core/alloc.c": '#include "core.h"\nvoid *f(void) { return malloc(3); }\n',
        "src/core/run.c": '#include "core.h"\n/* malloc(1) */ int g(void) { b->free(x); return log("exit(1)"); }\n',
        "src/cpu/cpu.h": '#include "../backend.h"\n',
        "src/cpu/avx2/k.c": '#include "../cpu.h"\n',
        "src/ref/ref.h": "#include <moewe.h>\n",
        "formats/error.h": "",
        "formats/model.h": '#include <moewe.h>\n#include "error.h"\n#include <jansson.h>\n',
        "engine/engine.h": '#include "../formats/model.h"\n',
        "planner/planner.h": '#include "../formats/model.h"\n',
        "cli/plan.c": '#include "../planner/planner.h"\n',
        "cli/main.c": '#include "../engine/engine.h"\nint main(void) { printf("x"); exit(1); }\n',
        "bench/b.c": '#include <moewe.h>\n#include "../planner/planner.h"\n',
    }
    planted = {
        "src/core/a.c": '#include "../cpu/cpu.h"\n',
        "src/core/b.c": '#include "../ref/ref.h"\n',
        "src/cpu/c.c": '#include "../core/core.h"\n',
        "src/cpu/d.c": '#include "../ref/ref.h"\n',
        "src/ref/e.c": '#include "../backend.h"\n',
        "src/ref/f.c": '#include "../cpu/cpu.h"\n',
        "src/cuda/g.c": '#include "../cpu/cpu.h"\n',
        "src/core/h.c": "#include <jansson.h>\n",
        "formats/i.c": '#include "../src/backend.h"\n',
        "formats/j.c": '#include "../engine/engine.h"\n',
        "engine/k.c": "#include <core.h>\n",
        "engine/u.c": '#include "../planner/planner.h"\n',
        "planner/v.c": '#include "../engine/engine.h"\n',
        "formats/w.c": '#include "../planner/planner.h"\n',
        "cli/l.c": "#include <backend.h>\n",
        "bench/m.c": '#include "../cli/main.c"\n',
        "src/cpu/n.c": "int f(void) { free (p); }\n",
        "src/core/o.c": "int f(void) { return x + calloc(1, 2); }\n",
        "src/core/p.c": 'int f(void) { return getenv("X"); }\n',
        "src/cpu/q.c": "int f(void) { abort(); }\n",
        "src/cpu/r.c": 'int f(void) { fprintf(stderr, "x"); }\n',
        "tests/s.c": "\n" * (LINES_MAX + 1),
        "src/core/t.c": '#include "nowhere.h"\n',
    }
    failures = []
    with tempfile.TemporaryDirectory() as root:
        for tree in (clean, planted):
            for path, text in tree.items():
                os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
                with open(os.path.join(root, path), "w", encoding="utf-8") as f:
                    f.write(text)
            found = check(root)
            if tree is clean:
                failures += [f"clean tree: {line}" for line in found]
            else:
                named = {re.split(r":", line)[0] for line in found}
                failures += [f"not found: {path}" for path in planted if path not in named]
                failures += [f"clean file named: {path}" for path in named if path not in planted]
    return failures


def main():
    if len(sys.argv) > 2 or (len(sys.argv) == 2 and sys.argv[1] in ("-h", "--help")):
        print(__doc__)
        return 2
    if sys.argv[1:] == ["--self-test"]:
        out = self_test()
    else:
        here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        out = check(sys.argv[1] if len(sys.argv) == 2 else here)
    for line in out:
        print(line)
    return 1 if out else 0


if __name__ == "__main__":
    sys.exit(main())
