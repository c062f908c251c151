#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Processes over one omnikvd hit what a single process hits, byte for byte; mistakes in asking for it are said.

A daemon that is silent or gone ends the replay with one line; a replay that is ended leaves nothing behind.
"""

import contextlib
import glob
import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time

import cli

FAST = "--as-fast-as-possible"
FEW = ("--pool", "128M", FAST)


@contextlib.contextmanager
def daemon(*options):
    """A running omnikvd: its process and its socket."""
    with cli.temporary() as where:
        path = os.path.join(where, "sock")
        with subprocess.Popen([os.path.join(cli.BUILD, "bin", "omnikvd"), "--socket", path,
                               *(options or ("--pool", "64M"))],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                await_that(lambda: cli.run("status", "--socket", path).status == 0, "the daemon answers")
                yield process, path
            finally:
                process.kill()


def await_that(condition, what, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.05)


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


def prompts_of_another_run_are_not_waited_for():
    """Its blocks may have this run's keys behind others: they are there, and are not hit."""
    with daemon() as (_, path):
        for seed in (1, 2, 1):
            cli.clean(cli.replay("--workload", "chat", "--requests", "150", "--seed", str(seed), f"--daemon={path}"))


def the_pool_of_a_daemon_is_named_after_it():
    """And not by the size that a daemon of the run would have."""
    with daemon("--pool", "64M") as (_, path):
        args = ("replay", "--workload", "chat", FAST, "--requests", "20", f"--daemon={path}")
        done = cli.run(*args)
        line = f"\npool        daemon:{path}: 64.00 MiB usable on "
        if line not in done.out:
            raise AssertionError(f"no {line!r} in\n{done}")
        cli.equal(cli.clean(cli.run(*args, "--json"))["config"]["pool"], f"daemon:{path}", "pool")


def conversations_by_four():
    found = cli.clean(cli.replay("--trace", cli.data("traces/conversation_trace.jsonl"), "--requests", 3000, "--pool", "1G",
                                 "--daemon", "--clients", 4))
    alone = cli.clean(cli.replay("--trace", cli.data("traces/conversation_trace.jsonl"), "--requests", 3000, "--pool", "1G",
                                 FAST))
    cli.equal(found["blocks_hit"], alone["blocks_hit"], "blocks_hit")


def what_a_daemon_spills_is_hit_and_counted():
    args = ("--workload", "chat", FAST, "--clients", 2)
    with cli.temporary() as where, daemon("--pool", "8M", "--reserve", "1M", "--spill", os.path.join(where, "store"),
                                          "--spill-size", "1G") as (_, path):
        runs = [cli.clean(cli.replay(*args, f"--daemon={path}")) for _ in range(2)]
    for found in runs:
        cli.equal(found["daemon"]["blocks_lost"], 0, "blocks_lost")
        cli.equal(found["blocks_hit_dram"] + found["blocks_hit_nvme"], found["blocks_hit"], "sum of tiers")
    # What the first one left is there for the second, and each counts its own.
    if not runs[0]["bytes_spilled"] or not runs[1]["bytes_fetched"] or not runs[1]["blocks_hit_nvme"]:
        raise AssertionError("nothing was spilled, or nothing fetched")
    cli.equal(runs[1]["blocks_hit"], runs[1]["blocks_referenced"], "blocks_hit of the second run")


def options_are_checked():
    for args, text in (((FAST, "--clients", "2"), "need --daemon"),
                       ((FAST, "--daemon", "--clients", "2", "--hints"), "a session's requests go to several processes"),
                       ((FAST, "--daemon", "--pool", "embedded:1G:x"), "--pool"),
                       ((FAST, "--daemon=/nowhere", "--kill-every", "2"), "--kill-every"),
                       ((FAST, "--daemon", "--clients", "65"), "--clients")):
        done = cli.replay("--workload", "chat", *args)
        cli.equal(done.status, 2, "exit status", done)
        if text not in done.err or len(done.err.splitlines()) != 1:
            raise AssertionError(f"no line with {text!r}:\n{done}")


def one_line(done, *words):
    cli.equal(done.status, 1, "exit status", done)
    cli.equal(len(done.err.splitlines()), 1, "lines on standard error", done)
    for word in words:
        if word not in done.err:
            raise AssertionError(f"no {word!r} in the message\n{done}")


def a_silent_daemon_is_named():
    with daemon() as (process, path):
        os.kill(process.pid, signal.SIGSTOP)
        words = (f"the daemon at {path} does not answer within 5 s; ",)
        one_line(cli.replay("--workload", "chat", FAST, "--clients", "2", f"--daemon={path}", timeout=20), *words)
        one_line(cli.run("status", "--socket", path, timeout=20), *words)


def few_descriptors_end_a_replay_with_what_to_raise():
    for most, words in ((10, "10 open files are allowed, and the first client needs"),
                        (80, "raise the daemon's limit of open files (LimitNOFILE=, ulimit -n)")):
        done = cli.run("-c", f"ulimit -n {most}; exec {cli.OMNIKV} replay --workload chat --pool 8M --daemon --clients 8",
                       program="sh", timeout=30)
        cli.equal(done.status, 1, "exit status", done)
        if words not in done.err or done.err.count("annot accept") > 1:
            raise AssertionError(f"no line with {words!r}, or one again and again:\n{done}")


def a_daemon_with_too_few_places_says_what_to_raise():
    with daemon("--pool", "64M", "--clients", "1") as (_, path):
        for clients, what in ((2, "all 1 places for clients of the daemon"), (8, "of the daemon")):
            one_line(cli.replay("--workload", "chat", FAST, "--clients", clients, f"--daemon={path}", timeout=60),
                     f"{what} at {path} are taken (clients = 1)", "raise clients in omnikvd's settings")


def another_granule_than_the_daemons_names_both_and_the_setting():
    with daemon("--pool", "64M", "--granule", "64K") as (_, path):
        cli.mistakes([(("replay", "--workload", "chat", f"--daemon={path}", *more),
                       ("granules of 4096 bytes", f"the daemon at {path} has 65536", "set granule = 4096 in omnikvd's configuration"))
                      for more in ((), ("--clients", "2"))])


def a_daemon_that_dies_while_it_is_asked_is_not_said_to_refuse():
    """It takes the first frame of each connection, and answers none."""
    with cli.temporary() as where, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        path = os.path.join(where, "sock")
        listener.bind(path)
        listener.listen()

        def die():
            with contextlib.suppress(OSError):
                while True:
                    with listener.accept()[0] as peer:
                        peer.recv(4096)

        thread = threading.Thread(target=die)
        thread.start()
        try:
            words = (f"the daemon at {path} ended while it was asked", "start it again")
            one_line(cli.replay("--workload", "chat", f"--daemon={path}"), *words)
            one_line(cli.run("status", "--socket", path), *words)
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@contextlib.contextmanager
def begin(*args):
    """A replay of two processes that takes longer than any test looks at it."""
    with tempfile.NamedTemporaryFile("w", prefix="omnikv-cli-", suffix=".jsonl") as trace:
        for i in range(60000):
            json.dump({"timestamp": i, "input_length": 4096, "output_length": 1,
                       "hash_ids": [i % 50 * 8 + b if b < 4 else 1000 + 8 * i + b for b in range(8)]}, trace)
            trace.write("\n")
        trace.flush()
        with subprocess.Popen([cli.OMNIKV, "replay", "--json", "--trace", trace.name, *FEW, "--clients", "2", *args],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE) as replay:
            try:
                yield replay
            finally:
                replay.kill()


def are_at_work(status):
    """Both have opened their namespaces: they have a reserve, and something is published."""
    return sum(client["private_bytes"] > 0 for client in status["clients"]) == 2 and status["sealed_bytes"] > 0


def a_daemon_that_ends_or_falls_silent_is_named():
    for sent, words in ((signal.SIGKILL, "ended, and no other came within 10 s"), (signal.SIGSTOP, "does not answer within 5 s")):
        with daemon() as (process, path), begin(f"--daemon={path}") as replay:
            await_that(lambda s=path: are_at_work(cli.run("status", "--json", "--socket", s).json["daemon"]), "they work")
            time.sleep(0.3)
            os.kill(process.pid, sent)
            out, err = replay.communicate(timeout=40)
            one_line(cli.Done(replay.args, replay.returncode, out.decode(), err.decode()), f"the daemon at {path} {words}")


def left_by(pid):
    return glob.glob(f"/dev/shm/omnikv-replay-{pid}-*")


def children_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return file.read().split()


def run_until_it_has(replay, nr_children):
    await_that(lambda: replay.poll() is not None or len(children_of(replay.pid)) == nr_children, "clients run")
    cli.equal(replay.poll(), None, "an early end")
    cli.equal(len(left_by(replay.pid)), 1, "directories in memory")
    return [f"/proc/{child}" for child in children_of(replay.pid)]


def an_ended_replay_leaves_nothing():
    cli.need(os.path.isdir("/dev/shm"), "there is no /dev/shm")
    for more in ((), ("--kill-every", "60")):
        for sent in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            with begin("--daemon", *more) as replay:
                children = run_until_it_has(replay, 3)
                replay.send_signal(sent)
                replay.communicate(timeout=30)
                cli.equal(replay.returncode, -sent, f"exit status {more}")
                cli.equal(left_by(replay.pid), [], f"left by signal {sent} {more}")
                cli.equal([c for c in children if os.path.exists(c)], [], f"processes left by signal {sent}")


def what_a_killed_replay_left_goes_with_the_next():
    cli.need(os.path.isdir("/dev/shm"), "there is no /dev/shm")
    with begin("--daemon", "--kill-every", "60") as replay:
        children = run_until_it_has(replay, 3)
        for name in ("pool", "pool.leases.*"):
            await_that(lambda n=name: glob.glob(f"{left_by(replay.pid)[0]}/{n}"), name)
        replay.kill()
        replay.communicate(timeout=30)
    await_that(lambda: not any(os.path.exists(c) for c in children), "the children end")
    cli.clean(cli.replay("--workload", "chat", *FEW, "--requests", "10", "--daemon"))
    cli.equal(left_by(replay.pid), [], "left")


if __name__ == "__main__":
    cli.main([sums_are_those_of_one_process, prompts_of_another_run_are_not_waited_for,
              the_pool_of_a_daemon_is_named_after_it, conversations_by_four, what_a_daemon_spills_is_hit_and_counted,
              options_are_checked, another_granule_than_the_daemons_names_both_and_the_setting,
              a_daemon_that_dies_while_it_is_asked_is_not_said_to_refuse, a_silent_daemon_is_named, a_daemon_that_ends_or_falls_silent_is_named,
              few_descriptors_end_a_replay_with_what_to_raise, a_daemon_with_too_few_places_says_what_to_raise,
              an_ended_replay_leaves_nothing, what_a_killed_replay_left_goes_with_the_next])
