#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""The page of performance figures is what its results and reasons make. Prints TAP."""

import os
import subprocess
import sys

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def main():
    done = subprocess.run([sys.executable, os.path.join(TOP, "Documentation", "performance", "generate"), "--check"],
                          capture_output=True, check=False, timeout=20)
    print(f"{'ok' if done.returncode == 0 else 'not ok'} 1 - the page of figures is what its results make")
    for line in done.stderr.decode().splitlines():
        print(f"# {line}")
    return done.returncode != 0


sys.exit(main())
