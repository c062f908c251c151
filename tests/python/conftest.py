# SPDX-License-Identifier: GPL-2.0-only
"""What the tests of the Python package share: a small model, a manager over a pool of this process."""

import os

import numpy
import pytest

import omnikv

TOP = os.environ.get("OMNIKV_TOP") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def small_layout(layers=3, heads=2, elems=32, dtype="f32"):
    plane = {"dtype": dtype, "heads": heads, "elems": elems}
    return omnikv.Layout.parse({"name": "small", "nr_layers": layers, "groups": [
        {"kind": "full", "layers": "all", "planes": [dict(plane, role="k"), dict(plane, role="v")]}]})


def row(token, layer, plane, count):
    """What the row of a token must hold: distinct in every position."""
    return numpy.arange(count, dtype=numpy.float32) + 1000.0 * token + 100000.0 * layer + 1000000.0 * plane


def fill(seq, begin, end, layers=3, salt=0):
    for layer in range(layers):
        for plane in range(2):
            token = begin
            for buffer in seq.rows(0, layer, plane, begin, end):
                for line in numpy.asarray(buffer):
                    line[:] = row(token + salt, layer, plane, line.size).reshape(line.shape)
                    token += 1


def verify(seq, begin, end, layers=3, salt=0):
    for layer in range(layers):
        for plane in range(2):
            token = begin
            for buffer in seq.rows(0, layer, plane, begin, end):
                for line in numpy.asarray(buffer):
                    assert (line == row(token + salt, layer, plane, line.size).reshape(line.shape)).all(), (layer, plane, token)
                    token += 1
            assert token == end


@pytest.fixture
def manager():
    with omnikv.connect("embedded:8M", hugetlb=False) as manager:
        yield manager
        manager.check()


@pytest.fixture
def space(manager):
    with manager.space(omnikv.Plan(small_layout(), block_tokens=16, granule_bytes=4096), tenant="t", weights="w") as space:
        yield space


@pytest.fixture
def chain():
    with omnikv.ChainKey(b"0123456789abcdef", 16) as chain:
        yield chain
