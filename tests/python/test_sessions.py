# SPDX-License-Identifier: GPL-2.0-only
"""What sessions retain stays, prefetches come back from NVMe, and who waits for another process's block hears of its end."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time

import omnikv
import pytest
from conftest import TOP, fill, small_layout, verify
from test_daemon import Daemon, space_of

T = 16


def attached(daemon):
    return omnikv.connect(f"unix:{daemon.socket}")


class SmallDaemon(Daemon):
    """A pool of some hundred blocks, of which clients have no reserve."""
    options = ["--reserve=0"]

    def __init__(self, where):
        super().__init__(where, pool="8M")


@pytest.fixture
def small_daemon(tmp_path_factory):
    daemon = SmallDaemon(str(tmp_path_factory.mktemp("s")))
    yield daemon
    daemon.end()


@pytest.fixture(params=["embedded", "daemon"])
def place(request):
    """A manager of one's own, and one that is attached."""
    if request.param == "embedded":
        return request.getfixturevalue("manager")
    daemon = request.getfixturevalue("small_daemon")
    manager = attached(daemon)
    request.addfinalizer(manager.close)
    return manager


def commit(space, keys):
    with space.sequence(keys) as seq:
        if seq.tokens < len(keys) * T:
            seq.append(len(keys) * T - seq.tokens)
            return seq.commit(keys)
    return 0


def flood(space, chain, nr_blocks=3000):
    """More than the pool has, so that all leaves that can."""
    for begin in range(0, nr_blocks, 100):
        commit(space, chain.keys([7_000_000 + begin] * 100 * T))


def give(space, timeout_ms):
    with space.sequence() as seq:
        return seq.give(timeout_ms)


def stats_of(manager):
    return manager.shared_stats() if manager._is_attached else manager.stats()


def test_a_retained_prefix_outlives_a_flood(place, chain):
    with space_of(place) as space:
        kept, other = chain.keys(range(20 * T)), chain.keys(range(5000, 5000 + 20 * T))
        commit(space, kept), commit(space, other)
        assert space.retain(kept, session=1, pin=True, ttl_ms=60000) == 20
        assert stats_of(place)["nr_retentions"] == 1 and stats_of(place)["pinned_bytes"] == 20 * space.plan.block_bytes
        flood(space, chain)
        assert space.lookup(kept) == 20 and space.lookup(other) == 0
        space.unretain(1)
        assert stats_of(place)["nr_retentions"] == 0
        flood(space, chain)
        assert space.lookup(kept) == 0
        with pytest.raises(omnikv.StaleError, match="session 1 retains nothing"):
            space.unretain(1)


def test_hints_say_what_leaves_first(place, chain):
    with space_of(place) as space:
        stories = [chain.keys(range(1000 * i, 1000 * i + 10 * T)) for i in range(4)]
        for keys in stories:
            commit(space, keys)
        tail = omnikv.partial_key(stories[0][0], 3)
        assert space.retain(stories[0], tail, session=1, priority=7, ttl_ms=60000) == 10
        assert space.retain(stories[1], session=2, next_use_ms=1000) == 10
        # A session has one prefix.
        assert space.retain(stories[2], session=2, next_use_ms=1000) == 10
        assert stats_of(place)["nr_retentions"] == 2
        flood(space, chain)
        assert [space.lookup(keys) for keys in stories] == [10, 0, 10, 0]
        assert space.retain(stories[2], session=2, next_use_ms=omnikv.NEXT_USE_NEVER) == 10
        assert stats_of(place)["nr_retentions"] == 1
        assert space.retain(chain.keys([3] * T), session=3, ttl_ms=1000) == 0


def test_pins_beyond_their_bound_leave_what_was_pinned(place, chain):
    with space_of(place) as space:
        few = chain.keys(range(4 * T))
        nr = stats_of(place)["pin_limit_bytes"] // space.plan.block_bytes + 1
        many = chain.keys(range(9000, 9000 + nr * T))
        commit(space, few)
        assert space.retain(few, session=1, pin=True, ttl_ms=60000) == 4
        commit(space, many)
        with pytest.raises(omnikv.QuotaError, match="unretain") as error:
            space.retain(many, session=1, pin=True, ttl_ms=60000)
        assert error.value.errno == errno.EDQUOT
        assert stats_of(place)["pinned_bytes"] == 4 * space.plan.block_bytes


@pytest.mark.parametrize("options, words", [
    ({"session": 0}, ("session 0", "1 to 18446744073709551615")),
    ({"session": 1 << 64, "ttl_ms": 5}, ("session 18446744073709551616",)),
    ({"session": 1, "priority": 101, "ttl_ms": 5}, ("priority 101", "0 to 100")),
    ({"session": 1, "ttl_ms": 86400001}, ("ttl_ms of 86400001", "0 to 86400000")),
    ({"session": 1, "next_use_ms": 86400001}, ("next_use_ms of 86400001", "0 to 86400000")),
    ({"session": 1, "ttl_ms": -1}, ("ttl_ms of -1",)),
    ({"session": 1}, ("neither ttl_ms nor next_use_ms",)),
    ({"session": 1, "pin": True}, ("a pin without ttl_ms",)),
    ({"session": 1, "pin": True, "next_use_ms": 5}, ("a pin without ttl_ms",)),
    ({"session": 1, "pin": True, "ttl_ms": 5, "priority": 1}, ("a pin with priority 1",)),
    ({"session": 1, "ttl_ms": 5, "next_use_ms": omnikv.NEXT_USE_NEVER}, ("NEXT_USE_NEVER",)),
])
def test_retentions_that_can_keep_nothing_say_what_is_wrong(space, options, words):
    with pytest.raises(omnikv.InvalidError) as error:
        space.retain([b"k"], **options)
    assert "\n" not in error.value.strerror
    for word in words:
        assert word in error.value.strerror


@pytest.mark.parametrize("call, words", [
    (lambda space: space.unretain(0), ("session 0", "1 to")),
    (lambda space: space.promise([b"k"], 600001), ("timeout_ms of 600001", "0 to 600000")),
    (lambda space: space.wait(b"k", -1), ("timeout_ms of -1", "0 to 600000")),
    (lambda space: space.wait(b"", 1), ("a key of 0 bytes", "1 to 32")),
    (lambda space: space.take(b"short"), ("a ticket of 5 bytes", "16")),
    (lambda space: give(space, 0), ("timeout_ms of 0", "1 to 600000")),
    (lambda space: give(space, 1), ("an empty sequence",)),
])
def test_calls_between_processes_are_checked_here(space, call, words):
    with pytest.raises(omnikv.InvalidError) as error:
        call(space)
    for word in words:
        assert word in error.value.strerror


def test_a_manager_of_ones_own_has_nobody_to_wait_for(manager, space):
    for call in (lambda: space.promise([b"k"], 5), lambda: space.wait(b"k", 5), manager.shared_stats):
        with pytest.raises(omnikv.NotSupportedError, match="this process's own"):
            call()


def test_what_lies_on_nvme_is_brought_back_before_its_prompt_comes(tmp_path, chain):
    with omnikv.Pool("embedded:8M", hugetlb=False) as pool, \
            omnikv.SpillStore(str(tmp_path / "store"), capacity="64M", pool=pool) as spill, \
            omnikv.Manager(pool, spill=spill) as manager, space_of(manager) as space:
        keys = chain.keys(range(30 * T))
        with space.sequence(keys) as seq:
            seq.append(30 * T)
            fill(seq, 0, 30 * T)
            seq.commit(keys)
        assert manager.flush() == 30 and space.lookup(keys) == 0
        assert space.prefetch(keys[:20]) == 20
        assert space.lookup(keys) == 20 and space.prefetch([]) == 0
        with space.sequence(keys[:20]) as seq:
            assert seq.nvme_blocks == 0
            verify(seq, 0, 20 * T)


def test_a_prefetch_of_a_daemon_brings_back_what_its_store_has(tmp_path, chain):
    class SpillingDaemon(SmallDaemon):
        options = [f"--spill={tmp_path}/store", "--spill-size=64M"]
    daemon = SpillingDaemon(str(tmp_path))
    try:
        with attached(daemon) as manager, space_of(manager) as space:
            keys = chain.keys(range(30 * T))
            with space.sequence(keys) as seq:
                seq.append(30 * T)
                fill(seq, 0, 30 * T)
                seq.commit(keys)
            flood(space, chain, 1000)
            assert space.lookup(keys) == 0
            assert space.prefetch(keys) == 30 == space.lookup(keys)
    finally:
        daemon.end()


COMPUTES = f"""
import sys
sys.path.insert(0, {os.path.join(TOP, "tests", "python")!r})
import os, signal, omnikv
from conftest import fill
from test_daemon import space_of
with omnikv.connect(sys.argv[1]) as manager, space_of(manager) as space:
    keys = omnikv.ChainKey(b"0123456789abcdef", 16).keys(range(64))
    space.promise(keys, 60000)
    print("promised", flush=True)
    word = sys.stdin.readline().strip()
    if word == "commit":
        with space.sequence(keys) as seq:
            seq.append(64)
            fill(seq, 0, 64)
            seq.commit(keys)
    elif word == "withdraw":
        space.promise(keys, 0)
    else:
        os.kill(os.getpid(), signal.SIGKILL)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("word, is_cached", [("commit", True), ("withdraw", False), ("die", False)])
def test_who_waits_hears_that_it_is_there_or_never_comes(small_daemon, chain, word, is_cached):
    other = subprocess.Popen([sys.executable, "-c", COMPUTES, f"unix:{small_daemon.socket}"], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, text=True)
    heard, turns = [], []
    try:
        with attached(small_daemon) as manager, space_of(manager) as space:
            keys = chain.keys(range(64))
            assert space.wait(keys[3], 60000) is False         # nobody has promised it yet
            assert other.stdout.readline() == "promised\n"
            with pytest.raises(omnikv.DeadlineError, match="after 300 ms"):
                space.wait(keys[3], 300)
            waiter = threading.Thread(target=lambda: heard.append((space.wait(keys[3], 60000), time.monotonic())))
            waiter.start()
            for _ in range(100):                               # other threads run meanwhile
                turns.append(time.monotonic())
                time.sleep(0.01)
            assert not heard and turns[-1] - turns[0] < 10
            with pytest.raises(omnikv.BusyError, match="another thread waits"):
                space.close()
            told = time.monotonic()
            other.stdin.write(word + "\n")
            other.stdin.flush()
            waiter.join(30)
            assert heard[0][0] is is_cached and heard[0][1] - told < 20
            assert space.lookup(keys) == (4 if is_cached else 0)
            if is_cached:
                with space.sequence(keys) as seq:
                    verify(seq, 0, 64)
    finally:
        other.kill()
        other.communicate()


WAITS = f"""
import sys
sys.path.insert(0, {os.path.join(TOP, "tests", "python")!r})
import omnikv
from test_daemon import space_of
with omnikv.connect(sys.argv[1]) as manager, space_of(manager) as space:
    space.promise([b"k"], 60000)
    print("waits", flush=True)
    try:
        space.wait(b"k", 60000)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


def test_ctrl_c_ends_a_wait(small_daemon):
    with subprocess.Popen([sys.executable, "-c", WAITS, f"unix:{small_daemon.socket}"], stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout.readline() == "waits\n"
            time.sleep(0.5)
            begin = time.monotonic()
            other.send_signal(signal.SIGINT)
            assert other.stdout.readline() == "interrupted\n"
            assert time.monotonic() - begin < 10
        finally:
            other.kill()


def test_a_silent_daemon_is_a_deadline_and_no_busy_loop(small_daemon):
    with omnikv.connect(f"unix:{small_daemon.socket}", deadline_ms=200) as manager, space_of(manager) as space:
        space.promise([b"k"], 60000)
        with pytest.raises(omnikv.DeadlineError):
            space.wait(b"k", 10)           # the connection for waits is there from here on
        small_daemon.child.send_signal(signal.SIGSTOP)
        begin, cpu = time.monotonic(), time.process_time()
        with pytest.raises(omnikv.OmniKVError):
            space.wait(b"k", 2000)
        assert time.monotonic() - begin < 30 and time.process_time() - cpu < 0.3
        small_daemon.child.send_signal(signal.SIGCONT)


def test_the_epoch_that_sequences_note_can_be_asked_for(place):
    with space_of(place) as space:
        before = space.epoch()
        assert place.raise_epoch() == before + 1 == space.epoch()
