# SPDX-License-Identifier: GPL-2.0-only
"""Prompts that end anywhere, beside prefixes that are there already: byte-exact, and nothing outside is touched."""

import numpy
import omnikv
import pytest
from conftest import row, small_layout

T = 256
LENGTHS = (1, 255, 256, 257, 511, 512, 513, 4096, 4097)
GUARD = 4096


def stored(seq, begin, end):
    for buffer in seq.rows(0, 0, 0, begin, end):
        for line in numpy.asarray(buffer):
            line[:] = row(begin, 0, 0, line.size).reshape(line.shape)
            begin += 1


@pytest.mark.parametrize("length", LENGTHS)
def test_loads_end_where_the_prompt_ends(length):
    done = 0
    plane = {"dtype": "f32", "heads": 1, "elems": 8}
    layout = omnikv.Layout.parse({"name": "narrow", "nr_layers": 1, "groups": [
        {"kind": "full", "layers": "all", "planes": [dict(plane, role="k")]}]})
    plan = omnikv.Plan(layout, block_tokens=T, granule_bytes=4096)
    with omnikv.connect("embedded:8M", hugetlb=False) as manager, omnikv.Ring(manager) as ring, \
            omnikv.ChainKey(b"0123456789abcdef", T) as chain:
        for prefix in sorted({p for p in (0, 16, 240, 256, 272, length - 1, length) if p <= length}):
            with manager.space(plan, tenant=f"{prefix}") as space:
                keys = chain.keys(range(length))
                more = chain.keys(range(-(-length // T) * T))
                tail = omnikv.partial_key(more[len(keys)], length % T) if length % T else None
                with space.sequence() as seq:
                    seq.append(length)
                    stored(seq, 0, length)
                    seq.commit(keys, tail=tail)
                with space.sequence(keys, tail=tail) as seq:
                    assert seq.tokens == length
                    # The engine has the rows up to prefix: only what is behind may be written.
                    engine = numpy.full(2 * GUARD + length * 8, -1.0, dtype=numpy.float32)
                    with ring.attach(engine) as memory:
                        if prefix < length:
                            pieces, count = seq.pieces(0, 0, 0, prefix, length, (GUARD + prefix * 8) * 4)
                            transfer = ring.load(memory, pieces, count)
                            assert ring.wait(transfer) and transfer.result == (length - prefix) * 32
                    rows = engine[GUARD:-GUARD].reshape(length, 8)
                    assert (engine[:GUARD] == -1).all() and (engine[-GUARD:] == -1).all() and (rows[:prefix] == -1).all()
                    for token in range(prefix, length):
                        assert (rows[token] == row(token, 0, 0, 8)).all()
                    done += 1
        manager.check()
    assert done


def test_small_layout_is_what_the_other_tests_take_it_for():
    assert small_layout().token_bytes == 3 * 2 * 2 * 32 * 4
