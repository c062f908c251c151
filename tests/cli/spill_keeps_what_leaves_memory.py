#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Replay with a spill store, killed and started again; omnikv spill stat and check, word for word."""

import json
import os
import signal
import subprocess
import time

import cli

FAST = "--as-fast-as-possible"
CHAT = ("--workload", "chat", FAST, "--pool", "2M")


def ratios(found):
    cli.equal(round(found["hit_ratio_dram"] + found["hit_ratio_nvme"] - found["hit_ratio"], 8), 0.0, "hit ratios' difference")


def small_pool_hits_as_a_large_one():
    with cli.temporary() as top:
        for args, hit in ((CHAT, 1984), (("--workload", "agent", FAST, "--pool", "4M"), 5679)):
            store = os.path.join(top, args[1])
            found = cli.clean(cli.replay(*args, "--spill", store, "--spill-size", "128M"), blocks_hit=hit)
            ratios(found)
            if not found["blocks_hit_nvme"] or not found["bytes_spilled"] or not found["peak_nvme_bytes"]:
                raise AssertionError("nothing came from the store")
            cli.equal((found["spill"]["blocks_lost"], found["spill"]["blocks_bad"]), (0, 0), "lost and bad blocks")
            if args != CHAT:
                continue
            # All of it is there for the next run, which computes nothing.
            again = cli.clean(cli.replay(*args, "--spill", store), blocks_hit=found["blocks_referenced"], blocks_committed=0)
            ratios(again)
            cli.equal(again["spill"]["recovered_blocks"], found["blocks_committed"], "recovered blocks")
            cli.equal(again["blocks_hit_recovered"], again["blocks_hit_nvme"], "hits of the earlier run's blocks")
            cli.equal(again["bytes_spilled"], 0, "bytes written for blocks that are there")


def killed_run_leaves_no_wrong_byte():
    with cli.temporary() as top:
        store = os.path.join(top, "s")
        argv = [cli.OMNIKV, "replay", "--json", "--workload", "agent", FAST, "--model", "llama-3-8b",
                "--scale", "64", "--pool", "32M", "--spill", store, "--spill-size", "1G"]
        for wait in (0.3, 0.6, 1.0):
            with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
                time.sleep(wait)
                child.send_signal(signal.SIGKILL)
        done = cli.run(*argv[1:])
        found = cli.clean(done)
        ratios(found)
        spill = found["spill"]
        print(f"# {spill['recovered_blocks']} blocks recovered, {spill['recovered_hits']} hits of them, {spill['blocks_bad']} bad")


def odd_block_sizes_come_back_whole():
    # 4096 - 512 bytes a block of 512 tokens, and 1.5 MiB + 512.
    for k, v, pool in ((3, 4, "512K"), (1536, 1537, "32M")):
        with cli.temporary() as top:
            model, trace = os.path.join(top, "model.json"), os.path.join(top, "t.jsonl")
            planes = [{"role": role, "dtype": "u8", "heads": 1, "elems": elems} for role, elems in (("k", k), ("v", v))]
            with open(model, "w", encoding="utf-8") as file:
                json.dump({"name": "odd", "nr_layers": 1, "groups": [{"kind": "full", "layers": "all", "planes": planes}]}, file)
            with open(trace, "w", encoding="utf-8") as file:
                for i in 2 * list(range(80)):
                    file.write(json.dumps({"timestamp": 0, "input_length": 1536, "hash_ids": [3 * i, 3 * i + 1, 3 * i + 2]}) + "\n")
            found = cli.clean(cli.replay("--trace", trace, FAST, "--model", model, "--pool", pool, "--spill",
                                         os.path.join(top, "s"), "--spill-size", "1G"), blocks_hit=240)
            ratios(found)
            if not found["blocks_hit_nvme"]:
                raise AssertionError(f"nothing came back from the store in blocks of {512 * (k + v)} bytes")
            cli.equal((found["spill"]["blocks_lost"], found["spill"]["blocks_bad"]), (0, 0), "lost and bad blocks")


def conversations_hit_as_in_a_pool_that_holds_them_all():
    trace = cli.data("traces/conversation_trace.jsonl")
    with cli.temporary() as top:
        room = os.statvfs(top)
        cli.need(room.f_bavail * room.f_frsize > 6 << 30, "less than 6 GiB are free on disk")
        store = os.path.join(top, "s")
        args = ("--trace", trace, "--model", "tiny", "--pool", "256M", "--spill", store, "--spill-size", "4G", FAST)
        found = cli.clean(cli.replay(*args), requests=12031, blocks_referenced=288500, blocks_hit=105710)
        ratios(found)
        cli.equal((found["spill"]["blocks_lost"], found["spill"]["blocks_bad"]), (0, 0), "lost and bad blocks")
        print(f"# {found['blocks_hit_dram']} hits in memory, {found['blocks_hit_nvme']} on NVMe, {found['wall_s']:.1f} s")
        os.remove(os.path.join(store, "omnikv.spill"))
        with subprocess.Popen([cli.OMNIKV, "replay", *args], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
            time.sleep(found["wall_s"] / 2)
            child.send_signal(signal.SIGKILL)
        found = cli.clean(cli.replay(*args), requests=12031, blocks_referenced=288500)
        ratios(found)
        spill = found["spill"]
        # What the killed run had left hits besides what this run makes itself.
        if found["blocks_hit"] < 105710 or (spill["recovered_blocks"] and not spill["recovered_hits"]):
            raise AssertionError(f"{found['blocks_hit']} blocks hit, {spill['recovered_hits']} of the killed run's")
        print(f"# after a kill: {spill['recovered_blocks']} blocks recovered, {spill['recovered_hits']} hits of them, "
              f"{spill['blocks_bad']} bad, {spill['lost_segments']} segments lost")


def text_is_as_it_always_was():
    with cli.temporary() as top:
        store = os.path.join(top, "s")
        cli.clean(cli.replay(*CHAT, "--spill", store, "--spill-size", "128M"))
        done = cli.run("spill", "stat", store)
        cli.equal((done.status, done.out), (0, f"""store       {store}
owner       nobody
segments    3 of 4.00 MiB, 0 free; 12.00 MiB in use
blocks      679, 10.61 MiB
"""), "stat")
        done = cli.run("spill", "check", store)
        cli.equal((done.status, done.out), (0, """checked     679 blocks, 10.61 MiB
bad         0 with a wrong checksum, 0 that cannot be read
"""), "check")
        with open(os.path.join(store, "omnikv.spill"), "r+b") as file:
            file.seek(1 << 20)
            byte = file.read(1)
            file.seek(1 << 20)
            file.write(bytes([byte[0] ^ 1]))
        done = cli.run("spill", "check", store)
        cli.equal((done.status, done.out), (1, """checked     679 blocks, 10.61 MiB
bad         1 with a wrong checksum, 0 that cannot be read
"""), "check of a damaged store")
        cli.equal(done.err.count("\n"), 1, "lines on standard error", done)
        found = cli.fields(cli.run("spill", "check", "--json", "--quarantine", store), status=1, blocks=679, bad=1,
                           quarantined=1)
        if not found["first_bad"].startswith("segment 0, offset "):
            raise AssertionError(found["first_bad"])
        cli.fields(cli.run("spill", "check", "--json", store), blocks=678, bad=0, first_bad=None)
        cli.fields(cli.run("spill", "stat", "--json", store), blocks=678, owner_pid=0, segments=3)


def mistakes_are_named():
    with cli.temporary() as top:
        cli.mistakes([
            (("spill",), ["nothing to do", "stat or check", "PATH"]),
            (("spill", "check", "/dev/null"), ["/dev/null: neither a directory, a file nor a block device"]),
            (("spill", "list", top), ["'list'"]),
            (("spill", "stat"), ["PATH"]),
            (("spill", "stat", top, "x"), ["too many"]),
            (("spill", "stat", "--quarantine", top), ["--quarantine"]),
            (("replay", *CHAT, "--spill-size", "1G"), ["--spill PATH"]),
            (("replay", *CHAT, "--spill", top, "--spill-admit", "third"), ["all nor second"]),
            (("replay", *CHAT, "--spill", top), ["--spill-size"]),
            (("replay", *CHAT, "--spill", top, "--spill-size", "100K"), ["give more"]),
        ])


def refused(done, *words):
    cli.equal((done.status, done.out, done.err.count("\n")), (1, "", 1), "exit status, output and lines", done)
    for word in words:
        if word not in done.err:
            raise AssertionError(f"no '{word}' in the message\n{done}")


def what_is_no_store_is_left_alone_with_one_line():
    with cli.temporary() as top:
        short, long = os.path.join(top, "short"), os.path.join(top, "long")
        for path, size in ((short, 1300), (long, 100000)):
            with open(path, "w", encoding="ascii") as file:
                file.write("root:x:0:0::/root:/bin/sh\n" * (size // 26))
        for args, words in (((os.path.join(top, "none"),), "No such file"), ((top,), "there is no spill store"),
                            ((short,), "this is no spill store"), ((long,), "this is no spill store")):
            for what in ("stat", "check"):
                refused(cli.run("spill", what, *args), args[0], words)
        for path in (short, long):
            with open(path, "rb") as file:
                before = file.read()
            refused(cli.replay(*CHAT, "--spill", path, "--spill-size", "8M"), path, "this is no spill store")
            with open(path, "rb") as file:
                cli.equal(file.read(), before, "the file")


def a_store_of_another_process_names_it():
    with cli.temporary() as top:
        store, socket = os.path.join(top, "store"), os.path.join(top, "sock")
        with subprocess.Popen([os.path.join(cli.BUILD, "bin", "omnikvd"), "--socket", socket, "--pool", "8M", "--spill", store,
                               "--spill-size", "8M"], stderr=subprocess.DEVNULL) as daemon:
            try:
                deadline = time.monotonic() + 60
                # A daemon that is still starting answers too.
                while f"process {daemon.pid}" not in cli.run("spill", "stat", store).out and time.monotonic() < deadline:
                    time.sleep(0.05)
                for args in (("spill", "check", store), ("spill", "check", "--quarantine", store), ("replay", *CHAT, "--spill", store)):
                    refused(cli.run(*args), store, "in use by", f"process {daemon.pid}", "stop it")
            finally:
                daemon.kill()


if __name__ == "__main__":
    cli.main([small_pool_hits_as_a_large_one, killed_run_leaves_no_wrong_byte, odd_block_sizes_come_back_whole,
              conversations_hit_as_in_a_pool_that_holds_them_all, text_is_as_it_always_was, mistakes_are_named,
              what_is_no_store_is_left_alone_with_one_line, a_store_of_another_process_names_it])
