#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Wrong usage is told in one line that names the option, its value and what is allowed, with exit status 2."""

import os
import re

import cli


def commands():
    cli.mistakes([
        ([], ["no command", "--help"]),
        (["nonesuch"], ["nonesuch", "--help"]),
        (["--nonesuch"], ["--nonesuch", "--help"]),
    ])


def plans():
    cli.mistakes([
        (["plan"], ["--model", "--list"]),
        (["plan", "--model", "nonesuch"], ["--model", "nonesuch", "tiny"]),
        (["plan", "--model", "tiny", "--granule", "5000"], ["--granule", "5000", "4096"]),
        (["plan", "--model", "tiny", "--pool", "10GB"], ["--pool", "10GB"]),
        (["plan", "--model", "tiny", "--pool", "0"], ["--pool", "'0' is no pool at all"]),
        (["plan", "--model", "tiny", "--pool", "0G", "--json"], ["--pool", "'0G' is no pool at all"]),
        (["plan", "--model", "gpt-oss-20b", "--scale", "0"], ["--scale", "'0'"]),
        (["plan", "word", "--model", "tiny"], ["word"]),
    ])
    done = cli.run("plan", "--model", "tiny", "--pool", "256M", "--json")
    found = cli.fields(done, model="tiny", block_tokens=512, block_bytes=16384, granule_bytes=4096)
    cli.equal(found["pool"]["blocks"], 16384, "blocks", done)
    for model in cli.run("plan", "--list").out.split():
        cli.equal(cli.run("plan", "--model", model).status, 0, f"the exit status for {model}")


def help_and_version():
    done = cli.run("--version")
    cli.equal(done.status, 0, "the exit status", done)
    version = done.out.split()
    cli.equal(version[0], "omnikv", "the name", done)
    cli.equal(len(version[1].split(".")), 3, "parts of the version", done)
    done = cli.run("--help")
    cli.equal(done.status, 0, "the exit status", done)
    for command in [line.split()[0] for line in done.out.splitlines() if line.startswith("  ")]:
        one = cli.run(command, "--help")
        cli.equal(one.status, 0, "the exit status", one)
        cli.equal(one.err, "", "standard error", one)


def every_option_is_in_the_manual():
    with open(os.path.join(cli.TOP, "Documentation", "man", "omnikv.1"), encoding="utf-8") as file:
        manual = file.read()
    commands = [line.split()[0] for line in cli.run("--help").out.splitlines() if line.startswith("  ")]
    for command in commands:
        for option in re.findall(r"^ +(?:-[a-z], )?--([a-z-]+)", cli.run(command, "--help").out, re.M):
            if option not in ("help", "usage") and f"Fl -{option}" not in manual and f", -{option}" not in manual:
                raise AssertionError(f"--{option} of {command} is not in omnikv.1")


def status_without_daemon_and_module_names_both():
    cli.need(not os.path.exists("/dev/omnikv") and not os.path.exists("/run/omnikv/omnikvd.sock"), "there is one of both")
    for more in ((), ("--json",)):
        done = cli.run("status", *more)
        cli.equal((done.status, done.out, done.err.count("\n")), (1, "", 1), "status, output and lines of error", done)
        for word in ("no daemon at /run/omnikv/omnikvd.sock", "--socket", "no kernel module"):
            if word not in done.err:
                raise AssertionError(f"no {word!r} in the message\n{done}")


cli.main([commands, plans, status_without_daemon_and_module_names_both, help_and_version, every_option_is_in_the_manual])
