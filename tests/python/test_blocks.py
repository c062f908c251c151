# SPDX-License-Identifier: GPL-2.0-only
"""Whole blocks between a pool and a paged cache: each lands in its own slot, and what does not arrive is told."""

import ctypes
import time

import numpy
import omnikv
import pytest
from omnikv.blocks import BlockMover, Courier, PagedLayer, StuckError, block_layout, block_space, paged_layer

T = 16


@pytest.mark.parametrize("shape, strides, blocks, expected", [
    ((10, 4, 16, 64), (4096, 1024, 64, 1), 10, (16384, 1, 0, 16384)),              # one run a block
    ((2, 10, 16, 8, 32), (40960, 4096, 256, 32, 1), 10, (16384, 2, 163840, 16384)),   # K and V apart
    ((10, 2, 16, 256), (8192, 4096, 256, 1), 10, (32768, 1, 0, 32768)),            # K and V in the block
    ((10, 16, 4, 64), (4096, 64, 1024, 1), 10, (16384, 1, 0, 16384)),              # heads outermost within the block
    ((40, 16, 64), (1024, 64, 1), 10, (16384, 1, 0, 16384)),                       # four parts a block
    ((10, 4, 16, 64), (3 * 4096, 1024, 64, 1), 10, (3 * 16384, 1, 0, 16384)),      # layers side by side in each block
    ((2, 16, 16, 64), (16384, 1024, 64, 1), 16, (4096, 2, 65536, 4096)),           # as many blocks as tokens in one
])
def test_caches_of_every_order_are_understood(shape, strides, blocks, expected):
    assert paged_layer(shape, strides, 4, blocks) == expected


@pytest.mark.parametrize("shape, strides", [
    ((7, 16, 64), (1024, 64, 1)),                  # no dimension of 10 blocks
    ((10, 16, 64), (2048, 128, 1)),                # rows apart
    ((2, 3, 10, 64), (1920, 640, 64, 1)),          # two dimensions outside
])
def test_caches_that_are_not_dense_are_refused_with_their_shape(shape, strides):
    with pytest.raises(ValueError, match=str(shape[0])):
        paged_layer(shape, strides, 4, 10)
    with pytest.raises(ValueError, match="2 blocks"):
        paged_layer((2, 2, 1024), (2048, 1024, 1), 4, 2)


class Engine:
    """A paged cache of 3 layers, K and V apart in two of them and together in one."""

    def __init__(self, manager, blocks=32):
        self.caches = [numpy.full((2, blocks, 1024), 0xa5, dtype=numpy.uint8), numpy.full((2, blocks, 1024), 0xa5, dtype=numpy.uint8),
                       numpy.full((blocks, 2, 1024), 0xa5, dtype=numpy.uint8)]
        layers = [PagedLayer(cache.ctypes.data, cache.nbytes, cache, 0, *paged_layer(cache.shape, cache.strides, 1, blocks))
                  for cache in self.caches]
        self.mover = BlockMover(manager, layers, 5)
        self.space = block_space(manager, block_layout(3, 2048, T), T, {"tenant": "t"})

    def block(self, slot):
        return b"".join((cache[:, slot] if cache.shape[0] == 2 else cache[slot]).tobytes() for cache in self.caches)

    def fill(self, slot, seed):
        chance = numpy.random.default_rng(seed)
        for cache in self.caches:
            part = cache[:, slot] if cache.shape[0] == 2 else cache[slot]
            part[:] = chance.integers(0, 256, part.shape, dtype=numpy.uint8)

    def close(self):
        self.mover.close()
        self.space.close()


@pytest.fixture
def pair(manager):
    engines = Engine(manager), Engine(manager)
    yield engines
    for engine in engines:
        engine.close()


def test_blocks_reach_the_slots_they_are_meant_for(pair, chain):
    one, two = pair
    keys = chain.keys(range(8 * T))
    slots = [5, 30, 1, 17, 2, 9, 0, 11]
    for number, slot in enumerate(slots):
        one.fill(slot, number)
    assert one.mover.save(one.space, keys, slots) == 8
    assert one.mover.save(one.space, keys, slots) == 0
    others = [31, 4, 8, 6, 22, 23, 24, 3]
    for first in (0, 3, 7, 8):
        for cache in two.caches:
            cache[:] = 0xa5
        assert two.mover.load(two.space, keys, others[first:], first) == set()
        for number, slot in enumerate(others):
            if number >= first:
                assert two.block(slot) == one.block(slots[number])
        untouched = set(range(32)) - set(others[first:])
        assert all(two.block(slot) == b"\xa5" * 6144 for slot in untouched)


def test_what_is_gone_is_told_and_the_rest_arrives(pair, chain, manager):
    one, two = pair
    keys = chain.keys(range(8 * T))
    slots = list(range(8))
    for slot in slots:
        one.fill(slot, slot)
    one.mover.save(one.space, keys[:5], slots[:5])
    assert two.mover.load(two.space, keys, slots[1:], 1) == {5, 6, 7}
    assert [two.block(slot) == one.block(slot) for slot in slots] == [False] + [True] * 4 + [False] * 3
    manager.reset()
    assert two.mover.load(two.space, keys, slots, 0) == set(range(8))


def test_a_block_that_was_overwritten_in_the_pool_is_never_believed(pair, chain):
    one, two = pair
    keys = chain.keys(range(4 * T))
    for slot in range(4):
        one.fill(slot, slot)
    one.mover.save(one.space, keys, range(4))
    with one.space.sequence(keys) as seq:
        view = seq.rows(0, 2, 0, 2 * T, 3 * T)[0]
        ctypes.memset(view.address + 100, 0x11, 1)
        ctypes.memset(view.address + 101, 0x22, 1)
        del view
    assert two.mover.load(two.space, keys, range(4), 0) == {2}
    assert two.mover.load(two.space, keys, range(4), 0, verify=False) == set()


def test_a_full_pool_refuses_and_keeps_what_it_has(pair, chain, manager):
    one, _ = pair
    keys = chain.keys(range(4 * T))
    one.mover.save(one.space, keys, range(4))
    with one.space.sequence() as hog:
        with pytest.raises(omnikv.NoSpaceError):
            while True:
                hog.append(64 * T)
        while True:
            try:
                hog.append(T)
            except omnikv.NoSpaceError:
                break
        with pytest.raises(omnikv.NoSpaceError):
            one.mover.save(one.space, chain.keys([7] * 4 * T), range(4))
    assert one.mover.save(one.space, chain.keys([7] * 4 * T), range(4)) == 4


def test_nobody_waits_for_the_courier_longer_than_its_deadline():
    courier = Courier(0.2)
    assert courier.ask(lambda job: 7) == 7
    with pytest.raises(ZeroDivisionError):
        courier.ask(lambda job: 1 // 0)
    touched = []

    def slow(job):
        time.sleep(0.6)
        job.begin()
        touched.append(1)
    begin = time.monotonic()
    with pytest.raises(omnikv.DeadlineError):
        courier.ask(slow)
    assert 0.15 < time.monotonic() - begin < 0.5
    time.sleep(0.1)
    assert courier.is_late
    begin = time.monotonic()
    with pytest.raises(omnikv.DeadlineError):      # at once: the one before is late
        courier.ask(lambda job: 7)
    assert time.monotonic() - begin < 0.1
    time.sleep(0.6)
    # What was given up never touches the memory that it was to touch.
    assert not touched and courier.ask(lambda job: 7) == 7


def test_a_copy_that_has_begun_is_waited_for():
    courier, seen = Courier(0.2), []

    def copy(job):
        job.begin()
        time.sleep(0.5)
        seen.append(1)
        job.over("copied")
        time.sleep(0.5)
        seen.append(2)
    assert courier.ask(copy) == "copied" and seen == [1]

    def stuck(job):
        job.begin()
        time.sleep(4)
    courier = Courier(0.2)
    with pytest.raises(StuckError):
        courier.ask(stuck)
