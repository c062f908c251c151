# SPDX-License-Identifier: GPL-2.0-only
"""Every method of vLLM's connector, when omnikvd fails just before it: it returns within a bound, as a miss with one line in
the log, and never raises. So do all methods after it, to the engine's end."""

import errno
import hashlib
import logging
import os
import signal
import socket
import struct
import threading
import time
from types import SimpleNamespace

import numpy
import omnikv
import pytest
from conftest import small_layout
from test_daemon import Daemon

try:
    import torch
    import vllm.distributed.kv_transfer.kv_connector.v1.base  # noqa: F401
except ImportError:
    torch = None
    import vllm_types
    vllm_types.install()
from omnikv import vllm as connector  # noqa: E402

DEADLINE_MS, PATIENT_MS = 200, 20000
# A request that waits for the daemon itself takes five seconds and more.
BOUND_S = 4.0
T, SLOTS, LAYERS, ROW = 16, 64, 2, 32
PREFIX, WHOLE = 6, 10            # blocks that are cached, and of the whole prompt


class FullAttentionSpec:
    block_size = T


class HostTensor:
    """What the connector asks of a tensor in host memory."""
    device, dtype = SimpleNamespace(type="cpu"), "float32"

    def __init__(self, array):
        self.shape, self._array = array.shape, array

    def stride(self):
        return tuple(step // self._array.itemsize for step in self._array.strides)

    def element_size(self):
        return self._array.itemsize

    def storage_offset(self):
        return 0

    def untyped_storage(self):
        return SimpleNamespace(data_ptr=lambda: self._array.ctypes.data, nbytes=lambda: self._array.nbytes)


def config(where, deadline_ms):
    name = SimpleNamespace
    return name(
        kv_transfer_config=name(kv_connector_extra_config={"omnikv": where, "deadline_ms": deadline_ms, "weights": "w"},
                                kv_load_failure_policy="fail"),
        cache_config=name(block_size=T, prefix_caching_hash_algo="sha256", cache_dtype="auto"),
        parallel_config=name(rank=0, tensor_parallel_size=1, pipeline_parallel_size=1),
        model_config=name(model="small", revision=None, dtype="float32", quantization=None),
        compilation_config=name(static_forward_context={}), kv_events_config=name(enable_kv_cache_events=True))


def of_block(number, layer):
    return numpy.arange(T * ROW, dtype=numpy.float32).reshape(T, ROW) + 1000.0 * number + 100000.0 * layer


class Counter:
    def __init__(self, *_, **__):
        self.count = 0

    def labels(self, *_):
        return self

    def inc(self, count):
        self.count += count


class Engine:
    """The life of an engine as its connector sees it: one prompt whose first blocks the pool has, in one step. ``before(name)``
    is called before each call of the connector, ``after(name)`` behind it."""

    def __init__(self, where, deadline_ms=PATIENT_MS, before=lambda name: None, after=lambda name: None):
        self.where, self.deadline_ms, self.before, self.after = where, deadline_ms, before, after
        self.missed, self.called, self.hash_tokens = False, set(), None
        self.arrays = {f"layer.{i}": numpy.zeros((SLOTS, T, ROW), dtype=numpy.float32) for i in range(LAYERS)}

    def call(self, whose, name, *arguments):
        self.before(name)
        self.called.add(name)
        result = (whose if name == "__init__" else getattr(whose, name))(*arguments)
        self.after(name)
        return result

    def live(self, have, whole):
        """Of the prompt's ``whole`` blocks the pool should have ``have``. What is loaded is right, or told as not loaded.
        Returns how many blocks were loaded."""
        call, kind, vllm_config = self.call, connector.OmniKVConnector, config(self.where, self.deadline_ms)
        tokens = whole * T + 1          # one is left to compute
        caches = SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=FullAttentionSpec(), layer_names=list(self.arrays))],
                                 num_blocks=SLOTS, kv_cache_tensors=[], hash_block_size=self.hash_tokens)
        roles = connector.KVConnectorRole
        scheduler = call(kind, "__init__", vllm_config, roles.SCHEDULER, caches)
        worker = call(kind, "__init__", vllm_config, roles.WORKER, caches)
        call(worker, "register_kv_caches", {n: torch.from_numpy(a) if torch else HostTensor(a) for n, a in self.arrays.items()})
        handshake = call(worker, "get_handshake_metadata")
        call(scheduler, "set_xfer_handshake_metadata_pp_aware", {(0, 0): handshake})
        call(scheduler, "set_xfer_handshake_metadata", {0: handshake})

        request = SimpleNamespace(request_id="r", num_tokens=tokens, num_prompt_tokens=tokens,
                                  all_token_ids=list(range(tokens)), lora_request=None,
                                  block_hashes=[hashlib.sha256(b"%d" % i).digest() for i in range(whole)])
        found, is_async = call(scheduler, "get_num_new_matched_tokens", request, 0)
        assert found in (0, have * T) and is_async is False
        self.missed |= found < have * T
        call(scheduler, "update_state_after_alloc", request, None, found)
        slots = [3 + 2 * i for i in range(whole)]
        new = SimpleNamespace(req_id="r", block_ids=(slots,), num_computed_tokens=found)
        meta = call(scheduler, "build_connector_meta", SimpleNamespace(
            scheduled_new_reqs=[new], num_scheduled_tokens={"r": tokens - found},
            scheduled_cached_reqs=SimpleNamespace(req_ids=[], new_block_ids=[], num_computed_tokens=[], resumed_req_ids=set())))

        worker.bind_connector_metadata(meta)
        call(worker, "start_load_kv", None)
        for name in self.arrays:
            call(worker, "wait_for_layer_load", name)
        failed = call(worker, "get_block_ids_with_load_errors")
        assert failed <= set(slots[:found // T])
        self.missed |= bool(failed)
        for i, slot in enumerate(slots):
            for layer, array in enumerate(self.arrays.values()):
                if i < found // T and slot not in failed:
                    assert (array[slot] == of_block(i, layer)).all(), (i, layer)
                array[slot] = of_block(i, layer)
        for name, array in self.arrays.items():
            call(worker, "save_kv_layer", name, None, None)
        call(worker, "wait_for_save")
        worker.clear_connector_metadata()
        told = call(worker, "build_connector_worker_meta")
        stats = call(worker, "get_kv_connector_stats")
        self.missed |= bool(stats and stats.data.get("save_failures"))
        call(scheduler, "update_connector_output", SimpleNamespace(kv_connector_worker_meta=told))
        list(call(scheduler, "take_events"))
        report = call(kind, "build_kv_connector_stats", stats.data if stats else None)
        call(kind, "build_prom_metrics", vllm_config, METRICS, ["engine"], {0: ["0"]}).observe(report.data)
        assert call(scheduler, "request_finished", request, slots) == (False, None)
        assert call(scheduler, "reset_cache") is True
        call(worker, "shutdown")
        call(scheduler, "shutdown")
        return found // T - len(failed)


def metrics():
    if torch is None:
        return {Counter: Counter}
    from prometheus_client import Counter as of_prometheus
    from prometheus_client import Gauge, Histogram
    return {of_prometheus: Counter, Gauge: Counter, Histogram: Counter}


METRICS = metrics()
METHODS = sorted({name for name, value in vars(connector.OmniKVConnector).items()
                  if (not name.startswith("_") and (callable(value) or isinstance(value, classmethod))) or name == "__init__"})


class OtherVersion:
    """A daemon that speaks another version of the protocol: it refuses ours, or answers in its own."""

    def __init__(self, path, is_polite):
        self._is_polite, self._socket = is_polite, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.path.exists(path):
            os.unlink(path)
        self._socket.bind(path)
        self._socket.listen(64)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                peer, _ = self._socket.accept()
            except OSError:
                return
            with peer:
                peer.settimeout(5)
                try:
                    magic, _, kind, _, _, number, _, _ = struct.unpack_from("=IHHIIQiI", peer.recv(65536))
                    body = b"one end speaks versions 1 to 1 of the protocol, the other 7 to 9; update the older one\0" \
                        if self._is_polite else struct.pack("=IIQ32s", 9, 7, 0, b"newer")
                    status = -errno.EPROTONOSUPPORT if self._is_polite else 0
                    peer.send(struct.pack("=IHHIIQiI", magic, 9, kind, 1, len(body), number, status, 0) + body)
                except (OSError, struct.error):
                    pass

    def close(self):
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class World:
    """A daemon that fails in one way."""

    def __init__(self, where):
        self.daemon, self.undo = Daemon(where, "8M"), []

    def stopped(self):
        self.daemon.child.send_signal(signal.SIGSTOP)

    def killed(self):
        self.daemon.end(signal.SIGKILL)

    def without_socket(self):
        self.killed()
        os.unlink(self.daemon.socket)

    def refusing_this_version(self):
        self.killed()
        self.undo.append(OtherVersion(self.daemon.socket, True).close)

    def of_another_version(self):
        self.killed()
        self.undo.append(OtherVersion(self.daemon.socket, False).close)

    def full(self):
        manager = omnikv.connect(f"unix:{self.daemon.socket}", deadline_ms=2000)
        space = manager.space(omnikv.Plan(small_layout(), block_tokens=16, granule_bytes=manager.pool_info().granule_bytes))
        seq = space.sequence()
        self.undo += [manager.close, space.close, seq.close]
        for step in (1024, 16):
            while True:
                try:
                    seq.append(step)
                except omnikv.NoSpaceError:
                    break

    def end(self):
        while self.undo:
            self.undo.pop()()
        self.daemon.end()


@pytest.fixture
def world(tmp_path_factory):
    world = World(str(tmp_path_factory.mktemp("w")))
    yield world
    world.end()


class Lines(logging.Handler):
    def __init__(self):
        super().__init__()
        self.told = []

    def emit(self, record):
        if record.levelno >= logging.WARNING:
            self.told.append(record.getMessage())


@pytest.fixture
def lines():
    lines = Lines()
    connector.log.addHandler(lines)
    yield lines.told
    connector.log.removeHandler(lines)


def test_without_a_failure_the_prefix_is_loaded_and_no_method_is_left_out(world, lines):
    where = f"unix:{world.daemon.socket}"
    Engine(where).live(0, PREFIX)
    engine = Engine(where)
    assert engine.live(PREFIX, WHOLE) == PREFIX
    assert not engine.missed and not lines
    assert sorted(engine.called) == METHODS


def test_hashes_of_more_tokens_than_a_block_has_are_told_with_both_numbers(world, lines):
    """Under such hashes a block would be found behind another prefix than its own."""
    where = f"unix:{world.daemon.socket}"
    engine = Engine(where)
    engine.hash_tokens = 2 * T
    assert engine.live(0, PREFIX) == 0
    assert [line for line in lines if "16 tokens" in line and "32" in line] == lines and len(lines) == 1
    # Nothing was saved either.
    assert Engine(where).live(0, PREFIX) == 0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("fault", ["stopped", "killed", "without_socket", "refusing_this_version", "of_another_version", "full"])
def test_a_call_is_a_miss_with_one_line(world, lines, fault, method):
    where = f"unix:{world.daemon.socket}"
    Engine(where).live(0, PREFIX)
    assert not lines
    has_failed, began = False, (0.0, 0)

    def before(name):
        nonlocal has_failed, began
        if name == method and not has_failed:
            getattr(world, fault)()
            has_failed = True
        began = time.monotonic(), len(lines)

    def after(name):
        told = lines[began[1]:]
        assert time.monotonic() - began[0] < BOUND_S, name
        assert len(told) <= 1 and not any("\n" in line for line in told), (name, told)

    engine = Engine(where, DEADLINE_MS, before, after)
    engine.live(PREFIX, WHOLE)
    # Scheduler and worker may tell the same, each once.
    assert has_failed and all(lines.count(line) <= 2 for line in lines), lines
    assert lines or not engine.missed
