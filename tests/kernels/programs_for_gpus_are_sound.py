#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""What tests/gpu/run takes to a GPU works, as far as that shows without one. Prints TAP.

The checks run the device code on the CPU; rows run over the tests' driver, whose figures mean nothing and are thrown away.
"""

import json
import os
import subprocess
import sys
import tempfile

TOP = os.environ["OMNIKV_TOP"]
BUILD = os.environ["OMNIKV_BUILD"]
FAKE = os.path.join(BUILD, "lib", "libfake-cuda.so")


def program(name, *args, **env):
    argv = [os.path.join(BUILD, "tests", "gpu", name)] + list(args)
    done = subprocess.run(argv, env=dict(os.environ, **env), capture_output=True, check=False, timeout=100)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def checks_pass_on_the_cpu():
    status, out, err = program("check_kernels", "1", "40", str(1 << 20), OMNIKV_GPU_DRY="1")
    if status == 4:
        return out.strip()
    assert status == 0, err
    assert json.loads(out)["cases"] == 40, out
    return None


def wrong_calls_are_refused():
    for args in ((), ("2", "1"), ("1", "2", "1000")):
        assert program("check_kernels", *args)[0] == 2, args
    for args in ((), ("run",), ("run", "X1-h2d-577"), ("walk", "X2-576")):
        assert program("measure_rows", *args, OMNIKV_CUDA_DRIVER=FAKE, OMNIKV_GPU_MIB="16")[0] == 2, args


def rows_print_results():
    names = program("measure_rows", "list")[1].split()
    assert len(names) > 20 and len(set(names)) == len(names), names
    for name in ("X1-h2d-4096", "X1-d2h-576", "X2-4096", "X7-2m", "ring-h2d-4096"):
        assert name in names, name
        status, out, err = program("measure_rows", "run", name, OMNIKV_CUDA_DRIVER=FAKE, OMNIKV_GPU_MIB="16")
        if status == 4 and "nvcc" in out:
            return out.strip()
        assert status == 0, f"{name}: {out}{err}"
        for line in out.splitlines():
            row = json.loads(line)
            assert row["row"] in ("X1", "X2", "X7") and row["figures"] and row["ours"] > 0, line
    return None


def there_is_a_table_of_everything():
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "results.json")
        env = dict(os.environ, OMNIKV_CUDA_DRIVER=FAKE, OMNIKV_GPU_MIB="16")

        def run(command, *more):
            argv = [sys.executable, os.path.join(TOP, "tests", "gpu", "run"), command, "--results", path] + list(more)
            return subprocess.run(argv, env=env, capture_output=True, check=False, timeout=600)

        # Out of time at once, then a row or two, with what was measured kept.
        done = run("measure", "--budget", "0")
        if done.returncode == 4:
            return done.stdout.decode().strip()
        assert done.returncode == 3, done
        done = run("measure", "--budget", "17")
        assert done.returncode in (0, 1, 3), done
        with open(path, encoding="utf-8") as file:
            first = json.load(file)
        assert first["rows"], first
        assert first["driver"].startswith("NOT A GPU"), first["driver"]
        done = run("measure", "--budget", "0")
        with open(path, encoding="utf-8") as file:
            assert json.load(file)["rows"] == first["rows"]
        done = run("summarise")
        assert done.returncode == 0 and b"| X1 | H2D 576 B" in done.stdout, done
        assert os.path.exists(os.path.join(directory, "results.md"))
    return None


def without_a_driver_it_skips_by_name():
    done = subprocess.run([sys.executable, os.path.join(TOP, "tests", "gpu", "run")], capture_output=True, check=False, timeout=600,
                          env=dict(os.environ, OMNIKV_CUDA_DRIVER="/there/is/no/driver.so"))
    assert done.returncode == 4, done
    assert done.stdout.startswith(b"gpu: "), done.stdout


def main():
    failed = 0
    for number, test in enumerate([checks_pass_on_the_cpu, wrong_calls_are_refused, rows_print_results,
                                   there_is_a_table_of_everything, without_a_driver_it_skips_by_name], 1):
        try:
            why = test()
            print(f"ok {number} - {test.__name__.replace('_', ' ')}" + (f" # SKIP {why}" if why else ""))
        except (AssertionError, subprocess.TimeoutExpired) as error:
            failed += 1
            print(f"not ok {number} - {test.__name__.replace('_', ' ')}")
            print("# " + str(error).replace("\n", "\n# "))
    return 1 if failed else 0


sys.exit(main())
