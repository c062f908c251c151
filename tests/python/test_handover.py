# SPDX-License-Identifier: GPL-2.0-only
"""Sequences go from one process to another by a ticket: whole, once, and whoever of the two dies when."""

import os
import signal
import subprocess
import sys
import time

import omnikv
import pytest
from conftest import TOP, fill, verify
from test_daemon import space_of
from test_sessions import attached, flood, small_daemon, stats_of

T = 16

GIVES = f"""
import sys
sys.path.insert(0, {os.path.join(TOP, "tests", "python")!r})
import os, signal, omnikv
from conftest import fill
from test_daemon import space_of
with omnikv.connect(sys.argv[1]) as manager, space_of(manager) as space:
    keys = omnikv.ChainKey(b"0123456789abcdef", 16).keys(range(16 * 41))
    with space.sequence() as seq:
        seq.append(16 * 40 + 5)
        fill(seq, 0, 16 * 40 + 5)
        seq.commit(keys[:40], tail=omnikv.partial_key(keys[40], 5))
        print(seq.give(int(sys.argv[2])).hex(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
"""


def given(daemon, timeout_ms=60000):
    """A ticket of a process that is dead since."""
    done = subprocess.run([sys.executable, "-c", GIVES, f"unix:{daemon.socket}", str(timeout_ms)], timeout=60, check=False,
                          capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    return bytes.fromhex(done.stdout.strip())


def test_a_giver_that_was_killed_has_given(small_daemon, chain):
    ticket = given(small_daemon)
    with attached(small_daemon) as manager, space_of(manager) as space:
        flood(space, chain)
        assert stats_of(manager)["nr_retentions"] == 1
        with space.take(ticket) as seq:
            assert (seq.tokens, seq.cached_tokens) == (645, 645)
            assert stats_of(manager)["nr_retentions"] == 0
            flood(space, chain)
            verify(seq, 0, 645)
            with pytest.raises(omnikv.StaleError, match="no such ticket"):
                space.take(ticket)
            # It is a sequence as any other.
            assert all(rows.readonly for rows in seq.rows(0, 0, 0, 0, 645))
            seq.append(3)
            fill(seq, 645, 648)
            verify(seq, 0, 648)


TAKES = f"""
import sys
sys.path.insert(0, {os.path.join(TOP, "tests", "python")!r})
import os, omnikv
from test_daemon import space_of
with omnikv.connect(sys.argv[1]) as manager, space_of(manager) as space:
    print("ready", flush=True)
    sys.stdin.readline()
    space.take(bytes.fromhex(sys.argv[2]))
    print("taken", flush=True)
    sys.stdin.readline()
"""


def test_one_of_many_takers_has_it_and_one_that_dies_before_leaves_it(small_daemon):
    ticket = given(small_daemon)
    argv = [sys.executable, "-c", TAKES, f"unix:{small_daemon.socket}", ticket.hex()]
    takers = [subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    try:
        for taker in takers:
            assert taker.stdout.readline() == "ready\n"
        takers[0].kill()
        for taker in takers[1:]:
            taker.stdin.write("\n")
            taker.stdin.flush()
        told = [taker.stdout.readline() for taker in takers[1:]]
        assert sorted(told) == ["", "", "taken\n"]
        errors = [taker.stderr.read() for taker, word in zip(takers[1:], told) if not word]
        assert all("StaleError" in text and "no such ticket" in text for text in errors)
    finally:
        for taker in takers:
            taker.kill()
            taker.communicate()


def test_what_nobody_takes_ends_by_its_time(small_daemon, chain):
    ticket = given(small_daemon, timeout_ms=200)
    time.sleep(0.3)
    with attached(small_daemon) as manager, space_of(manager) as space:
        with pytest.raises(omnikv.StaleError):
            space.take(ticket)
        flood(space, chain)
        assert space.lookup(chain.keys(range(40 * T))) == 0


def test_the_giver_keeps_a_fork_and_both_go_on(manager, space, chain):
    """Also with a manager of one's own, between threads."""
    keys = chain.keys(range(48))
    with space.sequence() as seq:
        seq.append(40)
        fill(seq, 0, 40)
        seq.commit(keys[:2])
        with pytest.raises(omnikv.InvalidError, match="32 of 40 tokens are committed"):
            seq.give(1000)
        seq.commit(keys[:2], tail=omnikv.partial_key(keys[2], 8))
        ticket = seq.give(60000)
        assert isinstance(ticket, bytes) and len(ticket) == omnikv.TICKET_BYTES
        with pytest.raises(omnikv.StaleError):
            space.take(bytes(16))
        with manager.space(space.plan, tenant="other") as other, pytest.raises(omnikv.StaleError):
            other.take(ticket)
        with space.take(ticket) as taken:
            for one, salt in ((seq, 100), (taken, 200)):
                one.append(8)
                fill(one, 40, 48, salt=salt)
            verify(seq, 0, 40), verify(taken, 0, 40)
            verify(seq, 40, 48, salt=100), verify(taken, 40, 48, salt=200)


def test_a_ticket_of_an_older_epoch_is_none(manager, space, chain):
    with space.sequence() as seq:
        seq.append(16)
        fill(seq, 0, 16)
        seq.commit(chain.keys(range(16)))
        ticket = seq.give(60000)
        manager.raise_epoch()
        with pytest.raises(omnikv.StaleError):
            space.take(ticket)
        with pytest.raises(omnikv.StaleError, match="epoch"):
            seq.give(60000)
