# SPDX-License-Identifier: GPL-2.0-only
"""Views of a sequence's rows show these rows or nothing: what would take them away is refused, and what names them looks again."""

import sys

import numpy
import omnikv
import pytest
from conftest import small_layout

T = 16


def opened(space, nr_tokens=T, value=None):
    seq = space.sequence()
    seq.append(nr_tokens)
    if value is not None:
        for rows in seq.rows(0, 0, 0, 0, nr_tokens):
            numpy.asarray(rows)[:] = value
    return seq


def first_rows(seq):
    return seq.rows(0, 0, 0, 0, min(seq.tokens, T))[0]


def memoryview_of(rows):
    return rows.memory


def slice_of(rows):
    return rows.memory[4:8].cast("f")


def array_of(rows):
    return numpy.asarray(rows)[3:, 1]


def dlpack_of(rows):
    return numpy.from_dlpack(rows)


VIEWS = (memoryview_of, slice_of, array_of, dlpack_of)


@pytest.mark.parametrize("view_of", VIEWS)
@pytest.mark.parametrize("take_away", [
    lambda seq: seq.commit([b"k"]), lambda seq: seq.truncate(0), lambda seq: seq.fork(),
], ids=["commit", "truncate", "fork"])
def test_a_view_that_outlives_its_rows_writes_into_another_sequence(space, view_of, take_away):
    """A block that has the key already makes commit() give up the one that the view shows."""
    opened(space, value=1).commit([b"k"])
    with opened(space, value=2) as seq:
        view = view_of(first_rows(seq))
        with pytest.raises(BufferError, match="block 0") as error:
            take_away(seq)
        assert isinstance(error.value, omnikv.BusyError) and "\n" not in error.value.strerror
        assert (seq.tokens, seq.cached_tokens) == (T, 0)
        del view
        result = take_away(seq)
        if isinstance(result, omnikv.Sequence):
            result.close()


def test_a_released_memoryview_lets_its_rows_go(space):
    with opened(space) as seq, first_rows(seq).memory as view:
        with pytest.raises(BufferError):
            seq.truncate(0)
        view.release()
        seq.truncate(0)


def test_a_buffer_of_rows_that_were_given_up_writes_into_another_sequence(space):
    first, second = opened(space, value=1), opened(space, value=2)
    rows = first_rows(second)
    first.commit([b"k"])
    second.commit([b"k"])
    other = opened(space, value=3)
    assert rows.readonly and (numpy.asarray(rows) == 1).all()
    with pytest.raises(ValueError, match="read-only"):
        numpy.asarray(rows)[:] = 9
    assert (numpy.asarray(first_rows(other)) == 3).all()


def test_a_buffer_of_rows_that_were_dropped_shows_anothers(space):
    seq = opened(space, value=1)
    rows = first_rows(seq)
    seq.truncate(0)
    other = opened(space, value=2)
    with pytest.raises(omnikv.InvalidError):
        rows.memory
    seq.append(T)
    numpy.asarray(rows)[:] = 5
    assert (numpy.asarray(first_rows(seq)) == 5).all() and (numpy.asarray(first_rows(other)) == 2).all()
    seq.close()
    assert "closed" in repr(rows)
    with pytest.raises(ValueError, match="closed"):
        rows.memory


def test_cached_bytes_can_be_changed_through_what_was_taken_before_the_commit(space):
    with opened(space, value=1) as seq:
        rows = first_rows(seq)
        assert not rows.readonly
        seq.commit([b"k"])
        assert rows.readonly and rows.memory.readonly
        view = numpy.asarray(rows)
        assert not view.flags.writeable
        # Nothing of it is taken away by what concerns other blocks.
        seq.append(T)
        seq.commit([b"k", b"l"])
        seq.truncate(T)
        with seq.fork() as fork:
            assert first_rows(fork).readonly
        assert (view == 1).all()


def test_rows_of_a_fork_are_the_parents_and_writable(space):
    with opened(space, 20, value=1) as seq, seq.fork() as fork:
        for one in (seq, fork):
            for rows in one.rows(0, 0, 0, 0, 20):
                assert rows.readonly
                with pytest.raises(TypeError, match="read-only"):
                    rows.memory[0] = 2
        fork.append(2)
        block, tail = fork.rows(0, 0, 0, 0, 22)
        assert block.readonly and not tail.readonly
        numpy.asarray(tail)[:] = 7
        assert all((numpy.asarray(rows) == 1).all() for rows in seq.rows(0, 0, 0, 0, 20))
        seq.truncate(0)
        seq.append(T)
        assert not first_rows(seq).readonly


def test_a_view_of_a_tail_that_an_append_copies_shows_what_was_given_up(space):
    with opened(space, 20, value=1) as seq, seq.fork() as fork:
        view = numpy.asarray(fork.rows(0, 0, 0, T, 20)[0])
        with pytest.raises(BufferError, match="block 1"):
            fork.append(1)
        assert fork.tokens == 20 and (view == 1).all()
        seq.append(1)
        del view
        fork.append(1)
        view = numpy.asarray(fork.rows(0, 0, 0, T, 21)[0])
        fork.append(3)         # in place: a decoding step may keep its views
        view[:] = 2


def test_a_view_of_a_state_that_an_append_gives_up_shows_what_was_given_up(manager):
    layout = omnikv.Layout.parse({"name": "mixed", "nr_layers": 2, "groups": [
        {"kind": "full", "layers": [0], "planes": [{"role": "k", "dtype": "f32", "heads": 1, "elems": 8}]},
        {"kind": "recurrent", "layers": [1], "planes": [{"role": "state", "dtype": "f32", "heads": 1, "elems": 8}]}]})
    with manager.space(omnikv.Plan(layout, block_tokens=T, granule_bytes=4096)) as space, space.sequence() as seq:
        seq.append(T)
        old = numpy.asarray(seq.rows(1, 1, 0, 0, T)[0])
        old[:] = 1
        seq.append(T)          # a step reads the state before it while it computes the next
        assert (old == 1).all() and not seq.rows(1, 1, 0, 0, 2 * T)[0].readonly
        with pytest.raises(BufferError, match="block 0"):
            seq.append(T)
        del old
        seq.append(T)
        with pytest.raises(omnikv.LostError):
            seq.rows(1, 1, 0, 0, T)


@pytest.mark.parametrize("dtype", ["bf16", "f8_e4m3", "f8_e5m2"])
def test_floats_assigned_to_rows_that_numpy_has_no_type_for_store_other_bits(manager, dtype, monkeypatch):
    with manager.space(omnikv.Plan(small_layout(dtype=dtype), block_tokens=T, granule_bytes=4096)) as space, opened(space) as seq:
        rows = first_rows(seq)
        array = numpy.asarray(rows)
        array[:] = 1.5
        assert array.shape == rows.shape and (array.astype("f4") == 1.5).all()
        assert rows.memory[:2] == {"bf16": b"\xc0\x3f", "f8_e4m3": b"\x3c\x3c", "f8_e5m2": b"\x3e\x3e"}[dtype]
        del array
        monkeypatch.setitem(sys.modules, "ml_dtypes", None)
        with pytest.raises(TypeError, match="install ml_dtypes") as error:
            numpy.asarray(rows)
        assert f"uint{16 if dtype == 'bf16' else 8}" in str(error.value)


def test_numpy_is_given_what_it_asks_for(space):
    with opened(space, value=1.5) as seq:
        rows = first_rows(seq)
        assert numpy.array(rows).base is None and numpy.asarray(rows, "f8").dtype == "f8"
        assert numpy.array(rows, copy=True).flags.owndata
        seq.truncate(0)        # none of these is a view
