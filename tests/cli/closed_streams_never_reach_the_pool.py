#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""With closed or full standard streams: no printed text in a pool or a store, and no success without a result."""

import os
import shlex
import subprocess

import cli

REPLAY = ("replay", "--workload", "chat", "--requests", "10", "--as-fast-as-possible")


def shell(*args, tail="", program=cli.OMNIKV):
    """As a shell runs it, with redirections behind: (exit status, standard error)."""
    line = shlex.join([program, *map(str, args)]) + " " + tail
    done = subprocess.run(["sh", "-c", line], capture_output=True, timeout=120, check=False)
    return done.returncode, done.stderr.decode(errors="replace")


def no_text_in(path):
    with open(path, "rb") as file:
        content = file.read()
    for word in (b"requests", b"omnikv:", b"omnikv replay:", b"hit_ratio"):
        if word in content:
            raise AssertionError(f"{path} has {word!r} at byte {content.index(word)}")


def pool_file_has_no_printed_text_when_streams_are_closed():
    for tail in (">&-", ">&- 2>&-", "<&- >&- 2>&-", "<&- 2>&-"):
        with cli.temporary() as top:
            pool, store = os.path.join(top, "pool"), os.path.join(top, "store")
            status, _ = shell(*REPLAY, "--json", "--pool", f"embedded:8M:{pool}", "--spill", store,
                              "--spill-size", "64M", tail=tail)
            # What was closed cannot be written to.
            cli.equal(status, 0 if tail == "<&- 2>&-" else 1, f"the exit status with {tail}")
            no_text_in(pool)
            no_text_in(os.path.join(store, "omnikv.spill"))
            again = cli.replay(*REPLAY[1:], "--pool", f"embedded:8M:{pool}")
            cli.clean(again)


def results_that_cannot_be_written_are_failures():
    for args in (("--help",), ("--version",), ("plan", "--list"), ("plan", "--help"), (*REPLAY, "--pool", "8M"),
                 (*REPLAY, "--pool", "8M", "--json")):
        for tail, word in ((">&-", "Bad file descriptor"), (">/dev/full", "No space left on device")):
            status, err = shell(*args, tail=tail)
            what = f"{' '.join(args)} {tail}"
            cli.equal(status, 1, f"the exit status of {what}")
            # Without huge pages the pool has a line of its own.
            lines = [line for line in err.splitlines() if "4-KiB pages" not in line]
            if len(lines) != 1 or not lines[0].startswith("omnikv") or word not in lines[0]:
                raise AssertionError(f"{what} says {err!r}")


def wrong_usage_stays_wrong_usage_without_an_output():
    cli.equal(shell("--nonsense", tail=">&-")[0], 2, "the exit status")


if __name__ == "__main__":
    cli.main([pool_file_has_no_printed_text_when_streams_are_closed, results_that_cannot_be_written_are_failures,
              wrong_usage_stays_wrong_usage_without_an_output])
