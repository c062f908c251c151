# SPDX-License-Identifier: GPL-2.0-only
"""Processes that connect to one omnikvd find each other's blocks, through deaths of each other and of the daemon."""

import os
import signal
import subprocess
import sys
import time

import omnikv
import pytest
from conftest import TOP, fill, small_layout, verify

OMNIKVD = os.path.join(os.environ.get("OMNIKV_BUILD") or os.path.join(TOP, "build"), "bin", "omnikvd")


class Daemon:
    def __init__(self, where, pool="32M"):
        self.socket, self.pool = os.path.join(where, "omnikvd.sock"), pool
        self.options = getattr(self, "options", [])
        self.start()

    def start(self):
        self.child = subprocess.Popen([OMNIKVD, f"--pool={self.pool}", f"--socket={self.socket}", *self.options], stdin=subprocess.DEVNULL,
                                      stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for _ in range(200):
            try:
                omnikv.connect(f"unix:{self.socket}").close()
                return
            except omnikv.OmniKVError:
                assert self.child.poll() is None, self.child.stderr.read().decode()
                time.sleep(0.05)
        raise AssertionError("omnikvd does not serve within 10 s")

    def end(self, how=signal.SIGTERM):
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGCONT)
            self.child.send_signal(how)
            self.child.wait(timeout=30)


@pytest.fixture
def daemon(tmp_path_factory):
    daemon = Daemon(str(tmp_path_factory.mktemp("d")))
    yield daemon
    daemon.end()


def space_of(manager):
    return manager.space(omnikv.Plan(small_layout(), block_tokens=16, granule_bytes=4096), tenant="t", weights="w")


OTHER = f"""
import sys
sys.path.insert(0, {os.path.join(TOP, "tests", "python")!r})
import os, signal, omnikv
from conftest import fill
from test_daemon import space_of
with omnikv.connect(sys.argv[1]) as manager, space_of(manager) as space:
    keys = omnikv.ChainKey(b"0123456789abcdef", 16).keys(range(64))
    with space.sequence(keys) as seq:
        seq.append(64)
        fill(seq, 0, 64)
        seq.commit(keys)
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_committed_is_found_by_the_next(daemon, chain):
    done = subprocess.run([sys.executable, "-c", OTHER, f"unix:{daemon.socket}"], timeout=60, check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    with omnikv.connect(f"unix:{daemon.socket}") as manager, space_of(manager) as space:
        keys = chain.keys(range(64))
        assert space.lookup(keys) == 4
        with space.sequence(keys) as seq:
            assert seq.tokens == 64
            verify(seq, 0, 64)


LOOKS = f"""
import sys
sys.path.insert(0, {os.path.join(TOP, "tests", "python")!r})
import time, omnikv
from test_daemon import space_of
with omnikv.connect(sys.argv[1]) as manager, space_of(manager) as space:
    keys = omnikv.ChainKey(b"0123456789abcdef", 16).keys(range(16 * 1000))
    print("ready", flush=True)
    nothing = 0
    while nothing < 100 and time.monotonic() < float(sys.argv[2]):
        begin = time.monotonic()
        found = space.lookup(keys)
        nothing += not found
        print(begin, found, flush=True)
"""


def test_weights_that_are_new_in_one_process_are_new_in_all(daemon, chain):
    """A lookup that begins after the epoch was raised finds nothing older, and the memory of it is free again."""
    keys = chain.keys(range(16 * 1000))
    with omnikv.connect(f"unix:{daemon.socket}") as manager, space_of(manager) as space:
        with space.sequence() as seq:
            seq.append(16 * 1000)
            seq.commit(keys)
        free, end = manager.pool_info().free, time.monotonic() + 60
        others = [subprocess.Popen([sys.executable, "-c", LOOKS, f"unix:{daemon.socket}", str(end)], stdout=subprocess.PIPE, text=True)
                  for _ in range(2)]
        for other in others:
            assert other.stdout.readline() == "ready\n" and float(other.stdout.readline().split()[1]) == 1000
        epoch = manager.raise_epoch()
        raised = time.monotonic()
        assert epoch > 0 and space.lookup(keys) == 0
        looks = [tuple(map(float, line.split())) for other in others for line in other.stdout]
        assert [other.wait(timeout=60) for other in others] == [0, 0]
        assert {found for begin, found in looks if begin > raised} == {0}
        assert manager.pool_info().free - free >= 1000 * space.plan.block_bytes


def test_the_daemons_own_manager_is_named(daemon):
    with pytest.raises(omnikv.OmniKVError, match="the daemon manages this pool.*unix:SOCKET"):
        omnikv.connect(f"daemon:{daemon.socket}")


def test_rings_move_bytes_of_the_daemons_pool(daemon, chain):
    import numpy
    engine = numpy.arange(4 * 16 * 64, dtype=numpy.float32)
    back = numpy.zeros_like(engine)
    with omnikv.connect(f"unix:{daemon.socket}") as one, omnikv.connect(f"unix:{daemon.socket}") as two, \
            space_of(one) as here, space_of(two) as there, omnikv.Ring(one) as out, omnikv.Ring(two) as into:
        keys = chain.keys(range(64))
        with here.sequence() as seq, out.attach(engine) as memory:
            seq.append(64)
            fill(seq, 0, 64)
            assert out.wait(out.store(memory, *seq.pieces(0, 1, 1, 0, 64)))
            assert seq.commit(keys) == 4
        with there.sequence(keys) as seq, into.attach(back) as memory:
            assert seq.tokens == 64
            transfer = into.load(memory, *seq.pieces(0, 1, 1, 0, 64), crc=True)
            assert into.wait(transfer) and not transfer.failed()
    assert (back == engine).all()


def test_nobody_there_is_told_by_the_socket(tmp_path):
    with pytest.raises(omnikv.DisconnectedError, match="nobody.sock"):
        omnikv.connect(f"unix:{tmp_path}/nobody.sock")


def test_a_stopped_daemon_hangs_nobody(daemon, chain):
    with omnikv.connect(f"unix:{daemon.socket}", deadline_ms=200) as manager, space_of(manager) as space:
        keys = chain.keys(range(64))
        daemon.child.send_signal(signal.SIGSTOP)
        begin = time.monotonic()
        try:
            with space.sequence(keys) as seq:
                seq.append(64)
                fill(seq, 0, 64)
                seq.commit(keys)
        except omnikv.OmniKVError as error:
            assert "\n" not in error.strerror
        # Some five seconds a request to the pool; connectors of engines wait by a thread of their own.
        assert time.monotonic() - begin < 60
        daemon.child.send_signal(signal.SIGCONT)
