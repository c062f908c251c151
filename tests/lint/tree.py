#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Rules that every file of the tree keeps. Prints TAP, one test a rule, each breach on a line of its own."""

import os
import re
import subprocess
import sys

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# Licence by folder; other files carry any licence whose text is in LICENSES.
LICENCES = {
    "kmod": "GPL-2.0-only",
    "uapi": "GPL-2.0-only WITH Linux-syscall-note",
    "core": "GPL-2.0-only OR MIT",
    "lib": "MIT",
    "kernels": "MIT",
    "tools": "GPL-2.0-only",
    "tests": "GPL-2.0-only",
}
# Files whose format has no comments, or whose bytes are the test.
NO_SPDX = re.compile(r"^LICENSES/|^tests/fuzz/corpus/|\.(json|jsonl|csv|abi|svg|png|txt|bin)$")

# What each folder may include, itself apart. tools -> lib -> {uapi, core} <- kmod, lib -> kernels.
ARROWS = {
    "tools": {"lib", "uapi", "core"},
    "lib": {"uapi", "core", "kernels"},
    "core": {"uapi"},
    "uapi": set(),
    "kmod": {"uapi", "core"},
    "kernels": {"uapi", "core"},
}
SEARCH = ["lib/include", "uapi", "lib", ""]
# core is compiled into the kernel too, whose own headers its types.h chooses.
CORE_SYSTEM = {"stdint.h", "stddef.h", "stdbool.h", "string.h", "limits.h", "errno.h"}

# Written so that this file does not hold what it looks for.
PRIVATE = re.compile(r"/wor[k]/|/far[m]/|/hom[e]/[a-z]|/roo[t]/|[.]librar[y]|\b(?:de[b]|securit[y])[.]debian|pyp[i][.]org|npmj[s][.]|"
                     r"\b(?:10|192[.]168)(?:[.]\d{1,3}){2,3}\b")


def tracked():
    """Text files of the tree: what git tracks or would, else everything outside build/."""
    done = subprocess.run(["git", "-c", f"safe.directory={TOP}", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                          cwd=TOP, capture_output=True, check=False) if os.path.exists(f"{TOP}/.git") else None
    if done and done.returncode == 0:
        names = [n for n in done.stdout.decode().split("\0") if n]
    else:
        names = [os.path.relpath(os.path.join(d, f), TOP) for d, _, files in os.walk(TOP) for f in files]
        names = [n for n in names if not n.startswith(("build/", ".git/")) and "__pycache__" not in n]
    found = {}
    for name in sorted(set(names)):
        path = os.path.join(TOP, name)
        if os.path.islink(path) or not os.path.isfile(path):
            continue
        with open(path, "rb") as file:
            data = file.read()
        if b"\0" not in data[:8192]:
            found[name] = data.decode(errors="replace")
    return found


def folder(name):
    return name.split("/", 1)[0] if "/" in name else ""


def is_c(name):
    return name.endswith((".c", ".h", ".cu", ".cuh"))


def check_spdx(files):
    known = os.listdir(f"{TOP}/LICENSES")
    for name, text in files.items():
        if NO_SPDX.search(name):
            continue
        head = "\n".join(text.splitlines()[:4])
        m = re.search(r"SPDX-License-Identifier: (.+?)\s*(?:\*/|-->|$)", head, re.M)
        if not m:
            yield f"{name}: no SPDX-License-Identifier in its first four lines"
            continue
        licence = m.group(1)
        expected = LICENCES.get(folder(name))
        if expected and licence != expected and is_c(name):
            yield f"{name}: is {licence}, files of {folder(name)}/ are {expected}"
        for word in re.split(r" (?:OR|AND|WITH) ", licence):
            if word not in known:
                yield f"{name}: LICENSES has no text of {word}"


def resolve(name, target, is_quoted):
    """Path inside the tree of what an #include names, or None where it is the system's."""
    places = ([os.path.dirname(name)] if is_quoted else []) + SEARCH
    for place in places:
        path = os.path.normpath(os.path.join(place, target))
        if os.path.isfile(os.path.join(TOP, path)):
            return path
    return None


def includes(files):
    for name, text in files.items():
        if not is_c(name):
            continue
        for number, line in enumerate(text.splitlines(), 1):
            m = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
            if m:
                yield name, number, m.group(2), resolve(name, m.group(2), m.group(1) == '"')


def check_arrows(files):
    for name, number, target, path in includes(files):
        here = folder(name)
        if here not in ARROWS:
            continue
        if path is None:
            if here == "core" and target not in CORE_SYSTEM and not target.startswith(("linux/", "asm/")):
                yield f"{name}:{number}: core includes <{target}>, which the kernel does not have"
            continue
        there = folder(path)
        if there != here and there not in ARROWS[here]:
            yield f"{name}:{number}: {here} includes {path}, against the arrow"
        if name.startswith("lib/include/") and not path.startswith(("lib/include/", "uapi/")):
            yield f"{name}:{number}: a public header includes {path}, which is not installed"


def check_private(files):
    for name, text in files.items():
        for number, line in enumerate(text.splitlines(), 1):
            m = PRIVATE.search(line)
            if m and not name.startswith("LICENSES/"):
                yield f"{name}:{number}: names a path or host of one machine: {m.group(0)}"


def check_comments(files):
    for name, text in files.items():
        if not is_c(name) or name.startswith("tests/fuzz/corpus/"):
            continue
        m = re.match(r"(?://[^\n]*|/\*[^\n]*\*/)\n/\*(.*?)\*/", text, re.S)
        if not m or len(m.group(1).strip().splitlines()) < 2:
            yield f"{name}: does not open with a comment that says what it owns"


def check_space(files):
    for name, text in files.items():
        if NO_SPDX.search(name):
            continue
        if text and not text.endswith("\n"):
            yield f"{name}: no newline at its end"
        for number, line in enumerate(text.splitlines(), 1):
            if line != line.rstrip() and not name.endswith(".md"):
                yield f"{name}:{number}: space at the end of the line"
            if is_c(name) and re.match(r" {8,}\S", line):
                yield f"{name}:{number}: indented with spaces"


def check_typedefs(files):
    for name, text in files.items():
        if folder(name) not in ("core", "uapi", "lib", "tools", "kmod") or not is_c(name) or name == "core/types.h":
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if re.match(r"\s*typedef\b", line) and "(*" not in line:
                yield f"{name}:{number}: a typedef that is not of a callback"


def check_names(files):
    """What the public headers export or define begins with omnikv_ or OMNIKV_."""
    for name, text in files.items():
        if not name.startswith(("lib/include/", "uapi/")) or not name.endswith(".h"):
            continue
        for number, line in enumerate(text.splitlines(), 1):
            m = re.match(r"#\s*define\s+(\w+)", line) or re.match(r"(?:struct|union|enum)\s+(\w+)\s*\{", line) or \
                re.match(r"OMNIKV_API\b.*?(\w+)\(", line)
            if m and not m.group(1).lower().startswith(("omnikv_", "_uapi_linux_omnikv", "__omnikv_", "_linux_omnikv")):
                yield f"{name}:{number}: {m.group(1)} does not begin with omnikv_"


def check_version(files):
    header = files["lib/include/omnikv/version.h"]
    parts = [re.search(rf"VERSION_{p}\s+(\d+)", header).group(1) for p in ("MAJOR", "MINOR", "PATCH")]
    version = ".".join(parts)
    if f'"{version}"' not in header:
        yield f"lib/include/omnikv/version.h: OMNIKV_VERSION is not \"{version}\""
    if not re.search(rf"^OMNIKV_{parts[0]}\.{parts[1]} \{{", files["lib/omnikv.map"], re.M):
        yield f"lib/omnikv.map: no node OMNIKV_{parts[0]}.{parts[1]}"
    newest = re.search(r"^(\d+\.\d+\.\d+)", files["Documentation/changes.rst"], re.M)
    if not newest or newest.group(1) != version:
        yield f"Documentation/changes.rst: does not begin with {version}"


def check_entry(files):
    for name in ("README.md", ".clang-format", "Documentation/index.md"):
        if name not in files:
            yield f"{name}: missing"
    for name in ("tools/demo", "tools/setup", "tests/all", ".ci/run"):
        if not os.access(os.path.join(TOP, name), os.X_OK):
            yield f"{name}: missing, or not executable"


RULES = [
    ("every file names its licence", check_spdx),
    ("nothing includes against an arrow", check_arrows),
    ("no path or host of one machine in the tree", check_private),
    ("C files open with a comment", check_comments),
    ("no stray white space", check_space),
    ("typedefs only of callbacks", check_typedefs),
    ("public names begin with omnikv", check_names),
    ("version, export map and changes agree", check_version),
    ("entry points are there", check_entry),
]


def main():
    files = tracked()
    failed = 0
    for number, (title, rule) in enumerate(RULES, 1):
        breaches = list(rule(files))
        failed += bool(breaches)
        print(f"{'not ok' if breaches else 'ok'} {number} - {title}")
        for breach in breaches:
            print(f"# {breach}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
