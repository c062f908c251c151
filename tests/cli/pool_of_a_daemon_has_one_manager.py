#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""A pool daemon:SOCKET is managed by who opens it, or by the daemon: the other one is refused with what to do instead."""

import contextlib
import os
import subprocess
import time

import cli

CHAT = ("--workload", "chat", "--as-fast-as-possible")


@contextlib.contextmanager
def daemon(*args):
    with cli.temporary() as top:
        socket = os.path.join(top, "omnikvd.sock")
        with subprocess.Popen([os.path.join(cli.BUILD, "bin", "omnikvd"), f"--socket={socket}", *args],
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
            try:
                until = time.monotonic() + 20
                while not os.path.exists(socket) and time.monotonic() < until:
                    time.sleep(0.02)
                yield socket
            finally:
                child.terminate()


def refused(done, *words):
    cli.equal((done.status, done.out, len(done.err.splitlines())), (1, "", 1), "status, output and lines", done)
    for word in words:
        if word not in done.err:
            raise AssertionError(f"no {word!r} in the message\n{done}")


def a_daemon_that_manages_its_pool_says_how_to_attach():
    with daemon("--pool=64M") as socket:
        refused(cli.replay(*CHAT, "--pool", f"daemon:{socket}"), "the daemon manages this pool", "--daemon=SOCKET", "unix:SOCKET",
                "omnikv_manager_attach()")
        cli.clean(cli.replay(*CHAT, f"--daemon={socket}"))


def a_replay_manages_the_pool_of_a_daemon_without_manager():
    # What the replay's reserve holds is in no block, and is no mistake of the manager's.
    with daemon("--pool=64M", "--manager=no", "--reserve=1M") as socket:
        cli.clean(cli.replay(*CHAT, "--pool", f"daemon:{socket}"), blocks_hit=1984)
        refused(cli.replay(*CHAT, f"--daemon={socket}"), "does not manage the pool (--manager=no)", "--pool daemon:SOCKET")


cli.main([a_daemon_that_manages_its_pool_says_how_to_attach, a_replay_manages_the_pool_of_a_daemon_without_manager])
