# SPDX-License-Identifier: GPL-2.0-only
"""Blocks of several ranks: whole with the last part, or not at all, whoever is killed; and what is whose meanwhile."""

import errno
import os
import signal
import subprocess
import sys
import time

import numpy
import omnikv
import pytest
from conftest import TOP
from test_sessions import attached, small_daemon

T = 16
RANKS = 4


def ranks_layout(nr=RANKS):
    """A group, and a layer, a rank."""
    planes = [{"role": role, "dtype": "f32", "heads": 2, "elems": 32} for role in ("k", "v")]
    return omnikv.Layout.parse({"name": "ranks", "nr_layers": nr, "groups": [
        {"kind": "full", "layers": [i], "planes": planes} for i in range(nr)]})


def ranks_space(manager):
    return manager.space(omnikv.Plan(ranks_layout(), block_tokens=T, granule_bytes=4096), tenant="t", weights="w")


def values(rank, plane, salt=0, nr_tokens=T):
    return numpy.arange(nr_tokens * 64, dtype=numpy.float32).reshape(nr_tokens, 2, 32) + 1000000 * (rank + 1) + 100000 * plane + salt


def fill_part(part, rank, salt=0):
    for plane in range(2):
        numpy.asarray(part.rows(rank, rank, plane))[:] = values(rank, plane, salt, part.nr_tokens)


def assert_is_whole(space, keys, nr_tokens, tail=None, salt=0):
    with space.sequence(keys, tail=tail) as seq:
        assert seq.tokens == nr_tokens
        first = (nr_tokens - 1) // T * T
        for rank in range(RANKS):
            for plane in range(2):
                rows = numpy.asarray(seq.rows(rank, rank, plane, first, nr_tokens)[0])
                assert (rows == values(rank, plane, salt, nr_tokens - first)).all()
            seq.block_crc(first // T, rank)


def no_part_is_left(manager, space):
    """Nothing is private or cached any more."""
    end = time.monotonic() + 10
    while True:
        manager.reset()
        states = manager.pool_info().by_state
        if not states["private"] + states["sealed"] + states["quarantined"] or time.monotonic() > end:
            break
        time.sleep(0.05)
    assert states["private"] + states["sealed"] + states["quarantined"] == 0


CONTRIBUTES = f"""
import sys
sys.path.insert(0, {os.path.join(TOP, "tests", "python")!r})
import os, signal, omnikv
from test_join import RANKS, fill_part, ranks_space
socket, rank, key, timeout_ms, how = sys.argv[1], int(sys.argv[2]), bytes.fromhex(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
with omnikv.connect(socket, deadline_ms=20000) as manager, ranks_space(manager) as space:
    part = space.part([rank])
    fill_part(part, rank)
    if how == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    is_whole = part.commit_join(key, part=rank, nr_parts=RANKS, timeout_ms=timeout_ms)
    assert part.closed
    print(is_whole, flush=True)
    if how == "after":
        os.kill(os.getpid(), signal.SIGKILL)
    # Who ends before the block is whole takes it along.
    print(space.wait(key, 60000), flush=True)
"""


def contribute(daemon, ranks, key, timeout_ms=60000, how="through"):
    return [subprocess.Popen([sys.executable, "-c", CONTRIBUTES, f"unix:{daemon.socket}", str(rank), key.hex(), str(timeout_ms), how],
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) for rank in ranks]


def test_parts_of_four_processes_make_one_block(small_daemon):
    with attached(small_daemon) as manager, ranks_space(manager) as space:
        others = contribute(small_daemon, range(RANKS), b"k")
        told = [other.communicate(timeout=60)[0].split() for other in others]
        assert all(other.returncode == 0 for other in others)
        assert sorted(words[0] for words in told) == ["False"] * 3 + ["True"] and {words[1] for words in told} == {"True"}
        assert_is_whole(space, [b"k"], T)
        no_part_is_left(manager, space)


def no_rank_found(manager, space, others):
    assert [other.communicate(timeout=60)[0] for other in others] == ["False\n"] * len(others)
    assert space.lookup([b"k"]) == 0 and not space.wait(b"k", 0)
    no_part_is_left(manager, space)


def test_who_is_killed_before_its_part_is_missed_until_the_deadline(small_daemon):
    with attached(small_daemon) as manager, ranks_space(manager) as space:
        others = contribute(small_daemon, range(1, RANKS), b"k", timeout_ms=2000)
        assert [other.stdout.readline() for other in others] == ["False\n"] * 3
        victim = contribute(small_daemon, [0], b"k", how="before")[0]
        assert victim.wait(timeout=60) == -signal.SIGKILL
        no_rank_found(manager, space, others)


def test_who_is_killed_with_its_part_takes_the_block_along(small_daemon):
    """At once: the deadline is a minute away."""
    with attached(small_daemon) as manager, ranks_space(manager) as space:
        others = contribute(small_daemon, (1, 2), b"k")
        assert [other.stdout.readline() for other in others] == ["False\n"] * 2
        begin = time.monotonic()
        victim = contribute(small_daemon, [0], b"k", how="after")[0]
        assert victim.wait(timeout=60) == -signal.SIGKILL and victim.communicate()[0] == "False\n"
        no_rank_found(manager, space, others)
        assert time.monotonic() - begin < 40
        # The rest begins another one, which nobody completes.
        with pytest.raises(omnikv.DeadlineError):
            assert not space.part([3]).commit_join(b"k", part=3, nr_parts=RANKS, timeout_ms=60000)
            space.wait(b"k", 100)


def test_a_part_is_its_own_until_it_is_joined(small_daemon):
    with attached(small_daemon) as manager, ranks_space(manager) as space:
        part = space.part([2, 0])
        assert (part.groups, part.nr_tokens) == ((0, 2), T)
        rows = part.rows(2, 2, 1)
        assert rows.shape == (T, 2, 32) and not rows.readonly and not numpy.asarray(rows).any()
        view = numpy.asarray(rows)
        with pytest.raises(BufferError, match="lives") as error:
            part.commit_join(b"k", part=0, nr_parts=2, timeout_ms=1000)
        assert isinstance(error.value, omnikv.ViewError) and not part.closed
        with pytest.raises(omnikv.BusyError):
            space.close()
        part.close()
        view[:] = 5            # closed with its last view
        assert part.closed and manager.pool_info().by_state["private"] > 0
        del view
        no_part_is_left(manager, space)
        with pytest.raises(ValueError, match="closed"):
            part.commit_join(b"k", part=0, nr_parts=2, timeout_ms=1000)


def test_a_part_that_is_refused_is_kept_and_one_that_is_dropped_is_not(small_daemon):
    with attached(small_daemon) as manager, ranks_space(manager) as space:
        whole, late, tail = space.part(), space.part(), space.part(nr_tokens=5)
        for part in (whole, late, tail):
            for rank in range(RANKS):
                fill_part(part, rank)
        assert whole.commit_join(b"k", part=0, nr_parts=1, timeout_ms=1000) and whole.closed
        with pytest.raises(omnikv.ExistsError, match="cached already") as error:
            late.commit_join(b"k", part=0, nr_parts=1, timeout_ms=1000)
        assert error.value.errno == errno.EEXIST and not late.closed
        assert late.commit_join(b"l", part=0, nr_parts=1, timeout_ms=1000, position=1, parent=b"k")
        assert tail.commit_join(b"t", part=0, nr_parts=1, timeout_ms=1000, position=2, parent=b"l")
        assert_is_whole(space, [b"k", b"l"], 2 * T + 5, tail=b"t")
        # The same part twice, then one behind a block that is not there.
        first, second, third = space.part([0]), space.part([1]), space.part()
        assert not first.commit_join(b"c", part=0, nr_parts=2, timeout_ms=60000)
        with pytest.raises(omnikv.CanceledError, match="all parts of the block are dropped"):
            second.commit_join(b"c", part=0, nr_parts=2, timeout_ms=60000)
        with pytest.raises(omnikv.StaleError, match="the block before it"):
            third.commit_join(b"z", part=0, nr_parts=1, timeout_ms=1000, position=1, parent=b"y")
        assert second.closed and third.closed
        no_part_is_left(manager, space)


def test_parts_of_an_older_epoch_are_dropped(small_daemon):
    with attached(small_daemon) as manager, ranks_space(manager) as space:
        before = space.epoch()
        part = space.part()
        manager.raise_epoch()
        for old in (part, space.part(epoch=before)):
            with pytest.raises(omnikv.StaleError, match="epoch"):
                old.commit_join(b"k", part=0, nr_parts=1, timeout_ms=1000)
            assert old.closed
        assert space.part().commit_join(b"k", part=0, nr_parts=1, timeout_ms=1000)
        no_part_is_left(manager, space)


def test_a_ring_fills_a_part(small_daemon):
    engine = numpy.concatenate([values(1, plane) for plane in range(2)])
    with attached(small_daemon) as manager, ranks_space(manager) as space, omnikv.Ring(manager) as ring, ring.attach(engine) as memory:
        part = space.part([1])
        transfers = [ring.store(memory, *part.pieces(1, 0, plane, plane * T * 64 * 4)) for plane in range(2)]
        assert ring.wait(*transfers) and [t.result for t in transfers] == [T * 64 * 4] * 2
        others = space.part([0, 2, 3])
        for rank in others.groups:
            fill_part(others, rank)
        assert not part.commit_join(b"k", part=0, nr_parts=2, timeout_ms=60000)
        assert others.commit_join(b"k", part=1, nr_parts=2, timeout_ms=60000)
        assert_is_whole(space, [b"k"], T)


def test_parts_come_out_of_a_pool_that_is_full_of_cached_blocks(small_daemon):
    with attached(small_daemon) as manager, ranks_space(manager) as space:
        for i in range(2000):
            assert space.part().commit_join(b"k%d" % i, part=0, nr_parts=1, timeout_ms=1000)
        with space.sequence() as seq, pytest.raises(omnikv.NoSpaceError, match="no room for a part") as error:
            while True:
                try:
                    seq.append(T)
                except omnikv.NoSpaceError:
                    space.part()
        assert error.value.errno == errno.ENOSPC


@pytest.mark.parametrize("call, words", [
    (lambda space: space.part([]), ("groups []", "one or more")),
    (lambda space: space.part([1, 1]), ("groups [1, 1]", "each once")),
    (lambda space: space.part([4]), ("group 4", "0 to 3")),
    (lambda space: space.part([-1]), ("group -1",)),
    (lambda space: space.part(nr_tokens=0), ("0 tokens", "1 to 16")),
    (lambda space: space.part(nr_tokens=17), ("17 tokens", "1 to 16")),
    (lambda space: space.part([1]).rows(0, 0, 0), ("group 0 is not in this part", "it has 1")),
    (lambda space: space.part([1]).rows(1, 0, 0), ("layer 0 is in another group",)),
    (lambda space: space.part([1]).rows(1, 1, 2), ("plane 2", "0 to 1")),
    (lambda space: space.part([1]).pieces(1, 1, 0), ("stored layer 1", "0 to 0")),
    (lambda space: space.part([1]).pieces(1, 0, 0, -1), ("device_off -1",)),
    (lambda space: space.part().commit_join(b"", part=0, nr_parts=1, timeout_ms=1), ("a key of 0 bytes",)),
    (lambda space: space.part().commit_join(b"k", part=1, nr_parts=1, timeout_ms=1), ("part 1", "0 to 0")),
    (lambda space: space.part().commit_join(b"k", part=0, nr_parts=0, timeout_ms=1), ("nr_parts of 0", "1 to")),
    (lambda space: space.part().commit_join(b"k", part=0, nr_parts=1, timeout_ms=0), ("timeout_ms of 0", "1 to 600000")),
    (lambda space: space.part().commit_join(b"k", part=0, nr_parts=1, timeout_ms=1, position=1), ("position 1 without a parent",)),
    (lambda space: space.part().commit_join(b"k", part=0, nr_parts=1, timeout_ms=1, parent=b"p"), ("position 0 with a parent",)),
    (lambda space: space.part().commit_join(b"k", part=0, nr_parts=1, timeout_ms=1, position=1 << 32, parent=b"p"), ("position 4294967296",)),
])
def test_parts_out_of_bounds_say_the_value_and_its_bounds(small_daemon, call, words):
    with attached(small_daemon) as manager, ranks_space(manager) as space:
        with pytest.raises(omnikv.InvalidError) as error:
            call(space)
        assert "\n" not in error.value.strerror and "omnikv_" not in error.value.strerror
        for word in words:
            assert word in error.value.strerror
        del error


def test_a_manager_of_ones_own_makes_no_blocks_with_others(space):
    with pytest.raises(omnikv.NotSupportedError, match="this process's own"):
        space.part()


def test_a_tail_within_an_entry_is_no_part(small_daemon):
    plane = {"role": "k", "dtype": "f32", "heads": 1, "elems": 32}
    layout = omnikv.Layout.parse({"name": "compressed", "nr_layers": 2, "groups": [
        {"kind": "full", "layers": [0], "planes": [plane]},
        {"kind": "compressed", "layers": [1], "planes": [dict(plane, role="kv")], "tokens_per_entry": 4}]})
    with attached(small_daemon) as manager, manager.space(omnikv.Plan(layout, block_tokens=T, granule_bytes=4096)) as space:
        with pytest.raises(omnikv.InvalidError, match="within an entry of group 1"):
            space.part(nr_tokens=6)
        with space.part(nr_tokens=8) as part:
            assert part.rows(1, 1, 0).shape == (2, 1, 32) and part.rows(0, 0, 0).shape == (8, 1, 32)


def test_a_daemon_that_is_gone_leaves_the_part_to_the_end(small_daemon):
    manager = omnikv.connect(f"unix:{small_daemon.socket}", deadline_ms=200)
    with ranks_space(manager) as space:
        part = space.part()
        small_daemon.end(signal.SIGKILL)
        with pytest.raises(omnikv.DisconnectedError, match="ends with this process"):
            part.commit_join(b"k", part=0, nr_parts=1, timeout_ms=1000)
        assert part.closed
    manager.close()
