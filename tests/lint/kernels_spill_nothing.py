#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""The device code compiles for every GPU without warnings, spills and stack, and the page of its resources is its own. TAP."""

import os
import subprocess
import sys

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TITLES = ["the device code compiles without warnings", "no kernel spills, and the page of their resources is right"]


def run(*argv):
    done = subprocess.run(argv, cwd=TOP, capture_output=True, check=False, timeout=110)
    return done.returncode, (done.stdout + done.stderr).decode(errors="replace")


def main():
    has_nvcc = subprocess.run(["make", "-s", "print-nvcc"], cwd=TOP, capture_output=True, check=False).stdout.strip()
    if not has_nvcc:
        for number, title in enumerate(TITLES, 1):
            print(f"ok {number} - {title} # SKIP no nvcc; tools/setup takes it from Python's index")
        return 0
    status = 0
    for number, (title, argv) in enumerate(zip(TITLES, [["make", "-s", "build/kernels/kernels.fatbin"],
                                                        ["Documentation/performance/kernel-resources", "--check"]]), 1):
        code, text = run(*argv)
        print(f"{'ok' if code == 0 else 'not ok'} {number} - {title}")
        if code:
            status = 1
            for line in text.splitlines():
                print(f"# {line}")
    return status


sys.exit(main())
