# SPDX-License-Identifier: MIT
"""Builds the wheel. Inside the source tree the C library is built and goes into the wheel, so that nothing else has to
be installed; elsewhere, or with OMNIKV_SYSTEM=1, the installed one is used that pkg-config finds."""

import os
import re
import shutil
import subprocess
import sys

from setuptools import setup
from setuptools.command.build_py import build_py

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
in_tree = os.path.exists(os.path.join(TOP, "lib", "omnikv.map")) and not os.environ.get("OMNIKV_SYSTEM")
os.chdir(HERE)
sys.path.insert(0, os.path.join(HERE, "native"))


def version():
    if not in_tree:
        done = subprocess.run(["pkg-config", "--modversion", "omnikv"], capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit("omnikv: no C library found: build the wheel inside the source tree, or install the library "
                             "(make install) so that pkg-config finds omnikv")
        return done.stdout.strip()
    with open(os.path.join(TOP, "lib", "include", "omnikv", "version.h"), encoding="utf-8") as file:
        return re.search(r'OMNIKV_VERSION\s+"([^"]+)"', file.read()).group(1)


def build_library():
    """The shared library of this tree, built by its own Makefile."""
    done = subprocess.run(["make", "-s", "-C", TOP, "-j", str(os.cpu_count() or 1), "build/lib/libomnikv.so"],
                          capture_output=True, text=True, check=False, env={k: v for k, v in os.environ.items() if k != "MAKEFLAGS"})
    if done.returncode:
        raise SystemExit(f"omnikv: the C library was not built: {(done.stderr or done.stdout).strip()[-2000:]}")
    return os.path.realpath(os.path.join(TOP, "build", "lib", "libomnikv.so"))


class build_py_with_library(build_py):
    """Puts the library beside the package's modules, where the bindings look for it first."""

    def run(self):
        super().run()
        if in_tree and not getattr(self, "editable_mode", False):
            shutil.copy(library, os.path.join(self.build_lib, "omnikv", os.path.basename(library)))


library = build_library() if in_tree else None
if in_tree:
    os.environ["OMNIKV_BINDINGS_TREE"] = TOP
setup(version=version(), cffi_modules=["native/bindings.py:ffi"], cmdclass={"build_py": build_py_with_library},
      options={"bdist_wheel": {"py_limited_api": "cp39"}})
