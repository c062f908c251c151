#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Processes over one omnikvd hit what a single process hits, byte for byte; mistakes in asking for it are said."""

import os
import subprocess
import tempfile
import time

import cli

FAST = "--as-fast-as-possible"
FEW = ("--pool", "128M", FAST)


def sums_are_those_of_one_process():
    for workload in ("chat", "agent"):
        alone = cli.clean(cli.replay("--workload", workload, *FEW))
        for clients in (1, 3):
            found = cli.clean(cli.replay("--workload", workload, *FEW, "--daemon", "--clients", clients))
            for name in ("requests", "blocks_referenced", "blocks_hit", "tokens_hit", "blocks_committed"):
                cli.equal(found[name], alone[name], f"{workload}, {clients} processes: {name}")
            cli.equal(found["daemon"]["clients"], clients, "clients")
            cli.equal(found["daemon"]["blocks_published"], alone["blocks_committed"], "blocks_published")
            cli.equal(found["daemon"]["leased_blocks"], 0, "leased_blocks")
            cli.equal(found["daemon"]["quarantined_bytes"], 0, "quarantined_bytes")


def conversations_by_four():
    found = cli.clean(cli.replay("--trace", cli.data("traces/conversation_trace.jsonl"), "--requests", 3000, "--pool", "1G",
                                 "--daemon", "--clients", 4))
    alone = cli.clean(cli.replay("--trace", cli.data("traces/conversation_trace.jsonl"), "--requests", 3000, "--pool", "1G",
                                 FAST))
    cli.equal(found["blocks_hit"], alone["blocks_hit"], "blocks_hit")


def what_a_daemon_spills_is_hit_and_counted():
    args = ("--workload", "chat", FAST, "--clients", 2)
    with tempfile.TemporaryDirectory() as place:
        socket, store = os.path.join(place, "socket"), os.path.join(place, "store")
        omnikvd = os.path.join(os.path.dirname(cli.OMNIKV), "omnikvd")
        with subprocess.Popen([omnikvd, "--pool", "8M", "--reserve", "1M", "--socket", socket, "--spill", store,
                               "--spill-size", "1G"], stderr=subprocess.DEVNULL) as daemon:
            try:
                until = time.monotonic() + 20
                while not os.path.exists(socket) and time.monotonic() < until:
                    time.sleep(0.02)
                runs = [cli.clean(cli.replay(*args, f"--daemon={socket}")) for _ in range(2)]
            finally:
                daemon.terminate()
                daemon.wait(20)
    for found in runs:
        cli.equal(found["daemon"]["blocks_lost"], 0, "blocks_lost")
        cli.equal(found["blocks_hit_dram"] + found["blocks_hit_nvme"], found["blocks_hit"], "sum of tiers")
    # What the first one left is there for the second, and each counts its own.
    if not runs[0]["bytes_spilled"] or not runs[1]["bytes_fetched"] or not runs[1]["blocks_hit_nvme"]:
        raise AssertionError("nothing was spilled, or nothing fetched")
    cli.equal(runs[1]["blocks_hit"], runs[1]["blocks_referenced"], "blocks_hit of the second run")


def options_are_checked():
    for args, text in (((FAST, "--clients", "2"), "need --daemon"),
                       ((FAST, "--daemon", "--pool", "embedded:1G:x"), "--pool"),
                       ((FAST, "--daemon=/nowhere", "--kill-every", "2"), "--kill-every"),
                       ((FAST, "--daemon", "--clients", "65"), "--clients")):
        done = cli.replay("--workload", "chat", *args)
        cli.equal(done.status, 2, "exit status", done)
        if text not in done.err or len(done.err.splitlines()) != 1:
            raise AssertionError(f"no line with {text!r}:\n{done}")


if __name__ == "__main__":
    cli.main([sums_are_those_of_one_process, conversations_by_four, what_a_daemon_spills_is_hit_and_counted,
              options_are_checked])
