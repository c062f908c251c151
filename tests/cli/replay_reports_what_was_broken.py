#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Faults put in on purpose: a flipped byte is reported, failed transfers are recovered from."""

import errno
import os

import cli

FAST = "--as-fast-as-possible"


def a_flipped_byte_is_reported():
    for nth in ("flip", "flip:1", "flip:700"):
        done = cli.replay("--workload", "chat", "--pool", "256M", FAST, "--inject", nth)
        found = cli.fields(done, status=1, injected=1, leaked_bytes=0, check="ok", checksum_errors=0)
        # It stays in the pool: each later hit of the block reads it again.
        if found["wrong_bytes"] < 1:
            raise AssertionError(f"wrong_bytes is {found['wrong_bytes']}")
        for word in ("block", "layer", "byte", "request"):
            if word not in found["first_wrong"]:
                raise AssertionError(f"first_wrong is {found['first_wrong']}")
        if "wrong bytes" not in done.err:
            raise AssertionError(str(done))


def checksums_find_it_too():
    found = cli.fields(cli.replay("--workload", "chat", "--pool", "256M", "--requests", 60, FAST, "--inject", "flip",
                                  "--verify-checksums"), status=1, injected=1, leaked_bytes=0, check="ok")
    if found["wrong_bytes"] < 1 or found["checksum_errors"] < 1 or found["steps_recomputed"] < 1:
        raise AssertionError(f"{found['wrong_bytes']} wrong bytes, {found['checksum_errors']} checksum errors, "
                             f"{found['steps_recomputed']} steps recomputed")


def a_flip_that_nothing_loads_is_no_success():
    done = cli.replay("--workload", "chat", "--requests", 1, "--pool", "256M", FAST, "--inject", "flip")
    cli.equal(done.status, 1, "the exit status", done)
    if "nothing was flipped" not in done.err:
        raise AssertionError(str(done))


def failed_transfers_are_recovered_from():
    for mode in ([FAST], []):
        found = cli.clean(cli.replay("--workload", "chat", "--pool", "256M", "--inject", "fail:5000", *mode))
        if not found["transfers_failed"] or not found["steps_recomputed"]:
            raise AssertionError(f"{found['transfers_failed']} transfers failed")
        if mode:
            cli.equal(found["blocks_hit"], 1984, "blocks_hit")


def a_model_with_state_goes_on_from_a_checkpoint():
    model = ["--workload", "agent", "--requests", 40, "--model", "qwen3-next-80b-a3b", "--scale", 2048, "--pool", "256M"]
    found = cli.fields(cli.replay(*model, "--inject", "flip:1", "--verify-checksums"), status=1, injected=1, wrong_bytes=1,
                       checksum_errors=1, requests_failed=0, steps_recomputed=1, leaked_bytes=0, check="ok")
    if found["tokens_hit"] == 0:
        raise AssertionError("nothing was hit")
    for more in (["--inject", "fail:2000"], ["--inject", "fail:2000", FAST]):
        found = cli.clean(cli.replay(*model, *more))
        if not found["transfers_failed"] or not found["steps_recomputed"]:
            raise AssertionError(f"{found['transfers_failed']} transfers failed")


def failures_under_pressure_and_out_of_order():
    found = cli.clean(cli.replay("--workload", "agent", "--pool", "16M", "--inject", "fail:3000", "--shuffle",
                                 "--verify-checksums", "--requests", 120))
    if not found["transfers_failed"]:
        raise AssertionError("no transfer failed")


def instrumented(points, *args):
    """A replay by the sanitizers' build, in which fail-points exist."""
    cli.need(os.path.exists(cli.ASAN), "build/asan is not built")
    return cli.replay("--workload", "chat", "--requests", 60, "--pool", "64M", *args, program=cli.ASAN,
                      env={"OMNIKV_FAILPOINTS": points})


def blocks_that_vanish_between_lookup_and_load_are_computed_again():
    # The pool says -ESTALE to five transfers; what the kernel then sees in the device must not count.
    for mode in ([FAST], []):
        found = cli.clean(instrumented(f"pool.io_get:nth=40:times=5:error={errno.ESTALE}", *mode), requests=60)
        if not found["steps_recomputed"]:
            raise AssertionError("no step was done again")


def what_cannot_be_recovered_from_ends_the_run_in_one_line():
    for points in (f"commit.seal:nth=30:error={errno.ENOMEM}", f"sequence.append:nth=9:times=1:error={errno.ENOMEM}"):
        done = instrumented(points, FAST)
        cli.equal(done.status, 1, "the exit status", done)
        cli.equal(done.out, "", "standard output", done)
        lines = [line for line in done.err.splitlines() if "uses 4-KiB pages" not in line]
        cli.equal(len(lines), 1, "lines on standard error", done)


cli.main([a_flipped_byte_is_reported, checksums_find_it_too, a_flip_that_nothing_loads_is_no_success,
          failed_transfers_are_recovered_from,
          a_model_with_state_goes_on_from_a_checkpoint, failures_under_pressure_and_out_of_order,
          blocks_that_vanish_between_lookup_and_load_are_computed_again,
          what_cannot_be_recovered_from_ends_the_run_in_one_line])
