#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""omnikv device: what there is to compute on, in words and as JSON; no GPU is no failure."""

import json
import os
import subprocess

import cli

BUILD = os.environ["OMNIKV_BUILD"]


def run(*args, driver="/there/is/no/driver.so"):
    done = subprocess.run([os.path.join(BUILD, "bin", "omnikv"), "device"] + list(args), check=False, capture_output=True,
                          timeout=60, env=dict(os.environ, OMNIKV_CUDA_DRIVER=driver))
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def without_a_gpu_the_reason_is_given():
    status, out, _ = run()
    cli.equal(status, 0, "exit status")
    for word in ("host", "sim:kernels", "no GPU: GPU unavailable: /there/is/no/driver.so", "GPU code: "):
        if word not in out:
            raise AssertionError(f"no {word!r} in {out}")
    found = json.loads(run("--json")[1])
    cli.equal(found["gpus"], [], "gpus")
    cli.equal(found["devices"], ["host", "sim", "sim:kernels"], "devices")
    if "/there/is/no/driver.so" not in found["why_no_gpu"] or not found["gpu_code"]:
        raise AssertionError(found)


def gpus_are_listed():
    subprocess.run(["make", "-s", "-C", os.environ["OMNIKV_TOP"], "build/lib/libfake-cuda.so"], check=True, timeout=300)
    status, out, _ = run("--json", driver=os.path.join(BUILD, "lib", "libfake-cuda.so"))
    cli.equal(status, 0, "exit status")
    found = json.loads(out)
    if not found["gpus"] or found["gpus"][0]["name"] != "cuda:0" or "why_no_gpu" in found:
        raise AssertionError(found)


def mistakes_are_usage():
    cli.equal(run("--jsn")[0], 2, "exit status")
    cli.equal(run("all")[0], 2, "exit status")


cli.main([without_a_gpu_the_reason_is_given, gpus_are_listed, mistakes_are_usage])
