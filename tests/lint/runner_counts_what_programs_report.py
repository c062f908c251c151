#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""The runner sees every way in which a test program can fail, and says what the failed test said. Prints TAP.

Each case is a shell script that stands for a test program, and the outcomes that it must be
counted as, worked out by hand from the contract in Documentation/developers/testing.md; or what
such a program left in a guest, and what the runners of guests must tell of it.
"""

import argparse
import contextlib
import io
import os
import subprocess
import sys
import tempfile
import time

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.dont_write_bytecode = True
sys.path.insert(0, f"{TOP}/tests/harness")
import run  # noqa: E402

CMOCKA = r"""
echo '[==========] Running 3 test(s).'
echo '[ RUN      ] one'; echo '[       OK ] one'
echo '[ RUN      ] two'; echo 'no data'; echo '[  SKIPPED ] two'
"""

# title, script, (passed, failed, skipped)
CASES = [
    ("cmocka: passed and skipped", CMOCKA + "exit 0", (1, 0, 1)),
    ("cmocka: a failure is counted once, though the summary repeats it",
     CMOCKA + "echo '[ RUN      ] bad'; echo '[  FAILED  ] bad'; echo '[  FAILED  ] 1 test(s), listed below:';"
              "echo '[  FAILED  ] bad'; exit 1", (1, 1, 1)),
    ("cmocka: ended inside a test", CMOCKA + "echo '[ RUN      ] bad'; kill -9 $$", (1, 1, 1)),
    ("cmocka: a sanitizer's exit status after good tests", CMOCKA + "exit 23", (1, 1, 1)),
    ("cmocka: hangs", CMOCKA + "echo '[ RUN      ] slow'; sleep 60", (1, 2, 1)),
    ("TAP", "echo 'ok 1 - a'; echo 'not ok 2 - b'; echo 'ok 3 - c # SKIP no disk'; exit 1", (1, 1, 1)),
    ("TAP: good lines, bad exit status", "echo 'ok 1 - a'; exit 1", (1, 1, 0)),
    ("a summary", "echo noise; echo '7 passed, 0 failed, 2 skipped'", (7, 0, 2)),
    ("a summary that hides a failure", "echo '7 passed, 0 failed, 0 skipped'; exit 1", (7, 1, 0)),
    ("exit status 0", "exit 0", (1, 0, 0)),
    ("exit status 1", "exit 1", (0, 1, 0)),
    ("exit status 4", "echo 'no GPU'; exit 4", (0, 0, 1)),
    ("killed", "kill -11 $$", (0, 1, 0)),
    ("hangs, with a child that holds its output", "sleep 60 & sleep 60", (0, 1, 0)),
]

# What a failed test said must be beside its name, also where much follows in the log.
SAYS = ("echo 'ok 1 - a'; echo '# of a'; echo 'not ok 2 - b'; echo '# b.c:7: expected 1'; echo '# step 3';"
        "echo 'ok 3 - c'; echo '# of c'; seq 100; exit 1")
SAID = "FAILED lint-runner: case: b: b.c:7: expected 1\n    | step 3\n"

# title, output in the guest, exit status there, what is told of it
TOLD = [
    ("the kernel's harness says it before the result",
     "1..3\n# Starting 3 tests from 1 test cases.\n#  RUN           f.one ...\n#            OK  f.one\nok 1 f.one\n"
     "#  RUN           f.two ...\n# f.c:7:two:Expected 1 (1) == 2 (2)\n# two: Test failed at step #3\n"
     "#          FAIL  f.two\nnot ok 2 f.two\n#  RUN           f.three ...\n#            OK  f.three\nok 3 f.three\n", 1,
     "ok 1 - 6.1 t: f.one\nnot ok 2 - 6.1 t: f.two\n# f.c:7:two:Expected 1 (1) == 2 (2)\n"
     "# two: Test failed at step #3\nok 3 - 6.1 t: f.three\n1..3\n"),
    ("cmocka says it behind the result",
     "1..2\nnot ok 1 - one\n# 0x1 != 0x2\n# t.c:8: error: Failure!\nok 2 - two\n", 1,
     "not ok 1 - 6.1 t: one\n# 0x1 != 0x2\n# t.c:8: error: Failure!\nok 2 - 6.1 t: two\n1..2\n"),
    ("a program that is killed was in some test",
     "1..2\nok 1 f.one\n#  RUN           f.two ...\n# f.c:9: waits\n", 137,
     "ok 1 - 6.1 t: f.one\nnot ok 2 - 6.1 t: ends well (exit status 137)\n# ended in f.two\n"
     "# f.c:9: waits\n1..2\n"),
    ("a result that was announced is missing", "1..2\nok 1 - one\n", 0,
     "ok 1 - 6.1 t: one\nnot ok 2 - 6.1 t: ends well (exit status 0)\n1..2\n"),
    ("skipped, and a note of a test that passed", "1..2\n#  RUN           f.one ...\nok 1 # SKIP no disk\n# 7 MB/s\nok 2 - two\n", 0,
     "ok 1 - 6.1 t: f.one # SKIP no disk\nok 2 - 6.1 t: two\n# 7 MB/s\n1..2\n"),
]


def told_of(text, status):
    with tempfile.TemporaryDirectory() as out:
        for name, content in (("tap/t.tap", text), ("status/t", f"{status}\n"), ("splat/t", "")):
            os.makedirs(os.path.dirname(f"{out}/{name}"), exist_ok=True)
            with open(f"{out}/{name}", "w") as file:
                file.write(content)
        script = f". {TOP}/tests/harness/guest_results; tell 6.1 {out} t; finish"
        return subprocess.run(["bash", "-uc", script], capture_output=True, text=True, check=False).stdout


def output_of(script):
    """The counts, and what was printed."""
    session = run.Session(argparse.Namespace(full=False, test=None, variant=None))
    session.lane = "lint-runner"
    session.lane_end = time.monotonic() + 1
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        session.program("case", ["/bin/sh", "-c", script], timeout=1)
    return tuple(session.counts(session.outcomes)), printed.getvalue()


def main():
    results = [(title, output_of(script)[0], expected) for title, script, expected in CASES]
    said = output_of(SAYS)[1]
    results.append(("what a failed test said stands beside its name", said[:len(SAID)], SAID))
    results += [(f"in a guest: {title}", told_of(text, status), expected) for title, text, status, expected in TOLD]
    for number, (title, found, expected) in enumerate(results, 1):
        print(f"{'ok' if found == expected else 'not ok'} {number} - {title}")
        if found != expected:
            print(f"# found {found!r}, expected {expected!r}")
    return 1 if any(found != expected for _, found, expected in results) else 0


if __name__ == "__main__":
    sys.exit(main())
