# SPDX-License-Identifier: GPL-2.0-only
"""Runs pytest in an environment of its own for a lane, and reports by TAP. Standard library only."""

import os
import subprocess

import environments

TOP = environments.TOP


def run(title, name, steps, paths, arguments=(), env=None):
    """Exit status. What cannot be installed is a skip with the reason; our own package not installing is a failure."""
    try:
        python = environments.ensure(name, steps)
    except environments.Missing as why:
        if "./lib/python" in str(why):
            print(f"not ok - {title}\n# {why}")
            return 1
        print(f"ok - {title} # SKIP {why}", flush=True)
        return 0
    return subprocess.run([python, "-m", "pytest", "-p", "pytest_tap", "-p", "no:cacheprovider", *paths, *arguments], cwd=TOP,
                          env=dict(os.environ, PYTHONPATH=os.path.dirname(os.path.abspath(__file__)),
                                   PYTHONPYCACHEPREFIX=os.path.join(TOP, "build", "pycache"), **(env or {})), check=False).returncode
