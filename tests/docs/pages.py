#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""The documentation holds together: links lead somewhere, every page is reachable, commands exist. Prints TAP."""

import glob
import os
import re
import subprocess
import sys

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")


def pages():
    return ["README.md"] + sorted(os.path.relpath(p, TOP) for p in glob.glob(f"{TOP}/Documentation/**/*.md", recursive=True))


def read(name):
    with open(os.path.join(TOP, name), encoding="utf-8") as file:
        return file.read()


def links(name):
    for target in LINK.findall(read(name)):
        if not re.match(r"[a-z]+:", target):
            yield target, os.path.normpath(os.path.join(os.path.dirname(name), target))


def check_links():
    for name in pages():
        for target, path in links(name):
            if not os.path.exists(os.path.join(TOP, path)):
                yield f"{name}: links to {target}, which is not there"


def check_reachable():
    seen, todo = set(), ["README.md"]
    while todo:
        name = todo.pop()
        if name in seen or not name.endswith(".md") or not os.path.isfile(os.path.join(TOP, name)):
            continue
        seen.add(name)
        todo += [path for _, path in links(name)]
    for name in pages():
        if name not in seen:
            yield f"{name}: no page that README.md leads to links to it"


def check_paths():
    """What stands in `backquotes` and looks like a file of the tree is one."""
    for name in pages():
        for text in re.findall(r"`((?:core|lib|uapi|kmod|tools|tests|Documentation)/[A-Za-z0-9_./-]+)`", read(name)):
            # LANE and NAME stand for what the reader puts there.
            if not re.search(r"\b[A-Z]{3,}\b(?!\.)|\bNAME\b", text) and not os.path.exists(os.path.join(TOP, text)):
                yield f"{name}: names {text}, which is not there"


def check_headers():
    """Pages that the headers refer to are there."""
    for path in glob.glob(f"{TOP}/lib/include/**/*.h", recursive=True) + glob.glob(f"{TOP}/uapi/linux/*.h"):
        name = os.path.relpath(path, TOP)
        for page in re.findall(r"Documentation/[A-Za-z0-9_/-]+\.(?:md|rst)", read(name)):
            if not os.path.exists(os.path.join(TOP, page)):
                yield f"{name}: refers to {page}, which is not there"


def check_commands():
    """Commands of omnikv that the pages show have a --help."""
    program = os.path.join(os.environ.get("OMNIKV_BUILD", f"{TOP}/build"), "bin", "omnikv")
    if not os.access(program, os.X_OK):
        yield f"{os.path.relpath(program, TOP)} was not built"
        return
    commands = set()
    for name in pages():
        for words in re.findall(r"^ {4,}(?:build/bin/)?omnikv ((?:[a-z]+ ?){1,2})", read(name), re.M):
            commands.add(words.strip())
    for command in sorted(commands):
        done = subprocess.run([program] + command.split() + ["--help"], capture_output=True, check=False, timeout=20)
        if done.returncode or not done.stdout:
            yield f"omnikv {command} --help: exit status {done.returncode}"


def main():
    failed = False
    rules = [("links lead somewhere", check_links), ("every page is reachable", check_reachable),
             ("files that are named exist", check_paths),
             ("headers refer to pages that are there", check_headers), ("commands that are shown have help", check_commands)]
    for number, (title, rule) in enumerate(rules, 1):
        if rule is check_commands and not os.path.isdir(f"{TOP}/tools/omnikv"):
            print(f"ok {number} - {title} # SKIP the omnikv command is not in this tree")
            continue
        breaches = list(rule())
        failed = failed or bool(breaches)
        print(f"{'not ok' if breaches else 'ok'} {number} - {title}")
        for breach in breaches:
            print(f"# {breach}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
