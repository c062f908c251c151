#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Processes over one omnikvd hit what a single process hits, byte for byte; mistakes in asking for it are said."""

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
    cli.main([sums_are_those_of_one_process, conversations_by_four, options_are_checked])
