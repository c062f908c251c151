#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""The runner sees every way in which a test program can fail. Prints TAP.

Each case is a shell script that stands for a test program, and the outcomes that it must be
counted as, worked out by hand from the contract in Documentation/developers/testing.md.
"""

import argparse
import contextlib
import io
import os
import sys
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


def counts_of(script):
    session = run.Session(argparse.Namespace(full=False, test=None, variant=None))
    session.lane = "lint-runner"
    session.lane_end = time.monotonic() + 1
    with contextlib.redirect_stdout(io.StringIO()):
        session.program("case", ["/bin/sh", "-c", script], timeout=1)
    return tuple(session.counts(session.outcomes))


def main():
    failed = False
    for number, (title, script, expected) in enumerate(CASES, 1):
        found = counts_of(script)
        failed = failed or found != expected
        print(f"{'ok' if found == expected else 'not ok'} {number} - {title}")
        if found != expected:
            print(f"# counted {found}, expected {expected}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
