# SPDX-License-Identifier: GPL-2.0-only
"""vLLM over omnikv: prompts with shared prefixes give the text of vLLM's own prefix cache, whatever happens to the pool."""

import json
import os
import queue
import random
import signal
import statistics
import subprocess
import sys
import threading
import time

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
COUNT = 200 if os.environ.get("OMNIKV_FULL") == "1" else 40
T = 32
NAT = 0.1
ENV = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1", "KMP_BLOCKTIME": "0",
       "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}


def connector(where, **extra):
    return {"kv_connector": "OmniKVConnector", "kv_connector_module_path": "omnikv.vllm", "kv_role": "kv_both",
            "kv_connector_extra_config": {"omnikv": where, **extra}}


STEPS = object()
START_S = 1200      # a process has its engine by then, however busy the machine
SILENT_S = 180      # without a single step of the engine: it hangs
ANSWER_S = 1800     # with steps and without an answer: it does not come to an end


class Engine:
    """vllm_engine.py in a process of its own. Every answer has a deadline, which counts from the engine's last step: a slow
    machine makes steps, an engine that hangs does not."""

    def __init__(self, where=None, env=None, extra=None, **options):
        if where:
            options["kv_transfer_config"] = connector(where, **(extra or {}))
        options.setdefault("distributed_executor_backend", "uni")
        self.child = subprocess.Popen([sys.executable, os.path.join(HERE, "vllm_engine.py"), json.dumps(options)],
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                      env=dict(os.environ, **ENV, **(env or {})))
        self.lines, self.log = queue.Queue(), []
        threading.Thread(target=self._read, daemon=True).start()
        try:
            self.info = self.answer(START_S)
        except BaseException:
            self.child.kill()
            raise

    def _read(self):
        for line in self.child.stdout:
            if line.startswith("@ "):
                self.lines.put(json.loads(line[2:]))
            elif line.startswith("~"):
                self.lines.put(STEPS)
            else:
                self.log.append(line.rstrip())
        self.lines.put(None)

    def answer(self, silent=SILENT_S):
        end, found = time.monotonic() + max(silent, ANSWER_S), STEPS
        while found is STEPS:
            assert time.monotonic() < end, self.said("the engine works and does not answer")
            try:
                found = self.lines.get(timeout=silent)
            except queue.Empty:
                raise AssertionError(self.said(f"the engine has made no step for {silent} s")) from None
        assert found is not None, self.said("the engine has ended")
        return found

    def said(self, what):
        return "\n".join([f"{what}:", *self.log[-30:]])

    def do(self, order, **more):
        self.child.stdin.write(json.dumps({"do": order, **more}) + "\n")
        self.child.stdin.flush()
        return self.answer()

    def told(self, text):
        return [line for line in self.log if "omnikv:" in line and text in line]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.child.poll() is None:
            self.child.stdin.close()
            try:
                self.child.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self.child.kill()
                self.child.wait()


def prompts_of(count=COUNT):
    """Prompts of 20 to 330 tokens over five common beginnings."""
    chance = random.Random(6)
    heads = [[1] + [chance.randrange(3, 512) for _ in range(299)] for _ in range(5)]
    return [heads[chance.randrange(5)][:chance.randrange(16, 300)] + [chance.randrange(3, 512) for _ in range(chance.randrange(4, 32))]
            for _ in range(count)]


def compare(expected, found):
    """(equal, near ties): fails where texts first differ and the two best log-probabilities are not within NAT."""
    equal = ties = 0
    for number, (a, b) in enumerate(zip(expected, found)):
        assert len(a["text"]) == len(b["text"]) and b["end"] == "length"
        if a["text"] == b["text"]:
            equal += 1
            continue
        at = next(i for i, (x, y) in enumerate(zip(a["text"], b["text"])) if x != y)
        gap = a["best"][at][0] - a["best"][at][1]
        assert gap <= NAT, f"prompt {number} differs at {at}, where the best two are {gap} nat apart"
        ties += 1
    return equal, ties


def cached(answers):
    return sum(answer["cached"] for answer in answers)


def ttft(answers):
    times = [answer["ttft_s"] for answer in answers if answer["ttft_s"] is not None]
    return f"median TTFT {statistics.median(times) * 1000:.1f} ms" if times else "no TTFT told"


@pytest.fixture(scope="module")
def expected():
    """Texts of vLLM alone: first computed, then by its own prefix cache."""
    with Engine() as engine:
        first = engine.do("run", prompts=prompts_of())
        again = engine.do("run", prompts=prompts_of())
    assert cached(again) > 0
    return first, again


def test_text_is_that_of_vllms_own_prefix_cache(expected):
    with Engine("embedded:512M") as engine:
        cold = engine.do("run", prompts=prompts_of())
        assert engine.do("reset")
        before = engine.do("metrics")
        warm = engine.do("run", prompts=prompts_of())
        metrics = engine.do("metrics")
        assert engine.do("reset")
        salted = engine.do("run", prompts=prompts_of()[:10], salt="another user")
        log = engine.told("")
    equal, ties = compare(expected[1], warm)
    compare(expected[0], cold)
    compare(expected[0][:10], salted)
    # As long as vLLM's own hits of a second round, and all of them out of the pool.
    loaded = (metrics["vllm:omnikv_loaded_blocks"] - before.get("vllm:omnikv_loaded_blocks", 0)) * T
    assert cached(warm) >= cached(expected[1]) and loaded > 20 * COUNT
    assert metrics["vllm:omnikv_load_failed_blocks"] == metrics["vllm:omnikv_save_failures"] == 0
    # A salt of its own hits nothing of the others.
    heads = sum(answer["cached"] for answer in salted)
    assert heads < cached(warm[:10])
    assert not log
    print(f"{COUNT} prompts, {loaded:.0f} tokens loaded and checked, {equal} texts equal, {ties} differ first within {NAT} nat")
    print(f"cold: {ttft(cold)}; warm: {ttft(warm)}; vLLM's own cache: {ttft(expected[1])}")


def test_loads_that_fail_are_computed_again():
    """Prompts that go on for several blocks behind what is loaded: what is computed from blocks that did not arrive must not
    come to the pool."""
    chance, prompts = random.Random(9), prompts_of(COUNT // 2)
    longer = [prompt + [chance.randrange(3, 512) for _ in range(100)] for prompt in prompts]
    with Engine("embedded:512M") as engine:
        plain = engine.do("run", prompts=longer, salt="computed without the pool")
        engine.do("run", prompts=prompts)
        assert engine.do("reset")
        engine.do("break", share=0.3)
        broken = engine.do("run", prompts=longer)
        metrics = engine.do("metrics")
        # What was saved meanwhile is right: without faults, everything is loaded and the text is the same.
        engine.do("break", share=0)
        assert engine.do("reset")
        whole = engine.do("run", prompts=longer)
        assert not engine.told("a load is a miss")
    # A block is loaded once a round, then vLLM has it: so about a third of the blocks of five beginnings fail, however many
    # prompts there are.
    assert metrics["vllm:omnikv_load_failed_blocks"] > 5
    equal, ties = compare(plain, broken)
    compare(plain, whole)
    print(f"{metrics['vllm:omnikv_load_failed_blocks']:.0f} blocks failed, {equal} texts equal, {ties} differ first within {NAT} nat")


def test_preempted_and_aborted_requests_leave_nothing_wrong(expected):
    with Engine("embedded:512M", num_gpu_blocks_override=48) as engine:
        for _ in range(2):
            found = engine.do("run", prompts=prompts_of(), new=24)
            compare(expected[0], found)
            assert engine.do("abort", prompts=prompts_of(12), after=4) == 12
            assert engine.do("reset")
        metrics = engine.do("metrics")
    assert metrics["vllm:num_preemptions"] > 0 and metrics["vllm:omnikv_loaded_blocks"] > 0
    print(f"{metrics['vllm:num_preemptions']:.0f} preemptions, {metrics['vllm:omnikv_loaded_blocks']:.0f} blocks loaded")


def test_new_weights_find_nothing_of_the_old():
    with Engine("embedded:256M") as engine:
        prompts = prompts_of(8)
        engine.do("run", prompts=prompts)
        assert engine.do("reset")
        assert cached(engine.do("run", prompts=prompts[:1])) > 0
        assert engine.do("epoch")
        assert cached(engine.do("run", prompts=prompts[:1])) == 0


def test_a_pool_that_is_full_costs_hits_and_nothing_else(expected):
    with Engine("embedded:2M") as engine:
        for _ in range(2):
            compare(expected[0], engine.do("run", prompts=prompts_of()))
            assert engine.do("reset")


@pytest.mark.parametrize("where, why", [("unix:/nonexistent/omnikv.sock", "nothing is cached"), ("embedded:1K", "nothing is cached")])
def test_without_a_pool_the_engine_serves_and_says_so_once(expected, where, why):
    begin = time.monotonic()
    with Engine(where) as engine:
        found = engine.do("run", prompts=prompts_of(20))
        assert len(engine.told(why)) in (1, 2), engine.told("")    # a line a half
    compare(expected[0][:20], found)
    assert time.monotonic() - begin < 240


def test_options_that_there_are_not_stop_the_start_with_one_line():
    for extra, words in (({"tennant": "x"}, ["tennant", "tenant"]), ({"deadline_ms": 5}, ["deadline_ms", "5", "60000"])):
        with pytest.raises(AssertionError) as error:
            Engine("embedded:64M", extra=extra).__exit__()
        told = [line for line in str(error.value).splitlines() if "omnikv: option" in line]
        assert told and all(word in told[-1] for word in words)


def test_an_embedded_pool_is_refused_to_two_processes(expected):
    with Engine("embedded:64M", distributed_executor_backend="mp") as engine:
        found = engine.do("run", prompts=prompts_of(5))
        assert engine.told("one process's")
    compare(expected[0][:5], found)


class Daemon:
    """omnikvd over a pool on a file, so that what is in it outlives it."""

    def __init__(self, where, *more):
        self.socket = os.path.join(where, "omnikvd.sock")
        self.argv = [os.path.join(os.environ.get("OMNIKV_BUILD") or os.path.join(TOP, "build"), "bin", "omnikvd"),
                     f"--pool=embedded:512M:{where}/pool", f"--socket={self.socket}"]
        self.start(*more)

    def start(self, *more):
        self.child = subprocess.Popen([*self.argv, *more], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + 60
        while not os.path.exists(self.socket):
            assert self.child.poll() is None and time.monotonic() < end
            time.sleep(0.05)

    def end(self, how=signal.SIGTERM):
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGCONT)
            self.child.send_signal(how)
            self.child.wait(timeout=60)


@pytest.fixture
def daemon(tmp_path):
    daemon = Daemon(str(tmp_path))
    yield daemon
    daemon.end()


def test_a_second_engine_takes_its_hits_from_a_killed_ones_pool(expected, daemon):
    with Engine(f"unix:{daemon.socket}") as first:
        cold = first.do("run", prompts=prompts_of())
        compare(expected[0], cold)
        first.child.kill()
        first.child.wait()
    # Scheduler and worker are two processes in this one.
    with Engine(f"unix:{daemon.socket}", distributed_executor_backend="mp") as second:
        warm = second.do("run", prompts=prompts_of())
        metrics = second.do("metrics")
        equal, ties = compare(expected[1], warm)
        assert metrics["vllm:omnikv_loaded_blocks"] > 0 and not metrics["vllm:omnikv_load_failed_blocks"]
        print(f"{metrics['vllm:omnikv_loaded_blocks'] * T:.0f} tokens out of the killed engine's pool, {equal} texts equal, {ties} "
              f"differ first within {NAT} nat; cold: {ttft(cold)}; warm: {ttft(warm)}")


RANKS = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}


def loaded_blocks(engine):
    return engine.do("metrics").get("vllm:omnikv_loaded_blocks", 0)


def test_two_ranks_take_their_hits_from_two_others_pool(daemon):
    """Tensor parallelism: each rank saves its shards and finds them again, in this engine and in the next."""
    prompts = prompts_of(24)
    with Engine(f"unix:{daemon.socket}", extra={"deadline_ms": 20000}, **RANKS) as one:
        cold = one.do("run", prompts=prompts)
        own = loaded_blocks(one), one.do("run", prompts=prompts), loaded_blocks(one)
        assert one.do("reset")
        again = one.do("run", prompts=prompts)
        assert not one.told("")
    with Engine(f"unix:{daemon.socket}", extra={"deadline_ms": 20000}, **RANKS) as two:
        warm = two.do("run", prompts=prompts)
        metrics = two.do("metrics")
        assert not two.told("")
    # The second round was vLLM's own cache alone.
    assert own[0] == own[2] and cached(own[1]) > 0
    compare(own[1], cold)
    compare(own[1], again)
    equal, ties = compare(own[1], warm)
    # Both ranks count.
    loaded = metrics["vllm:omnikv_loaded_blocks"] // 2 * T
    assert loaded > 20 * len(prompts) and cached(again) >= cached(own[1]) and cached(warm) >= cached(own[1])
    assert metrics["vllm:omnikv_load_failed_blocks"] == metrics["vllm:omnikv_save_failures"] == 0
    print(f"2 ranks: {loaded:.0f} tokens out of the other engine's pool, {equal} texts equal, {ties} differ first within {NAT} nat; "
          f"cold: {ttft(cold)}; warm: {ttft(warm)}; vLLM's own cache: {ttft(own[1])}")


@pytest.fixture(scope="module")
def mla(tmp_path_factory):
    """A model with multi-head latent attention and random weights, in the one shape that vLLM's kernel for CPUs takes: rows of
    512 + 64 elements, blocks of 16 tokens."""
    import torch
    import transformers
    torch.manual_seed(6)
    where = str(tmp_path_factory.mktemp("mla"))
    transformers.DeepseekV2ForCausalLM(transformers.DeepseekV2Config(
        vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=3, first_k_dense_replace=3, num_attention_heads=4,
        num_key_value_heads=4, q_lora_rank=None, kv_lora_rank=512, qk_rope_head_dim=64, qk_nope_head_dim=32, v_head_dim=32,
        max_position_embeddings=512, initializer_range=0.1, bos_token_id=1, eos_token_id=2)).float().save_pretrained(where)
    return {"model": where, "block_size": 16}


MLA_BLOCK_BYTES = 3 * 16 * (512 + 64) * 4


def one_by_one(engine, prompts):
    """Each prompt finds what those before it left, and nothing else: its text does not depend on who was in its batch."""
    return [answer for prompt in prompts for answer in engine.do("run", prompts=[prompt])]


def sealed_bytes(daemon):
    """What the daemon's pool holds of published blocks."""
    argv = [os.path.join(os.path.dirname(daemon.argv[0]), "omnikv"), "status", "--json", f"--socket={daemon.socket}"]
    return json.loads(subprocess.run(argv, check=True, capture_output=True, timeout=60).stdout)["daemon"]["sealed_bytes"]


@pytest.fixture(scope="module")
def stored():
    """Bytes that a pool held of the prompts below, by the number of ranks."""
    return {}


@pytest.mark.parametrize("ranks", (1, 2))
def test_mla_gives_the_bytes_that_were_computed_and_is_stored_once_for_all_ranks(mla, daemon, stored, ranks):
    """vLLM's paths for MLA on CPUs differ by up to 0.1 nat from each other: a prefix that is read and one that is computed. So
    the texts are compared with those of its own prefix cache, which is off there unless one insists, with the same hits."""
    prompts = prompts_of(12)
    blocks = {tuple(prompt[:end]) for prompt in prompts for end in range(16, len(prompt) + 1, 16)}
    options = {"compare_bytes": True} if ranks == 1 else RANKS
    with Engine(f"unix:{daemon.socket}", extra={"deadline_ms": 20000, "save_decode": False}, keep_prefix_cache=True, **mla, **options) as engine:
        saved, loaded = engine.do("metrics").get("vllm:omnikv_saved_blocks", 0), loaded_blocks(engine)
        one_by_one(engine, prompts)
        own = one_by_one(engine, prompts)
        assert loaded_blocks(engine) == loaded
        assert engine.do("reset")
        found = one_by_one(engine, prompts)
        metrics, compared = engine.do("metrics"), engine.do("compared")
        assert not engine.told("")
    assert [answer["cached"] for answer in found] == [answer["cached"] for answer in own] == [(len(p) - 1) // 16 * 16 for p in prompts]
    equal, ties = compare(own, found)
    # One rank saves each block, all load it.
    loaded = (metrics["vllm:omnikv_loaded_blocks"] - loaded) // ranks
    assert loaded > len(prompts) and metrics["vllm:omnikv_load_failed_blocks"] == metrics["vllm:omnikv_save_failures"] == 0
    assert metrics["vllm:omnikv_saved_blocks"] - saved == len(blocks)
    if compared:
        assert compared == {"same": loaded, "other": 0}
    stored[ranks] = sealed_bytes(daemon)
    assert stored[ranks] == stored.get(1, stored[ranks]) and stored[ranks] >= len(blocks) * MLA_BLOCK_BYTES
    print(f"MLA, {ranks} rank(s): {len(blocks)} blocks of {MLA_BLOCK_BYTES} bytes, {stored[ranks]} bytes in the pool, {loaded * 16:.0f} "
          f"tokens loaded, {equal} texts equal, {ties} differ first within {NAT} nat")


def test_the_engine_outlives_the_daemon(expected, daemon):
    with Engine(f"unix:{daemon.socket}") as engine:
        compare(expected[0], engine.do("run", prompts=prompts_of()))
        begin = time.monotonic()
        assert engine.do("reset")
        compare(expected[0], engine.do("run", prompts=prompts_of()))
        usual = time.monotonic() - begin
        for state in ("stopped", "killed", "back"):
            if state == "stopped":
                daemon.child.send_signal(signal.SIGSTOP)
            else:
                daemon.end(signal.SIGKILL)
                if state == "back":
                    daemon.start()
                    time.sleep(3)
            begin = time.monotonic()
            assert engine.do("reset")
            compare(expected[0], engine.do("run", prompts=prompts_of()))
            print(f"daemon {state}: {time.monotonic() - begin:.1f} s, where it is {usual:.1f} s with one")
            if state == "stopped":
                daemon.child.send_signal(signal.SIGCONT)
        assert engine.do("reset")
        again = engine.do("run", prompts=prompts_of())
        compare(expected[0], again)
        print(f"{cached(again)} tokens hit behind the restart")
        assert cached(again) > 0


def test_events_tell_of_a_shared_block_once(daemon, tmp_path):
    """Two engines on one pool, each with vLLM's own publisher: the second brings nothing there that the first has not."""
    import msgspec
    import zmq
    from vllm.distributed.kv_events import KVEventBatch
    decoder, told = msgspec.msgpack.Decoder(type=KVEventBatch), []
    for number in range(2):
        events = f"ipc://{tmp_path}/events{number}"
        context = zmq.Context()
        socket = context.socket(zmq.SUB)
        socket.connect(events)
        socket.subscribe(b"")
        with Engine(f"unix:{daemon.socket}", kv_events_config={"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": events}) as engine:
            prompts = prompts_of(6)
            engine.do("run", prompts=prompts, new=4)
            # What a save leaves to its thread is told with a later step.
            engine.do("run", prompts=[[1, 2, 3]], new=4)
            found = []
            while socket.poll(3000):
                found += [event for event in decoder.decode(socket.recv_multipart()[2]).events if getattr(event, "medium", "") == "CPU"]
        context.destroy(linger=0)
        told.append(found)
    first, second = told
    hashes = [h for event in first for h in event.block_hashes]
    assert len(hashes) == len(set(hashes)) > 10 and not second
    by_hash = {event.block_hashes[0]: event for event in first}
    for prompt in prompts:
        # Each prompt's whole blocks are there, chained by their parents from the last to the first.
        blocks = len(prompt) // T
        event = next(e for e in first if e.token_ids == prompt[(blocks - 1) * T:blocks * T])
        for i in reversed(range(blocks)):
            assert event.token_ids == prompt[i * T:(i + 1) * T] and event.block_size == T
            event = by_hash.get(event.parent_block_hash)
        assert event is None


def positional(kind):
    """vLLM's own type, with its fields as it sent them before June 2026: by their places."""
    import msgspec
    fields = [(field.name, field.type) if field.required else (field.name, field.type, field.default)
              for field in msgspec.structs.fields(kind)]
    return msgspec.defstruct(kind.__name__, fields, array_like=True, tag=kind.__name__)


def test_vllms_own_decoder_reads_what_the_daemon_tells(tmp_path):
    """In both encodings, by replay too: the hashes, parents and token ids of what vLLM itself tells of its own cache."""
    from typing import List, Optional, Union

    import msgspec
    import zmq
    from vllm.distributed import kv_events
    from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash as converted
    kinds = (kv_events.BlockStored, kv_events.BlockRemoved, kv_events.AllBlocksCleared)
    batch_of_arrays = msgspec.defstruct("Batch", [("ts", float), ("events", List[Union[tuple(positional(kind) for kind in kinds)]]),
                                                  ("data_parallel_rank", Optional[int], None)], array_like=True)
    decoders = {"map": msgspec.msgpack.Decoder(type=kv_events.KVEventBatch), "array": msgspec.msgpack.Decoder(type=batch_of_arrays)}
    context = zmq.Context()

    def listen(endpoint):
        socket = context.socket(zmq.SUB)
        socket.connect(endpoint)
        socket.subscribe(b"")
        return socket

    def heard(socket):
        found = {}
        while socket.poll(3000):
            _, number, batch = socket.recv_multipart()
            found[int.from_bytes(number, "big")] = batch
        return found

    def replayed():
        socket, found = context.socket(zmq.DEALER), {}
        socket.connect(f"ipc://{tmp_path}/replay")
        socket.send_multipart([b"", (0).to_bytes(8, "big")])
        while socket.poll(60000):
            _, _, number, batch = socket.recv_multipart()
            if int.from_bytes(number, "big", signed=True) == -1:
                return found
            found[int.from_bytes(number, "big")] = batch
        raise AssertionError("no answer to a request for a replay")

    def there(batches, encoding):
        found = {}
        for _, batch in sorted(batches.items()):
            for event in decoders[encoding].decode(batch).events:
                if type(event).__name__ == "AllBlocksCleared":
                    found = {}
                    continue
                assert event.medium == kv_events.MEDIUM_CPU
                (name,) = event.block_hashes
                if type(event).__name__ == "BlockStored":
                    found[converted(name)] = event
                else:
                    del found[converted(name)]
        return found

    tells = [f"--events=ipc://{tmp_path}/events", f"--events-replay=ipc://{tmp_path}/replay", "--tokens=yes"]
    daemon, prompts, own = Daemon(str(tmp_path), *tells), prompts_of(12), {}
    try:
        live, engines = listen(f"ipc://{tmp_path}/events"), listen(f"ipc://{tmp_path}/engine")
        with Engine(f"unix:{daemon.socket}", extra={"tokens": True},
                    kv_events_config={"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"ipc://{tmp_path}/engine"}) as engine:
            engine.do("run", prompts=prompts, new=4)
            # What a save leaves to its thread is told with a later step.
            engine.do("run", prompts=[[1, 2, 3]], new=4)
            for batch in heard(engines).values():
                for event in decoders["map"].decode(batch).events:
                    if isinstance(event, kv_events.BlockStored) and event.medium == kv_events.MEDIUM_GPU:
                        parents = [event.parent_block_hash, *event.block_hashes]
                        own.update({name: (parents[i], event.token_ids[i * T:(i + 1) * T]) for i, name in enumerate(event.block_hashes)})
        was_heard, told = heard(live), replayed()
        assert was_heard and all(told[number] == batch for number, batch in was_heard.items())
        daemon.end()
        daemon.start(*tells, "--events-encoding=array")
        found = {"map": there(told, "map"), "array": there(replayed(), "array")}
    finally:
        context.destroy(linger=0)
        daemon.end()
    assert set(found["map"]) == set(found["array"])
    for events in found.values():
        for name, event in events.items():
            parent = event.parent_block_hash and converted(event.parent_block_hash)
            # Those of requests with a salt are not told: they do not make the hash.
            assert own[name][0] == parent and event.token_ids in ([], own[name][1]) and event.block_size == T
        for prompt in prompts:
            parent = None
            for at in range(0, len(prompt) // T * T, T):
                (parent,) = [name for name in events if own[name] == (parent, prompt[at:at + T]) and events[name].token_ids]
    print(f"{len(told)} batches, {len(found['map'])} blocks")
