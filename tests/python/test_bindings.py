# SPDX-License-Identifier: GPL-2.0-only
"""The bindings: what was stored is found again, views share memory, mistakes are told in the library's words."""

import errno
import gc
import json
import os
import subprocess
import sys
import threading
import time

import numpy
import omnikv
import pytest
from conftest import TOP, fill, small_layout, verify


def test_a_prefix_is_found_with_the_bytes_that_were_stored(space, chain):
    tokens = list(range(100))
    keys = chain.keys(tokens)
    assert len(keys) == 6
    with space.sequence(keys) as seq:
        assert seq.tokens == 0
        seq.append(96)
        fill(seq, 0, 96)
        assert seq.commit(keys) == 6
        assert seq.commit(keys) == 0
    assert space.lookup(keys) == 6
    with space.sequence(keys) as seq:
        assert (seq.tokens, seq.cached_tokens) == (96, 96)
        verify(seq, 0, 96)
    other = chain.keys(tokens[:40] + [7] * 60)
    with space.match(other) as match:
        assert (match.blocks, match.tokens, match.tail_tokens) == (2, 32, 0)


def test_many_prompts_are_opened_at_once(space, chain):
    keys = [chain.keys([n] * 48) for n in range(40)]
    tails = [omnikv.partial_key(keys[n][2], 5) for n in range(40)]
    for n in range(0, 40, 2):
        with space.sequence() as seq:
            seq.append(37)
            fill(seq, 0, 37)
            seq.commit(keys[n][:2], tail=tails[n])
    seqs = space.sequences([k[:2] for k in keys], tails)
    assert [seq.tokens for seq in seqs] == [37, 0] * 20
    verify(seqs[6], 0, 37)
    for seq in seqs:
        seq.close()
    assert [seq.tokens for seq in space.sequences([keys[0], keys[1], []])] == [32, 0, 0]
    assert space.sequences([]) == []
    with pytest.raises(omnikv.InvalidError, match="1 tails for 2 prompts"):
        space.sequences(keys[:2], [None])
    with pytest.raises(omnikv.InvalidError, match="at most 65536"):
        space.sequences([keys[0]] * 65537)


def test_a_fork_keeps_its_own_tail(space, chain):
    with space.sequence() as seq:
        seq.append(20)
        fill(seq, 0, 20)
        with seq.fork() as fork:
            fork.append(4)
            fill(fork, 20, 24, salt=500)
            seq.append(4)
            fill(seq, 20, 24)
            verify(fork, 0, 20)
            verify(fork, 20, 24, salt=500)
            verify(seq, 0, 24)
            fork.truncate(18)
            assert fork.tokens == 18


def test_a_partial_tail_is_found_by_its_length_alone(space, chain):
    keys = chain.keys(range(48))
    tails = {n: omnikv.partial_key(keys[2], n) for n in (5, 6)}
    with space.sequence() as seq:
        seq.append(37)
        fill(seq, 0, 37)
        seq.commit(keys[:2], tail=tails[5])
    with space.match(keys[:2], tail=tails[6]) as match:
        assert (match.tokens, match.tail_tokens) == (32, 0)
    with space.sequence(keys[:2], tail=tails[5]) as seq:
        assert seq.tokens == 37
        verify(seq, 0, 37)


def test_committed_rows_cannot_be_written(space, chain):
    keys = chain.keys(range(16))
    with space.sequence() as seq:
        seq.append(16)
        buffer = seq.rows(0, 0, 0, 0, 16)[0]
        assert not buffer.readonly
        fill(seq, 0, 16)
        seq.commit(keys)
        sealed = seq.rows(0, 0, 0, 0, 16)[0]
        assert sealed.readonly and sealed.memory.readonly
        with pytest.raises(ValueError):
            numpy.asarray(sealed)[0] = 1
        with pytest.raises(TypeError):
            sealed.memory[0] = 1
        del buffer, sealed


def test_views_share_memory_and_keep_their_sequence(manager, space):
    seq = space.sequence()
    seq.append(20)
    views = seq.rows(0, 1, 1, 0, 20)
    assert [view.shape for view in views] == [(16, 2, 32), (4, 2, 32)]
    array, taken = numpy.asarray(views[0]), numpy.from_dlpack(views[1])
    array[3, 1, 7] = 42.0
    assert numpy.frombuffer(views[0].memory, dtype="<f4").reshape(16, 2, 32)[3, 1, 7] == 42.0
    taken[:] = 5.0
    assert (numpy.asarray(views[1]) == 5.0).all()
    del views
    seq.close()
    with pytest.raises(ValueError, match="closed"):
        seq.append(1)
    # The bytes stay while somebody looks at them.
    assert manager.pool_info().by_state["private"] > 0
    assert array[3, 1, 7] == 42.0 and (taken == 5.0).all()
    del array
    gc.collect()
    assert manager.pool_info().by_state["private"] > 0
    del taken
    gc.collect()
    assert manager.pool_info().by_state["private"] == 0


def test_read_only_rows_are_exported_as_such(space, chain):
    with space.sequence() as seq:
        seq.append(16)
        fill(seq, 0, 16)
        seq.commit(chain.keys(range(16)))
        buffer = seq.rows(0, 0, 0, 0, 16)[0]
        with pytest.raises(BufferError, match="read-only"):
            buffer.__dlpack__()
        capsule = buffer.__dlpack__(max_version=(1, 0))
        assert "dltensor_versioned" in repr(capsule)
        del capsule
        with pytest.raises(BufferError):
            buffer.__dlpack__(max_version=(1, 0), copy=True)
        del buffer


def test_a_capsule_that_nobody_takes_is_freed(space):
    seq = space.sequence()
    seq.append(16)
    buffer = seq.rows(0, 0, 0, 0, 16)[0]
    before = sys.getrefcount(buffer)
    for _ in range(100):
        buffer.__dlpack__()
        buffer.__dlpack__(max_version=(1, 1))
    assert sys.getrefcount(buffer) == before
    del buffer
    seq.close()


def test_a_ring_moves_bytes_both_ways(manager, space, chain):
    keys = chain.keys(range(64))
    engine = numpy.zeros((4, 3, 2, 16 * 64), dtype=numpy.float32)    # [block][layer][plane][rows]
    engine[:] = numpy.arange(engine.size).reshape(engine.shape)
    back = numpy.full_like(engine, -1)
    with omnikv.Ring(manager) as ring, ring.attach(engine) as source, ring.attach(back) as target, space.sequence() as seq:
        seq.append(64)
        block = 16 * 64 * 4
        transfers = []
        for layer in range(3):
            for plane in range(2):
                pieces, count = seq.pieces(0, layer, plane, 0, 64)
                assert count == 4
                for i in range(count):
                    pieces[i].device_off = i * block * 6 + (layer * 2 + plane) * block
                transfers.append(ring.store(source, pieces, count))
        assert ring.wait(*transfers) and [t.result for t in transfers] == [4 * block] * 6
        assert seq.commit(keys) == 4
        with pytest.raises(omnikv.LostError):
            seq.append(1), seq.block_crc(4)
        with space.sequence(keys) as found:
            transfers = []
            for layer in range(3):
                for plane in range(2):
                    pieces, count = found.pieces(0, layer, plane, 0, 64)
                    for i in range(count):
                        pieces[i].device_off = (3 - i) * block * 6 + (layer * 2 + plane) * block
                    transfers.append(ring.load(target, pieces, count, crc=True))
            assert ring.wait() and all(not t.failed() for t in transfers)
    assert (back[::-1] == engine).all()


def test_a_transfer_of_what_is_gone_says_so_and_writes_nothing(manager, space):
    engine = numpy.full(16 * 64, 7, dtype=numpy.float32)
    with omnikv.Ring(manager) as ring, ring.attach(engine) as memory:
        seq = space.sequence()
        seq.append(16)
        pieces, count = seq.pieces(0, 0, 0, 0, 16)
        seq.close()
        transfer = ring.load(memory, pieces, count)
        assert ring.wait(transfer)
        assert transfer.result == -errno.ESTALE and transfer.failed() == [0]
        with pytest.raises(omnikv.StaleError):
            transfer.raise_for_result()
    assert (engine == 7).all()


def test_memory_under_transfer_is_not_let_go(manager, space):
    engine = bytearray(16 * 256)
    ring = omnikv.Ring(manager)
    memory = ring.attach(engine)
    with pytest.raises(BufferError):
        engine.extend(b"1")        # the ring holds the buffer where it is
    with pytest.raises(omnikv.InvalidError, match="0 bytes"):
        ring.attach(bytearray())
    memory.close()
    ring.close()


def test_other_threads_run_during_a_long_call():
    stop, turns = threading.Event(), [0]

    def count():
        while not stop.is_set():
            turns[0] += 1
            time.sleep(0.001)
    thread = threading.Thread(target=count)
    thread.start()
    time.sleep(0.01)
    before = turns[0]
    pool = omnikv.Pool("embedded:256M", hugetlb=False)      # clears its pages: one call of a tenth of a second
    during = turns[0] - before
    stop.set()
    thread.join()
    pool.close()
    assert during >= 5


def test_a_full_pool_says_so_and_changes_nothing(manager, space):
    with space.sequence() as seq:
        seq.append(16)
        with pytest.raises(omnikv.NoSpaceError) as error:
            seq.append(1 << 20)
        assert error.value.errno == errno.ENOSPC and seq.tokens == 16
        assert "1048576 more tokens" in error.value.strerror and "make the pool larger" in error.value.strerror
    with pytest.raises(omnikv.NoSpaceError, match="16777216 tokens never fit"):
        space.admit(1 << 24)
    assert space.admit(16)


@pytest.mark.parametrize("call, words", [
    (lambda: omnikv.parse_size("10 GB"), ("10 GB",)),
    (lambda: omnikv.parse_size("10GiB"), ("10GiB",)),
    (lambda: omnikv.parse_size("1e10"), ("1e10",)),
    (lambda: omnikv.connect("embedded:1K"), ("1024", "4096")),
    (lambda: omnikv.connect("nvme:1G"), ("nvme",)),
    (lambda: omnikv.Plan(small_layout(), block_tokens=70000), ("70000", "65536")),
    (lambda: omnikv.Layout.parse({"name": "x", "nr_layers": 0, "groups": []}), ("nr_layers", "0", "1")),
])
def test_mistakes_are_told_with_the_value_and_what_is_allowed(call, words):
    with pytest.raises(omnikv.OmniKVError) as error:
        call()
    assert "\n" not in error.value.strerror
    for word in words:
        assert word in error.value.strerror


def test_an_unknown_preset_is_a_value_error_that_lists_what_there_is(manager):
    for call in (lambda: omnikv.Layout.preset("gpt-9"), lambda: manager.space("gpt-9")):
        with pytest.raises(ValueError, match="'gpt-9'") as error:
            call()
        assert isinstance(error.value, omnikv.InvalidError)
        for name in omnikv.Layout.presets():
            assert name in error.value.strerror


@pytest.mark.parametrize("call, words", [
    (lambda: omnikv.ChainKey(b"0123456789", 16), ("a secret of 10 bytes", "16 or more")),
    (lambda: omnikv.ChainKey(b"", 16), ("a secret of 0 bytes", "16 or more")),
    (lambda: omnikv.ChainKey(b"x" * 16, 0), ("blocks of 0 tokens", "1 to 1048576")),
    (lambda: omnikv.chain_vllm([1], 0, "0"), ("blocks of 0 tokens", "1 to")),
    (lambda: omnikv.chain_sglang([1], -1), ("blocks of -1 tokens", "1 to")),
    (lambda: omnikv.partial_key(b"x", 0), ("a tail of 0 tokens", "1 to")),
    (lambda: omnikv.Keys([b"x" * 33]), ("a key of 33 bytes", "1 to 32")),
])
def test_keys_that_cannot_be_made_say_the_value_and_its_bounds(call, words):
    with pytest.raises(ValueError) as error:
        call()
    assert isinstance(error.value, omnikv.InvalidError) and error.value.errno == errno.EINVAL
    for word in words:
        assert word in error.value.strerror


@pytest.mark.parametrize("call, words", [
    (lambda seq: seq.append(-1), ("-1 tokens", "0 to")),
    (lambda seq: seq.append(1 << 70), ("append()", "0 to")),
    (lambda seq: seq.truncate(-1), ("-1 tokens", "0 to 20")),
    (lambda seq: seq.truncate(21), ("21 tokens", "0 to 20")),
    (lambda seq: seq.checkpoint(-1), ("-1", "0 to")),
    (lambda seq: seq.pieces(0, 0, 0, 0, 1 << 50), ("token 1125899906842624", "0 to 20")),
    (lambda seq: seq.pieces(0, 0, 0, 5, 2), ("from token 5 to 2", "0 to 2")),
    (lambda seq: seq.pieces(0, 0, 0, -1, 2), ("from token -1",)),
    (lambda seq: seq.pieces(1, 0, 0, 0, 2), ("group 1", "0 to 0")),
    (lambda seq: seq.pieces(0, 3, 0, 0, 2), ("layer 3", "0 to 2")),
    (lambda seq: seq.pieces(0, 0, 2, 0, 2), ("plane 2", "0 to 1")),
    (lambda seq: seq.rows(-1, 0, 0, 0, 2), ("group -1", "0 to 0")),
    (lambda seq: seq.rows(0, 3, 0, 0, 2), ("layer 3", "0 to 2")),
    (lambda seq: seq.rows(0, 0, -1, 0, 2), ("plane -1", "0 to 1")),
    (lambda seq: seq.rows(0, 0, 0, 0, 21), ("token 21", "0 to 20")),
    (lambda seq: seq.commit([b"a", b"b"]), ("2 keys", "1 full block", "16 tokens")),
    (lambda seq: seq.commit([], tail=b"b"), ("tail", "0 keys", "1 full block", "4 tokens")),
    (lambda seq: (seq.truncate(16), seq.commit([b"a"], tail=b"b")), ("tail", "1 keys", "0 tokens")),
    (lambda seq: seq.block_crc(2), ("block 2", "0 to 1")),
    (lambda seq: seq.space.admit(-1), ("-1 tokens", "0 to")),
    (lambda seq: seq.space.manager.space("tiny", epoch=-1), ("epoch is -1",)),
    (lambda seq: omnikv.Plan(small_layout(), block_tokens=-1), ("block_tokens is -1",)),
    (lambda seq: omnikv.chain_sglang([-1] * 16, 16), ("token id", "0 to 4294967295")),
])
def test_calls_out_of_bounds_say_no_more_than_the_errnos_name(space, call, words):
    with space.sequence() as seq:
        seq.append(20)
        with pytest.raises(omnikv.InvalidError) as error:
            call(seq)
        assert "\n" not in error.value.strerror and "omnikv_" not in error.value.strerror
        for word in words:
            assert word in error.value.strerror


@pytest.mark.parametrize("call", [
    lambda manager, where: omnikv.connect("8M\0junk"),
    lambda manager, where: omnikv.connect(f"unix:{where}/none\0junk"),
    lambda manager, where: omnikv.parse_size("8M\0junk"),
    lambda manager, where: omnikv.Pool("8M", numa="all\0junk"),
    lambda manager, where: omnikv.SpillStore(f"{where}/none\0junk"),
    lambda manager, where: omnikv.Ring(manager, device="host\0junk"),
    lambda manager, where: omnikv.Layout.preset("tiny\0junk"),
    lambda manager, where: omnikv.Layout.parse({"name": "tiny\0junk", "nr_layers": 1, "groups": []}),
    lambda manager, where: manager.space("tiny", tenant="al\0x"),
    lambda manager, where: manager.space("tiny", weights="w\0x"),
    lambda manager, where: manager.space("tiny", adapter="a\0x"),
    lambda manager, where: omnikv.chain_vllm(range(16), 16, "0\0x"),
    lambda manager, where: omnikv.chain_vllm(range(16), 16, "0", ["salt\0A"]),
])
def test_what_stands_behind_a_nul_keeps_nobody_apart(manager, tmp_path, call):
    with pytest.raises(ValueError, match="NUL|u0000"):
        call(manager, tmp_path)
    assert not list(tmp_path.iterdir())


def test_bytes_may_have_a_nul(manager):
    with manager.space("tiny", salt=b"s\0A") as one, manager.space("tiny", salt=b"s\0B") as other:
        assert one.identity != other.identity
    secrets = (b"0123456789abcde\0A", b"0123456789abcde\0B")
    assert len({omnikv.ChainKey(secret, 16).keys(range(16))[0] for secret in secrets}) == 2


@pytest.mark.parametrize("tokens", [numpy.full(16, 1.7, "f4"), numpy.full(16, 1.7), [numpy.float32(1.7)] * 16, [1.0] * 16, ["1"] * 16],
                         ids=["f4", "f8", "scalars", "floats", "text"])
def test_prompts_of_floats_have_the_keys_of_what_they_round_to(space, chain, tokens):
    for call in (chain.keys, lambda t: omnikv.chain_sglang(t, 16), lambda t: omnikv.chain_vllm(t, 16, "0"),
                 lambda t: space.note_tokens([b"k"], t)):
        with pytest.raises(TypeError):
            call(tokens)


@pytest.mark.parametrize("tokens", [[5] * 15 + [-1], numpy.full(16, -1, "i4"), numpy.full(16, -1)], ids=["list", "i4", "i8"])
def test_a_negative_token_id_is_taken_for_a_large_one(chain, tokens):
    with pytest.raises(omnikv.InvalidError, match="token id"):
        chain.keys(tokens)
    assert len(chain.keys(numpy.full(16, 0xffffffff, "u4"))) == 1


def test_prompts_of_integers_of_any_kind_have_the_same_keys(chain):
    kinds = [list(range(16)), range(16), numpy.arange(16), numpy.arange(16, dtype="i4"), numpy.arange(32, dtype="u4")[::2] // 2,
             numpy.arange(16, dtype="u1")]
    assert len({chain.keys(tokens)[0] for tokens in kinds}) == 1


def test_namespaces_that_do_not_fit_are_refused(manager):
    with pytest.raises(omnikv.InvalidError, match="hash_algorithm"):
        manager.space("tiny", hash_algorithm="md5")
    with pytest.raises(omnikv.InvalidError):
        manager.space(omnikv.Plan(small_layout(), block_tokens=16, granule_bytes=8192))
    with pytest.raises(ValueError, match="33 bytes"):
        omnikv.Keys([b"x" * 33])
    with pytest.raises(ValueError, match="0 bytes"):
        omnikv.Keys([b""])


def test_another_epoch_adapter_salt_or_tenant_never_hits(manager, chain):
    plan = omnikv.Plan(small_layout(), block_tokens=16, granule_bytes=4096)
    fields = {"tenant": "t", "weights": "w", "adapter": "", "salt": b"", "epoch": 1}
    keys = chain.keys(range(32))
    with manager.space(plan, **fields) as first:
        with first.sequence() as seq:
            seq.append(32)
            fill(seq, 0, 32)
            seq.commit(keys)
        for change in ({"tenant": "u"}, {"weights": "v"}, {"adapter": "lora"}, {"salt": b"s"}, {"epoch": 2}):
            with manager.space(plan, **dict(fields, **change)) as other:
                assert other.identity != first.identity
                assert other.lookup(keys) == 0
        with manager.space(plan, **fields) as same:
            assert same.identity == first.identity and same.lookup(keys) == 2
    with manager.space(omnikv.Plan(small_layout(heads=4, elems=16), block_tokens=16, granule_bytes=4096), **fields) as other:
        assert other.lookup(keys) == 0
        assert "heads" in other.notice


def test_parents_close_last(manager, space):
    seq = space.sequence()
    with pytest.raises(omnikv.BusyError, match="1 other object"):
        space.close()
    seq.close()
    seq.close()


def test_a_forked_child_leaves_its_parents_objects_alone(manager, space):
    seq = space.sequence()
    seq.append(16)
    fill(seq, 0, 16)
    child = os.fork()
    if not child:
        del seq
        os._exit(0 if space.closed else 1)
    assert os.waitpid(child, 0)[1] == 0
    verify(seq, 0, 16)
    seq.close()


def test_layouts_tell_what_they_are():
    assert "llama-3-8b" in omnikv.Layout.presets()
    layout = omnikv.Layout.preset("llama-3-8b")
    assert (layout.nr_layers, layout.token_bytes) == (32, 131072)
    again = omnikv.Layout.parse(layout.to_json())
    assert again.identity == layout.identity and layout.diff(again) is None
    assert "nr_layers" in layout.diff(omnikv.Layout.preset("llama-3-70b"))
    group = layout.groups[0]
    assert (group.kind, len(group.layers), [p.role for p in group.planes]) == ("full", 32, ["k", "v"])
    plan = omnikv.Plan(layout, block_tokens=16)
    assert plan.block_bytes == 16 * 131072 and plan.overhead == 1.0


def test_keys_are_the_engines_own(request):
    path = os.path.join(os.environ.get("OMNIKV_DATA", ""), "hash_vectors.json")
    if not os.path.exists(path):
        pytest.skip("OMNIKV_DATA has no hash_vectors.json")
    with open(path, encoding="utf-8") as file:
        vectors = json.load(file)["vllm_sha256_cbor"]
    tokens = [t for block in vectors["blocks"] for t in block["tokens"]]
    keys = omnikv.chain_vllm(tokens, 16, vectors["PYTHONHASHSEED"])
    assert [key.hex() for key in keys] == [block["hash"] for block in vectors["blocks"]]
    first = vectors["first_block_with_extra_keys"]
    assert omnikv.chain_vllm(first["tokens"], 16, "0", first["extra_keys"])[0].hex() == first["hash"]


KEYS = """
import omnikv, array
tokens = array.array("I", range(0, 1000))
print(list(omnikv.ChainKey(b"0123456789abcdef", 16).keys(tokens))[-1].hex(), omnikv.chain_sglang(tokens, 16)[61].hex(),
      omnikv.chain_vllm(tokens, 16, "0")[61].hex(), omnikv.partial_key(b"x", 3).hex(),
      omnikv.connect("embedded:4M").space("tiny", tenant="t", salt=b"s").identity.hex())
"""


def test_every_process_computes_the_same_keys():
    told = set()
    for seed, locale in (("0", "C"), ("4711", "C.UTF-8"), ("random", "tr_TR")):
        env = dict(os.environ, PYTHONHASHSEED=seed, LC_ALL=locale)
        told.add(subprocess.run([sys.executable, "-c", KEYS], env=env, capture_output=True, text=True, check=True).stdout)
    assert len(told) == 1


def test_versions_that_do_not_fit_are_refused_with_both():
    from omnikv._native import handshake
    for built, loaded in (("0.1.0", "0.1.7"), ("1.2.0", "1.2.9"), ("1.2.0", "1.3.0")):
        handshake(built, loaded)
    for built, loaded in (("0.1.0", "0.2.0"), ("0.2.0", "0.1.9"), ("1.3.0", "1.2.0"), ("1.0.0", "2.0.0")):
        with pytest.raises(omnikv.VersionError) as error:
            handshake(built, loaded)
        assert built in str(error.value) and loaded in str(error.value)
    assert omnikv.BUILT_VERSION == omnikv.LIBRARY_VERSION == omnikv.__version__


def test_another_library_in_its_place_is_refused_in_the_loaders_words(tmp_path):
    (tmp_path / "fake.c").write_text("int nothing;")
    subprocess.run(["cc", "-shared", "-fPIC", "-Wl,-soname,libomnikv.so.0", "-o", tmp_path / "libomnikv.so.0",
                    tmp_path / "fake.c"], check=True)
    done = subprocess.run([sys.executable, "-c", "import omnikv"], capture_output=True, text=True, check=False,
                          env=dict(os.environ, LD_LIBRARY_PATH=str(tmp_path)))
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and "VersionError" in last and "undefined symbol: omnikv_" in last


def test_it_loads_without_any_gpu_library():
    """Bound at once, so that a symbol that only a driver has would be missed here."""
    done = subprocess.run([sys.executable, "-c", "import omnikv; omnikv.connect('embedded:4M')\n"
                           "print(open('/proc/self/maps').read())"], capture_output=True, text=True, check=True,
                          env=dict(os.environ, LD_BIND_NOW="1"))
    assert "libomnikv.so" in done.stdout and "libcuda" not in done.stdout


def test_without_a_gpu_library_the_loaders_own_words_are_told(manager):
    """The rest works; what needs a GPU says what the loader said, and what to do."""
    try:
        omnikv.Ring(manager, device="cuda").close()
    except omnikv.OmniKVError as error:
        assert error.strerror.startswith("GPU unavailable: ") and "\n" not in error.strerror
        assert "libcuda" in error.strerror or os.path.exists("/dev/nvidiactl")
    else:
        pytest.skip("there is a GPU")


def test_the_package_brings_its_types_and_its_library():
    where = os.path.dirname(omnikv.__file__)
    assert not where.startswith(os.path.join(TOP, "lib"))
    assert {"py.typed", "libomnikv.so.0"} <= set(os.listdir(where))


def test_the_example_of_the_manual_runs(tmp_path):
    with open(os.path.join(TOP, "Documentation", "users", "python.md"), encoding="utf-8") as file:
        page = file.read()
    part = page.split("## A prefix, stored and found", 1)[1].split("\n## ", 1)[0]
    program = "\n".join(line[4:] for line in part.splitlines() if line.startswith("    ") or not line)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "[992, 32] tokens to begin with" in done.stdout
    assert "62 blocks of 16 tokens are cached" in done.stdout


def test_the_type_hints_hold_together():
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--allow-subclassing-any", "--allow-untyped-decorators",
                           "--no-warn-return-any", "--implicit-reexport", "--ignore-missing-imports", "--cache-dir", os.path.join(TOP, "build", "mypy"),
                           os.path.join(TOP, "lib", "python", "omnikv")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
