#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Replays on a pool file: the next run hits what the last one cached, whether that ended or was killed."""

import os
import signal
import subprocess
import time

import cli

FAST = "--as-fast-as-possible"


def the_next_run_hits_everything():
    with cli.temporary() as top:
        args = ("--workload", "chat", FAST, "--pool", f"embedded:64M:{top}/pool")
        found = cli.clean(cli.replay(*args), blocks_hit=1984, blocks_recovered=0, blocks_dropped=0)
        again = cli.clean(cli.replay(*args), blocks_hit=found["blocks_referenced"], blocks_committed=0, blocks_dropped=0)
        cli.equal(again["blocks_recovered"], found["blocks_committed"], "recovered blocks")
        # Blocks of 16 KiB: the index takes under a hundredth of the pool.
        if not 0 < again["index_bytes"] < (64 << 20) // 100:
            raise AssertionError(f"index_bytes is {again['index_bytes']}")
        # Memory of the process has none of that.
        cli.clean(cli.replay("--workload", "chat", FAST, "--pool", "64M"), blocks_recovered=0, index_bytes=0)


def what_is_given_up_is_said():
    with cli.temporary() as top:
        path = os.path.join(top, "pool")
        args = ("--workload", "chat", FAST, "--pool", f"embedded:64M:{path}")
        cached = cli.clean(cli.replay(*args))["blocks_committed"]
        with open(path, "rb") as file:
            good = file.read()
        # The record of the extent that has the root, and one of the extents of blocks: records begin at 4096.
        for at, words in ((4096, ("not usable", "root", f"{cached} extents freed, 0 blocks kept")),
                          (8192, ("failed a check", "extents freed", "blocks kept"))):
            with open(path, "wb") as file:
                file.write(good[:at] + b"\xde\xad\xbe\xef" + good[at + 4:])
            done = cli.replay(*args)
            cli.clean(done)
            for word in (path, *words):
                if word not in done.err:
                    raise AssertionError(f"no {word!r} in what was said\n{done}")
        done = cli.replay(*args)
        cli.clean(done, blocks_dropped=0)
        cli.equal("given up" in done.err, False, "a line on a good file", done)


def another_scale_is_refused_with_a_way_out():
    with cli.temporary() as top:
        args = ("--workload", "chat", FAST, "--pool", f"embedded:64M:{top}/pool")
        cli.clean(cli.replay(*args))
        done = cli.replay(*args, "--scale", 4)
        for word in ("cached with scale 1, the plan has 4", "another tenant", "remove the pool's file"):
            if word not in done.err:
                raise AssertionError(f"no {word!r} in the message\n{done}")
        cli.clean(cli.replay(*args, "--scale", 4, "--tenant", "other"))


def killed_runs_leave_no_wrong_byte():
    with cli.temporary() as top:
        argv = [cli.OMNIKV, "replay", "--json", "--workload", "agent", FAST, "--model", "llama-3-8b", "--scale", "64",
                "--pool", f"embedded:32M:{top}/pool"]
        for wait in (0.3, 0.6, 1.0):
            with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
                time.sleep(wait)
                child.send_signal(signal.SIGKILL)
        found = cli.clean(cli.run(*argv[1:]), blocks_dropped=0)
        print(f"# {found['blocks_recovered']} blocks recovered, {found['blocks_hit']} of {found['blocks_referenced']} hit")


def conversations_on_a_file():
    trace = cli.data("traces/conversation_trace.jsonl")
    with cli.temporary() as top:
        args = ("--trace", trace, "--model", "tiny", "--pool", f"embedded:256M:{top}/pool", FAST)
        found = cli.clean(cli.replay(*args), requests=12031, blocks_referenced=288500)
        # Plain LRU in a pool of 16,384 blocks has 76,613 hits; here the index takes the room of some 120.
        if abs(found["blocks_hit"] - 76613) > 0.02 * 76613:
            raise AssertionError(f"blocks_hit is {found['blocks_hit']}, not within 2 % of 76613")
        with subprocess.Popen([cli.OMNIKV, "replay", *args], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
            time.sleep(found["wall_s"] / 2)
            child.send_signal(signal.SIGKILL)
        again = cli.clean(cli.replay(*args), requests=12031, blocks_referenced=288500, blocks_dropped=0)
        if again["blocks_recovered"] < 16000:
            raise AssertionError(f"only {again['blocks_recovered']} blocks were there after a kill")
        print(f"# {found['blocks_hit']} hits, {found['index_bytes']} bytes of index; after a kill {again['blocks_recovered']} "
              f"blocks recovered, {os.path.getsize(top + '/pool')} bytes of file")


cli.main([the_next_run_hits_everything, what_is_given_up_is_said, another_scale_is_refused_with_a_way_out,
          killed_runs_leave_no_wrong_byte, conversations_on_a_file])
