# SPDX-License-Identifier: MIT
"""Describes the compiled part of the package to cffi. api.h is what of the C API is bound, glue.c what C does better."""

import os
import shlex
import subprocess

from cffi import FFI

HERE = os.path.dirname(os.path.abspath(__file__))
TREE = os.environ.get("OMNIKV_BINDINGS_TREE")


def flags(option):
    done = subprocess.run(["pkg-config", option, "omnikv"], capture_output=True, text=True, check=True)
    return shlex.split(done.stdout)


if TREE:
    # The library lies beside this module, in the tree's build directory while it is linked.
    where = {"include_dirs": [f"{TREE}/lib/include", f"{TREE}/uapi"], "libraries": ["omnikv"],
             "library_dirs": [f"{TREE}/build/lib"], "extra_link_args": ["-Wl,-rpath,$ORIGIN"]}
else:
    where = {"extra_compile_args": flags("--cflags"), "extra_link_args": flags("--libs")}

ffi = FFI()
with open(os.path.join(HERE, "api.h"), encoding="utf-8") as file:
    ffi.cdef(file.read())
with open(os.path.join(HERE, "glue.c"), encoding="utf-8") as file:
    ffi.set_source("omnikv._omnikv", file.read(), py_limited_api=True, **where)
