#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Wrong usage is told in one line that names the option, its value and what is allowed, with exit status 2."""

import json
import os
import subprocess

import cli


def words_and_unknown_options():
    cli.mistakes([
        (["replay"], ["--trace", "--workload", "chat"]),
        (["replay", "--nonesuch"], ["--nonesuch", "--help"]),
        (["replay", "--workload=chat", "--nonesuch", "3"], ["--nonesuch"]),
        (["replay", "-x"], ["-x"]),
        (["replay", "--json=1"], ["--json=1", "no value"]),
        (["replay", "word"], ["word"]),
        (["replay", "--pool"], ["--pool", "value"]),
        (["replay", "--workload", "chat", "--trace", "x"], ["--trace", "--workload"]),
    ])


def sizes():
    cli.mistakes([(["replay", "--workload", "chat", "--pool", size], ["--pool", size, "K, M, G"])
              for size in ("10 GB", "10GB", "10GiB", "1e10", "-1", "4g", "0x10", "1.5")])
    cli.mistakes([(["replay", "--workload", "chat", "--hbm", "10GB"], ["--hbm", "10GB"])])


def numbers():
    cli.mistakes([
        (["replay", "--workload", "chat", "--block-tokens", "0"], ["--block-tokens", "'0'", "1 to 65534"]),
        (["replay", "--workload", "chat", "--block-tokens", "65535"], ["--block-tokens", "65535", "65534"]),
        (["replay", "--workload", "chat", "--scale", "x"], ["--scale", "'x'"]),
        (["replay", "--workload", "chat", "--slots", "-2"], ["--slots", "-2"]),
        (["replay", "--workload", "chat", "--concurrency", " 3"], ["--concurrency"]),
        (["replay", "--workload", "chat", "--seed", "99999999999999999999"], ["--seed"]),
        (["replay", "--workload", "chat", "--requests", "0"], ["--requests"]),
        (["replay", "--workload", "chat", "--slot-tokens", "1.5"], ["--slot-tokens"]),
    ])


def names():
    cli.mistakes([
        (["replay", "--workload", "nonesuch"], ["--workload", "nonesuch", "chat, agent"]),
        (["replay", "--workload", "chat", "--model", "nonesuch"], ["--model", "nonesuch", "tiny"]),
        (["replay", "--workload", "chat", "--model", "./nonesuch.json"], ["--model", "nonesuch.json"]),
        (["replay", "--workload", "chat", "--gpu", "h9000"], ["--gpu", "h9000", "h100"]),
        (["replay", "--workload", "chat", "--device", "cuda:1"], ["--device", "cuda:1", "sim:kernels", "tests/gpu/run"]),
        (["replay", "--workload", "chat", "--eviction", "random"], ["--eviction: \"random\"", "lru"]),
        (["replay", "--workload", "chat", "--daemon", "--eviction", "lru"], ["--daemon excludes", "--eviction"]),
        (["replay", "--workload", "chat", "--numa", "near"], ["--numa \"near\"", "bind:NODES"]),
        (["replay", "--workload", "chat", "--numa", "bind:63"], ["--numa \"bind:63\"", "no such nodes"]),
        (["replay", "--workload", "chat", f"--daemon=/{'0' * 200}"], ["socket", "1 to 107 characters"]),
        (["status", "--socket", ""], ["--socket", "1 to 107 characters"]),
        (["replay", "--workload", "chat", "--format", "xml"], ["--format", "xml", "mooncake"]),
        (["replay", "--workload", "chat", "--inject", "flop"], ["--inject", "flop", "flip"]),
        (["replay", "--workload", "chat", "--inject", "flip:x"], ["--inject flip", "'x'"]),
        (["replay", "--workload", "chat", "--inject", "fail:0"], ["--inject fail", "1 to 500000"]),
        (["replay", "--workload", "chat", "--device", "host"], ["--device host", "--as-fast-as-possible"]),
        (["replay", "--workload", "chat", "--device", "host", "--as-fast-as-possible", "--shuffle"], ["--shuffle"]),
    ])


def combinations():
    # tiny: a block of 512 tokens is 16 KiB; a pool of one granule holds none.
    cli.mistakes([(["replay", "--workload", "chat", "--pool", "4K"], ["--pool 4K", "4096", "16384"])])
    cli.mistakes([(["replay", "--workload", "chat", "--pool", "64M", "--slots", "2", "--slot-tokens", "1000000", "--hbm",
                "1M"], ["--slots", "--slot-tokens", "--hbm"])])
    with cli.temporary() as folder:
        trace = os.path.join(folder, "t.jsonl")
        with open(trace, "w") as file:
            file.write('{"timestamp": 0, "input_length": 512, "hash_ids": [1]}\n')
        cli.mistakes([(["replay", "--trace", trace, "--block-tokens", "64"], ["--block-tokens 64", "512"])])
        layout = os.path.join(folder, "m.json")
        with open(layout, "w") as file:
            file.write("{}")
        cli.mistakes([(["replay", "--trace", trace, "--model", layout], ["--model", "m.json"])])


def an_output_that_cannot_be_written():
    for args in (["plan", "--model", "tiny"], ["replay", "--workload", "chat", "--requests", "3", "--pool", "8M"]):
        with open("/dev/full", "w", encoding="ascii") as full:
            done = subprocess.run([cli.OMNIKV, *args], stdout=full, stderr=subprocess.PIPE, check=False, timeout=60)
        cli.equal(done.returncode, 1, "the exit status")
        if b"No space left" not in done.stderr:
            raise AssertionError(done.stderr.decode())


def more_device_memory_than_there_is_says_both():
    cli.mistakes([(["replay", "--workload", "chat", "--requests", "2", "--pool", "64M", "--slot-tokens", "100000", "--hbm", "1M"],
                   ["need", "there are 1048576"]),
                  (["replay", "--workload", "chat", "--hbm", "0"], ["--hbm", "'0'"])])


def two_faults_at_once_and_what_no_pool_can_keep():
    cli.mistakes([(["replay", "--workload", "chat", "--inject", "flip", "--inject", "fail:3"],
                   ["--inject flip", "--inject fail:3", "one"])])
    with cli.temporary() as folder:
        model = os.path.join(folder, "m.json")
        with open(model, "w") as file:
            json.dump({"name": "never", "nr_layers": 1, "groups": [
                {"kind": "full", "layers": "all", "reuse": "none",
                 "planes": [{"role": "kv", "dtype": "u8", "heads": 1, "elems": 64}]}]}, file)
        cli.mistakes([(["replay", "--workload", "chat", "--pool", "8M", "--model", model],
                       ["model never", "groups[0].reuse: none"])])


def a_double_dash_ends_the_options():
    done = cli.run("plan", "--model", "tiny", "--")
    cli.equal(done.status, 0, "the exit status", done)
    cli.mistakes([(["plan", "--", "word"], ["word"]), (["replay", "--", "--workload"], ["--workload"])])


def names_with_control_characters_stay_on_one_line():
    cli.mistakes([(["replay", "--trace", "no\nsuch\x1b[31mfile"], ["no\\x0asuch\\x1b[31mfile", "No such file"])])


def a_trace_without_an_end_of_line():
    cli.mistakes([(["replay", "--trace", "/dev/zero"], ["/dev/zero", "longer than 67108864 bytes"]),
                  (["replay", "--trace", "/dev/zero", "--format", "text"], ["/dev/zero:1", "268435456 bytes"])])


def a_pipe_needs_its_format():
    command = f"printf '%s\\n' '{{\"timestamp\": 0, \"input\": \"abc\"}}' | {cli.OMNIKV} replay --trace /dev/stdin --pool 8M"
    done = subprocess.run(["sh", "-c", command], capture_output=True, check=False, timeout=60)
    cli.equal(done.returncode, 2, "the exit status")
    if b"--format" not in done.stderr:
        raise AssertionError(done.stderr.decode())
    done = subprocess.run(["sh", "-c", command + " --format text"], capture_output=True, check=False, timeout=60)
    cli.equal(done.returncode, 0, "the exit status")


def files_that_cannot_be_read():
    with cli.temporary() as folder:
        empty = os.path.join(folder, "empty")
        open(empty, "w").close()
        unknown = os.path.join(folder, "unknown")
        with open(unknown, "w") as file:
            file.write("hello\n")
        for name, word in ((empty, "empty"), (unknown, "--format"), (folder, "directory"),
                           (os.path.join(folder, "nonesuch"), "No such file")):
            done = cli.run("replay", "--trace", name)
            cli.equal(done.status, 2, "the exit status", done)
            cli.equal(done.err.count("\n"), 1, "lines on standard error", done)
            if word not in done.err or name not in done.err:
                raise AssertionError(f"no '{word}' in the message\n{done}")


cli.main([words_and_unknown_options, sizes, numbers, names, combinations, an_output_that_cannot_be_written,
          more_device_memory_than_there_is_says_both, two_faults_at_once_and_what_no_pool_can_keep,
          a_double_dash_ends_the_options, names_with_control_characters_stay_on_one_line,
          a_trace_without_an_end_of_line, a_pipe_needs_its_format, files_that_cannot_be_read])
