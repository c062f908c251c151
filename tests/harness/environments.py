# SPDX-License-Identifier: GPL-2.0-only
"""Virtual environments below build/ that the Python lanes run in. Standard library only.

An environment is made once for a list of requirements and kept; the package of this tree is put into it anew whenever its
sources or the C library changed.
"""

import glob
import hashlib
import os
import shutil
import subprocess
import sys

TOP = os.environ.get("OMNIKV_TOP") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Missing(Exception):
    """The environment cannot be had here; its text is the reason."""


def _run(argv, timeout, what):
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=timeout, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise Missing(f"{what}: not done after {timeout} s") from None
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).strip().splitlines() if line.strip()]
        told = [line for line in lines if line.lstrip().lower().startswith("error")] or lines[-1:]
        raise Missing(f"{what}: {told[0].strip() if told else 'no output'}")


def _stamp(path, text):
    """Is this what was done last time? Returns a function that says that it is done now."""
    try:
        with open(path, encoding="utf-8") as file:
            same = file.read() == text
    except OSError:
        same = False

    def done():
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    return same, done


def _digest(paths):
    total = hashlib.sha256()
    for path in sorted(paths):
        total.update(path.encode())
        with open(path, "rb") as file:
            total.update(file.read())
    return total.hexdigest()


def ensure(name, steps, timeout=900):
    """Path of the Python of environment @name, with the package of this tree in it.

    @steps: lists of arguments of "pip install", one after another. Missing says why it cannot be had.
    """
    where = os.path.join(TOP, "build", f"venv-{name}")
    python = os.path.join(where, "bin", "python")
    same, done = _stamp(os.path.join(where, "requirements.stamp"), repr((sys.version, steps)))
    if not same:
        shutil.rmtree(where, ignore_errors=True)
        _run([sys.executable, "-m", "venv", where], 120, "python3 -m venv")
        for step in steps:
            _run([python, "-m", "pip", "install", "-q", "--no-compile", "--disable-pip-version-check", *step], timeout,
                 f"pip install {' '.join(step)}"[:120])
        done()
    sources = [p for pattern in ("lib/python/*.py", "lib/python/*.toml", "lib/python/native/*.[hcp]*", "lib/python/omnikv/*.py", "lib/include/omnikv/*.h",
                                 "build/lib/libomnikv.so.*") for p in glob.glob(os.path.join(TOP, pattern))]
    same, done = _stamp(os.path.join(where, "omnikv.stamp"), _digest(sources))
    if not same:
        _run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--force-reinstall", "--no-deps",
              os.path.join(TOP, "lib", "python")], 300, "pip install ./lib/python")
        done()
    return python
