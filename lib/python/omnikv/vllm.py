# SPDX-License-Identifier: MIT
"""omnikv beneath vLLM's own cache, as a KV connector:

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "OmniKVConnector", "kv_connector_module_path": "omnikv.vllm",
                                            "kv_role": "kv_both", "kv_connector_extra_config": {"omnikv": "unix:"}}'

Whole blocks under vLLM's block hashes, which cover LoRA, multimodal inputs, cache salt and prompt embeddings. The
scheduler's half asks how long the cached prefix is and leases it; the worker's half loads it before the forward pass, and
saves after it what has become full. Whatever fails is a miss with one line in the log: no call ends or stalls the engine.

vLLM calls each half from one thread; a second one of ours talks to omnikv, so that the engine's waits for it no longer than
the deadline, whatever it waits for itself.
"""

import errno
import hashlib
import logging
import os
import threading
import time
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Deque, Dict, List, Optional, Set, Tuple

from vllm.distributed.kv_events import BlockStored
from vllm.distributed.kv_transfer.kv_connector.v1.base import (KVConnectorBase_V1, KVConnectorHandshakeMetadata,
                                                               KVConnectorMetadata, KVConnectorRole, KVConnectorWorkerMetadata)
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats
from vllm.logger import init_logger

from .blocks import BlockMover, Courier, Job, PagedLayer, StuckError, block_layout, block_space, paged_layer, shared_manager
from .errors import DeadlineError, DisconnectedError, OmniKVError
from .keys import Keys
from .manager import Manager, Match, Space

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request

log: logging.Logger = init_logger("vllm.omnikv")

# Name -> (default, what it must be).
_OPTIONS: Dict[str, Tuple[Any, str]] = {
    "omnikv": ("unix:", 'where the pool is: "unix:[SOCKET]" of omnikvd, or "embedded:SIZE" within an engine of one process'),
    "tenant": ("", "a name: who may share blocks"),
    "weights": (None, "a name that differs wherever weights do; without it, model, revision and the files' sizes and times"),
    "epoch": (0, "a number, the same for engines with the same weights"),
    "deadline_ms": (500, "milliseconds that a call may take, 10 to 60000"),
    "verify": (True, "true or false: check the sum of each block that is loaded"),
    "save_decode": (True, "true or false: save what was generated, and not prompts alone"),
    "tokens": (False, "true or false: tell omnikvd the token ids of what is saved, for its events"),
}
_RETRY_S = 2.0           # between attempts to reach the manager
_PAUSE_S = 2.0           # without omnikv after a deadline has passed
_TOLD_BLOCKS = 100_000   # blocks that may wait for their event at once
_NOT_REACHED = "nothing is cached until the pool can be reached"
_LEASE_STEPS = 4         # scheduler steps after which a worker has certainly loaded


def _options(extra: Dict[str, Any]) -> Dict[str, Any]:
    """The connector's options; ValueError, with what is allowed, for one that there is not or that is out of range."""
    for name in extra:
        if name not in _OPTIONS:
            raise ValueError(f'omnikv: option "{name}" of kv_connector_extra_config is unknown; there are {", ".join(_OPTIONS)}')
    found = {name: extra.get(name, default) for name, (default, _) in _OPTIONS.items()}
    for name, value in found.items():
        default, what = _OPTIONS[name]
        good = isinstance(value, type(default)) if default is not None else value is None or isinstance(value, str)
        if isinstance(value, bool) != isinstance(default, bool) or not good:
            raise ValueError(f"omnikv: option {name} is {value!r}: it must be {what}")
    if not 10 <= found["deadline_ms"] <= 60000:
        raise ValueError(f'omnikv: option deadline_ms is {found["deadline_ms"]}: it must be {_OPTIONS["deadline_ms"][1]}')
    return found


def _fingerprint(path: str) -> str:
    """Of a model in a folder of this host: names, sizes and times of its weights, so that other weights are another name."""
    total = hashlib.sha256()
    try:
        for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
            if entry.name.endswith((".safetensors", ".bin", ".pt", ".gguf", "config.json")):
                info = entry.stat()
                total.update(f"{entry.name} {info.st_size} {info.st_mtime_ns}\n".encode())
    except OSError:
        return ""
    return total.hexdigest()[:16]


@dataclass
class OmniKVHandshake(KVConnectorHandshakeMetadata):
    """What the scheduler must know of a worker to look its blocks up."""
    weights: str
    nr_layers: int
    block_bytes: int
    is_replicated: bool
    pid: int
    refused: str = ""


@dataclass
class _Transfer:
    """Blocks of one request, from its start: ``keys`` and the engine's ``slots``, one each; to load from ``first`` on. Of what
    is to be saved, the token ids of the blocks from ``first`` on, where they are asked for."""
    keys: List[bytes]
    slots: List[int]
    first: int = 0
    tokens: List[int] = field(default_factory=list)


@dataclass
class OmniKVMetadata(KVConnectorMetadata):
    salt: bytes = b""
    hash_algorithm: str = "opaque"
    epoch: int = 0
    fresh: List[int] = field(default_factory=list)     # slots that were handed out in this step, to be written anew
    lost: List[int] = field(default_factory=list)      # that were to be loaded and cannot be
    loads: List[_Transfer] = field(default_factory=list)
    saves: List[_Transfer] = field(default_factory=list)


@dataclass
class OmniKVPublished(KVConnectorWorkerMetadata):
    """Keys of blocks that workers have published in the pool, with how many of them did."""
    counts: Dict[bytes, int]

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        for key, count in other.counts.items():
            self.counts[key] = self.counts.get(key, 0) + count
        return self


class OmniKVStats(KVConnectorStats):
    """Counters since the last report: blocks and bytes loaded and saved, what failed, and seconds spent."""

    NAMES = ("loaded_blocks", "loaded_bytes", "load_failed_blocks", "load_seconds", "saved_blocks", "saved_bytes", "save_failures",
             "save_seconds")

    def reset(self) -> None:
        self.data: Dict[str, Any] = {name: 0 for name in self.NAMES}

    def add(self, **counts: float) -> None:
        for name, count in counts.items():
            self.data[name] = self.data.get(name, 0) + count

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        self.add(**other.data)
        return self

    def reduce(self) -> Dict[str, float]:
        return {name: round(count, 6) for name, count in self.data.items()}

    def is_empty(self) -> bool:
        return not any(self.data.values())


class OmniKVPromMetrics(KVConnectorPromMetrics):
    """The counters of OmniKVStats as vllm:omnikv_*_total."""

    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: List[str], per_engine_labelvalues: Dict[int, List[object]]):
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._counters = {}
        for name in OmniKVStats.NAMES:
            counter = self._counter_cls(name=f"vllm:omnikv_{name}", documentation=f"omnikv connector: {name.replace('_', ' ')}",
                                        labelnames=labelnames)
            self._counters[name] = {engine: counter.labels(*values) for engine, values in per_engine_labelvalues.items()}

    def observe(self, transfer_stats_data: Dict[str, Any], engine_idx: int = 0) -> None:
        for name, count in transfer_stats_data.items():
            if name in self._counters and count:
                self._counters[name][engine_idx].inc(count)


class _Link:
    """The way to the memory manager: reached in the background, left alone for a while after a deadline has passed."""

    def __init__(self, where: str, deadline_ms: int):
        self._where, self._deadline_ms = where, deadline_ms
        self._manager: Optional[Manager] = None
        self._paused_until = 0.0
        self._told: Dict[str, float] = {}
        self._thread: Optional[threading.Thread] = None
        self._closing = threading.Event()
        self.courier = Courier(deadline_ms / 1000)
        self._connect()

    def tell(self, text: str) -> None:
        """One line, and not the same one again within a minute."""
        now = time.monotonic()
        if now - self._told.get(text, -60.0) >= 60:
            self._told[text] = now
            log.warning("omnikv: %s", text)

    def failed(self, what: str, error: BaseException) -> None:
        text = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        self.tell(f"{what}: {text}")
        if isinstance(error, DeadlineError):
            self._paused_until = time.monotonic() + _PAUSE_S

    def manager(self) -> Optional[Manager]:
        """The manager, or None while there is none to be had."""
        if time.monotonic() < self._paused_until or self.courier.is_late:
            return None
        return self._manager

    def _connect(self) -> None:
        try:
            # An engine starts with what is there; who is away at first is waited for in the background.
            # A pool of this process's own is made, and not waited for.
            is_elsewhere = self._where.startswith("unix:")
            self._manager = self.courier.ask(lambda _job: self._reached()) if is_elsewhere else self._reached()
            return
        except Exception as error:
            self.failed(_NOT_REACHED, error)
        self._thread = threading.Thread(target=self._retry, name="omnikv-connect", daemon=True)
        self._thread.start()

    def _reached(self) -> Manager:
        return shared_manager(self._where, deadline_ms=self._deadline_ms)

    def _retry(self) -> None:
        while self._manager is None and not self._closing.wait(_RETRY_S):
            try:
                self._manager = self._reached()
                log.info("omnikv: the pool is reached")
            except (OmniKVError, ValueError) as error:
                self.failed(_NOT_REACHED, error)

    def close(self) -> None:
        self._closing.set()
        self.courier.close()
        self._manager = None


class OmniKVConnector(KVConnectorBase_V1):
    """See the module."""

    try:
        from vllm.v1.metrics.cache_hit_source import CacheHitSource as _CacheHitSource
        _cache_hit_source = _CacheHitSource.HOST
    except ImportError:  # versions that do not tell where hits come from
        pass

    def __init__(self, vllm_config: "VllmConfig", role: KVConnectorRole, kv_cache_config: "Optional[KVCacheConfig]" = None):
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        self._options = _options(vllm_config.kv_transfer_config.kv_connector_extra_config)
        if getattr(vllm_config.kv_transfer_config, "kv_load_failure_policy", "") == "fail":
            # The scheduler reads it after it has made this connector: a failed load is a miss, not a failed request.
            vllm_config.kv_transfer_config.kv_load_failure_policy = "recompute"
        self._link = _Link(self._options["omnikv"], self._options["deadline_ms"])
        # Of the half that this is not, vLLM calls nothing.
        self._half: Any = _Scheduler(self) if role == KVConnectorRole.SCHEDULER else _Worker(self)
        if role == KVConnectorRole.SCHEDULER:
            log.info("omnikv: %s", ", ".join(f"{name}={value!r}" for name, value in self._options.items()))

    @property
    def requires_kv_delivery(self) -> bool:
        """No: nobody waits for what is saved, and a block that was not saved is computed again."""
        return False

    # ---- scheduler -----------------------------------------------------------------------------
    def get_num_new_matched_tokens(self, request: "Request", num_computed_tokens: int) -> Tuple[Optional[int], bool]:
        return self._half.matched_tokens(request, num_computed_tokens), False

    def update_state_after_alloc(self, request: "Request", blocks: "KVCacheBlocks", num_external_tokens: int) -> None:
        self._half.allocated(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: "SchedulerOutput") -> KVConnectorMetadata:
        return self._half.metadata(scheduler_output)

    def request_finished(self, request: "Request", block_ids: List[int]) -> Tuple[bool, Optional[Dict[str, Any]]]:
        self._half.finished(request)
        return False, None

    def set_xfer_handshake_metadata(self, metadata: Dict[int, KVConnectorHandshakeMetadata]) -> None:
        self._half.set_workers(list(metadata.values()))

    def set_xfer_handshake_metadata_pp_aware(self, metadata: Dict[Tuple[int, int], KVConnectorHandshakeMetadata]) -> None:
        self._half.set_workers(list(metadata.values()))

    def update_connector_output(self, connector_output: Any) -> None:
        self._half.published(getattr(connector_output, "kv_connector_worker_meta", None))

    def take_events(self) -> Any:
        """What vLLM's publisher of KV events is to say of the pool: each block once, by the engine that brought it there."""
        return self._half.take_events()

    def reset_cache(self) -> Optional[bool]:
        """Weights have changed, or everything is to be forgotten: from now on only what is computed from here on is found."""
        return self._half.reset()

    # ---- worker --------------------------------------------------------------------------------
    def register_kv_caches(self, kv_caches: "Dict[str, torch.Tensor]") -> None:
        self._half.register(kv_caches)

    def get_handshake_metadata(self) -> Optional[KVConnectorHandshakeMetadata]:
        return self._half.handshake

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        if self.has_connector_metadata():
            self._half.load(self._get_connector_metadata())

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing: what start_load_kv() began is over when it returns."""

    def save_kv_layer(self, layer_name: str, kv_layer: "torch.Tensor", attn_metadata: Any, **kwargs: Any) -> None:
        """Nothing: blocks are saved whole, by wait_for_save()."""

    def wait_for_save(self) -> None:
        if self.has_connector_metadata():
            self._half.save(self._get_connector_metadata())

    def build_connector_worker_meta(self) -> Optional[KVConnectorWorkerMetadata]:
        return self._half.take_published()

    def get_block_ids_with_load_errors(self) -> Set[int]:
        return self._half.take_errors()

    def get_kv_connector_stats(self) -> Optional[KVConnectorStats]:
        return self._half.take_stats()

    @classmethod
    def build_kv_connector_stats(cls, data: Optional[Dict[str, Any]] = None) -> Optional[KVConnectorStats]:
        return OmniKVStats(data=data) if data is not None else OmniKVStats()

    @classmethod
    def build_prom_metrics(cls, vllm_config: Any, metric_types: Any, labelnames: List[str],
                           per_engine_labelvalues: Dict[int, List[object]]) -> KVConnectorPromMetrics:
        return OmniKVPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        self._half.close()
        self._link.close()


@dataclass
class _Tracked:
    """A request that is running: the blocks that it has, and how many were given to the workers to save."""
    request: Any
    slots: List[int] = field(default_factory=list)
    saved: int = 0
    matches: List[Match] = field(default_factory=list)
    load_first: int = 0
    load_end: int = 0

    def release(self, link: _Link) -> None:
        matches, self.matches = self.matches, []
        for match in matches:
            link.courier.post(match.close)


class _Scheduler:
    def __init__(self, connector: OmniKVConnector):
        config = connector._vllm_config
        self._options, self._link = connector._options, connector._link
        self._block_tokens: int = config.cache_config.block_size
        self._hash_tokens: int = getattr(connector._kv_cache_config, "hash_block_size", None) or self._block_tokens
        self._hashes_per_block = max(self._block_tokens // self._hash_tokens, 1)
        self._hash_name: str = config.cache_config.prefix_caching_hash_algo
        self._epoch: int = self._options["epoch"]
        self._workers: List[OmniKVHandshake] = []
        self._spaces: List[Space] = []
        self._spaces_of: Any = None
        self._tracked: Dict[str, _Tracked] = {}
        self._first: Dict[str, int] = {}     # blocks that vLLM had itself when it asked
        self._leases: Deque[Tuple[int, str]] = deque()
        self._step = 0
        self._refused = ""
        events = config.kv_events_config
        self._has_events = bool(events is not None and events.enable_kv_cache_events)
        self._unpublished: "OrderedDict[bytes, Dict[str, Any]]" = OrderedDict()    # by key, until all ranks have it
        self._events: List[Any] = []

    # The workers tell what they keep once their caches are there, before the first request.
    def set_workers(self, workers: List[Any]) -> None:
        self._workers = [worker for worker in workers if isinstance(worker, OmniKVHandshake)]
        refused = {worker.refused for worker in self._workers if worker.refused}
        if not refused and self._options["omnikv"].startswith("embedded:") and any(w.pid != os.getpid() for w in self._workers):
            refused = {"an embedded pool is one process's, and scheduler and worker are two: use omnikvd, or "
                       "--distributed-executor-backend uni"}
        if self._block_tokens % self._hash_tokens:
            refused.add(f"blocks of {self._block_tokens} tokens are not whole multiples of the {self._hash_tokens} that a hash covers")
        self._refused = "; ".join(sorted(refused))
        if self._refused:
            self._link.tell(f"nothing is cached: {self._refused}")

    def _salt(self) -> bytes:
        """What vLLM's hashes depend on besides their input: the algorithm and the value that the chain begins with."""
        from vllm.v1.core import kv_cache_utils
        return hashlib.sha256(self._hash_name.encode() + b"\0" + bytes(getattr(kv_cache_utils, "NONE_HASH", b""))).digest()

    def _algorithm(self) -> str:
        return "sha256_cbor" if self._hash_name == "sha256_cbor" else "opaque"

    def _open(self) -> List[Space]:
        manager = self._link.manager()
        if manager is None or self._refused or not self._workers:
            return []
        if self._spaces_of != (id(manager), self._epoch):
            self._spaces = []
            seen = set()
            for worker in self._workers:
                if worker.weights not in seen:       # one of several ranks that hold the same bytes
                    seen.add(worker.weights)
                    self._spaces.append(_space(manager, worker, self._block_tokens, self._options["tenant"], self._salt(),
                                               self._algorithm(), self._epoch))
            self._spaces_of = (id(manager), self._epoch)
        return self._spaces

    def _keys(self, request: Any, nr_blocks: int) -> List[bytes]:
        step = self._hashes_per_block
        return [bytes(h) for h in request.block_hashes[step - 1:nr_blocks * step:step]]

    def matched_tokens(self, request: Any, num_computed_tokens: int) -> int:
        try:
            # One token must be left to compute.
            most = (request.num_tokens - 1) // self._block_tokens
            first = self._first[request.request_id] = num_computed_tokens // self._block_tokens
            if self._link.manager() is None or most <= first or getattr(request, "pooling_params", None):
                return 0
            keys = Keys(self._keys(request, most))
            tracked = self._tracked.setdefault(request.request_id, _Tracked(request))
            tracked.release(self._link)
            # Leased until the workers have it, so that it is still there then.
            tracked.matches = self._link.courier.ask(lambda _job: [space.match(keys) for space in self._open()])
            return max(min((match.blocks for match in tracked.matches), default=0) - first, 0) * self._block_tokens
        except Exception as error:
            self._link.failed("a lookup is a miss", error)
            return 0

    def allocated(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        first = self._first.pop(request.request_id, 0)
        tracked = self._tracked.setdefault(request.request_id, _Tracked(request))
        tracked.request, tracked.saved = request, 0
        tracked.load_first = tracked.load_end = 0
        if num_external_tokens <= 0:
            tracked.release(self._link)
            return
        tracked.load_first, tracked.load_end = first, first + num_external_tokens // self._block_tokens
        self._leases.append((self._step, request.request_id))

    def metadata(self, output: Any) -> OmniKVMetadata:
        meta = OmniKVMetadata(epoch=self._epoch)
        self._step += 1
        if self._refused:
            return meta
        try:
            meta.salt, meta.hash_algorithm = self._salt(), self._algorithm()
            while self._leases and self._leases[0][0] + _LEASE_STEPS <= self._step:
                tracked = self._tracked.get(self._leases.popleft()[1])
                if tracked is not None:
                    tracked.release(self._link)
            for new in output.scheduled_new_reqs:
                self._scheduled(meta, output, new.req_id, new.block_ids[0], True, new.num_computed_tokens)
            cached = output.scheduled_cached_reqs
            resumed = getattr(cached, "resumed_req_ids", ())
            for i, req_id in enumerate(cached.req_ids):
                blocks = cached.new_block_ids[i]
                self._scheduled(meta, output, req_id, blocks[0] if blocks else [], req_id in resumed, cached.num_computed_tokens[i])
            for req_id in output.num_scheduled_tokens:
                if req_id in self._tracked:
                    self._tracked[req_id].load_first = self._tracked[req_id].load_end = 0
        except Exception as error:
            self._link.failed("a step is neither loaded nor saved", error)
            meta.loads, meta.saves, meta.lost = [], [], self._promised(output)
        return meta

    def _promised(self, output: Any) -> List[int]:
        """Slots that this step was to load: they hold nothing, which vLLM must hear of."""
        cached = output.scheduled_cached_reqs
        tables = [(new.req_id, new.block_ids) for new in output.scheduled_new_reqs] + list(zip(cached.req_ids, cached.new_block_ids))
        lost: List[int] = []
        for req_id, blocks in tables:
            tracked = self._tracked.get(req_id)
            if tracked is not None and tracked.load_end > tracked.load_first:
                lost += list(blocks[0])[tracked.load_first:tracked.load_end]
                tracked.load_first = tracked.load_end = 0
        return lost

    def _scheduled(self, meta: OmniKVMetadata, output: Any, req_id: str, slots: List[int], is_whole: bool, computed: int) -> None:
        """One request of a step: ``slots`` are all of its blocks (``is_whole``), or those that it got besides."""
        tracked = self._tracked.get(req_id)
        if tracked is None:
            meta.fresh.extend(slots)
            return
        begin, end = tracked.load_first, tracked.load_end
        if is_whole:
            tracked.slots = list(slots)
            meta.fresh.extend(tracked.slots[begin if end else computed // self._block_tokens:])
        else:
            tracked.slots.extend(slots)
            meta.fresh.extend(slots)
        if end > begin:
            meta.loads.append(_Transfer(self._keys(tracked.request, end), tracked.slots[:end], begin))
            tracked.saved = end
        # Blocks that are whole behind this step, and whose tokens are known: drafts may still be refused.
        full = min(len(tracked.request.block_hashes) // self._hashes_per_block, len(tracked.slots),
                   (computed + output.num_scheduled_tokens.get(req_id, 0)) // self._block_tokens)
        if not self._options["save_decode"]:
            full = min(full, tracked.request.num_prompt_tokens // self._block_tokens)
        if full > tracked.saved:
            keys = self._keys(tracked.request, full)
            tokens: List[int] = []
            if self._options["tokens"] and self._is_plain(tracked.request):
                tokens = list(tracked.request.all_token_ids[tracked.saved * self._block_tokens:full * self._block_tokens])
            meta.saves.append(_Transfer(keys, tracked.slots[:full], tracked.saved, tokens))
            if self._has_events:
                self._note(tracked.request, keys, tracked.saved, full)
            tracked.saved = full

    @staticmethod
    def _is_plain(request: Any) -> bool:
        """Do its tokens make its hashes? Else consumers know such blocks by vLLM's own events."""
        return not (getattr(request, "mm_features", None) or getattr(request, "cache_salt", None) or
                    getattr(request, "lora_request", None) or getattr(request, "prompt_embeds", None) is not None)

    def _note(self, request: Any, keys: List[bytes], begin: int, end: int) -> None:
        """What the events of blocks [begin, end) will say, should the workers bring them to the pool."""
        tokens, size = request.all_token_ids, self._block_tokens
        lora = getattr(getattr(request, "lora_request", None), "lora_name", None)
        is_plain = self._is_plain(request)
        for i in range(begin, end):
            self._unpublished[keys[i]] = {"parent": keys[i - 1] if i else None, "lora_name": lora,
                                          "token_ids": list(tokens[i * size:(i + 1) * size]) if is_plain else []}
        while len(self._unpublished) > _TOLD_BLOCKS:
            self._unpublished.popitem(last=False)

    def published(self, told: Any) -> None:
        if not isinstance(told, OmniKVPublished) or not self._has_events:
            return
        try:
            from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash as converted
            ranks = len({worker.weights for worker in self._workers})
            for key, count in told.counts.items():
                block = self._unpublished.get(key)
                if block is None:
                    continue
                block["count"] = block.get("count", 0) + count
                if block["count"] < ranks:
                    continue
                del self._unpublished[key]
                self._events.append(BlockStored(
                    block_hashes=[converted(key)], parent_block_hash=converted(block["parent"]) if block["parent"] else None,
                    token_ids=block["token_ids"], block_size=self._block_tokens, lora_id=None, medium="CPU",
                    lora_name=block["lora_name"]))
        except Exception as error:
            self._events = []
            self._link.failed("events are lost", error)

    def take_events(self) -> List[Any]:
        events, self._events = self._events, []
        return events

    def finished(self, request: Any) -> None:
        self._first.pop(request.request_id, None)
        tracked = self._tracked.pop(request.request_id, None)
        if tracked is not None:
            tracked.release(self._link)

    def reset(self) -> Optional[bool]:
        self._epoch += 1
        return True

    # The other half's.
    def take_stats(self) -> None:
        return None

    def close(self) -> None:
        for tracked in self._tracked.values():
            tracked.release(self._link)
        self._tracked.clear()
        self._spaces = []


def _space(manager: Manager, worker: OmniKVHandshake, block_tokens: int, tenant: str, salt: bytes, algorithm: str, epoch: int) -> Space:
    layout = block_layout(worker.nr_layers, worker.block_bytes, block_tokens, worker.is_replicated)
    return block_space(manager, layout, block_tokens, {"tenant": tenant, "weights": worker.weights, "salt": salt, "epoch": epoch,
                                                       "hash_algorithm": algorithm})


class _Worker:
    def __init__(self, connector: OmniKVConnector):
        self._config, self._caches = connector._vllm_config, connector._kv_cache_config
        self._options, self._link = connector._options, connector._link
        self._block_tokens: int = self._config.cache_config.block_size
        self.handshake: Optional[OmniKVHandshake] = None
        self._layers: List[PagedLayer] = []
        self._mover: Optional[BlockMover] = None
        self._mover_of: Optional[Manager] = None
        self._space: Optional[Space] = None
        self._space_of: Any = None
        self._is_stuck = False
        self._errors: Set[int] = set()
        self._bad: Set[int] = set()          # slots of blocks that did not arrive: what follows from them is not saved
        self._stats = OmniKVStats()
        # Left by the courier behind the engine's back.
        self._saved: Deque[int] = deque()
        self._published: Deque[bytes] = deque()
        events = self._config.kv_events_config
        self._has_events = bool(events is not None and events.enable_kv_cache_events)
        self._late_failures: Deque[OmniKVError] = deque()

    def register(self, kv_caches: Dict[str, Any]) -> None:
        parallel = self._config.parallel_config
        self._rank, self._ranks = parallel.rank % parallel.tensor_parallel_size, parallel.tensor_parallel_size
        try:
            self._layers, refused, is_mla = self._geometry(kv_caches), "", self._is_mla()
        except (ValueError, AttributeError, TypeError, IndexError) as error:
            self._layers, refused, is_mla = [], str(error), False
        # With MLA all ranks keep the same bytes: one name, one copy.
        is_replicated = is_mla and self._ranks > 1
        stage = parallel.rank // parallel.tensor_parallel_size
        ranks = f"tp {'-' if is_replicated else self._rank}/{self._ranks} pp {stage}/{parallel.pipeline_parallel_size}"
        self.handshake = OmniKVHandshake(f"{self._weights(kv_caches)} {ranks}", len(self._layers),
                                         self._layers[0].block_bytes if self._layers else 0, is_replicated, os.getpid(), refused)
        if refused:
            self._link.tell(f"nothing is cached: {refused}")

    def _is_mla(self) -> bool:
        return "MLA" in type(self._caches.kv_cache_groups[0].kv_cache_spec).__name__

    def _weights(self, kv_caches: Dict[str, Any]) -> str:
        """All that gives the bytes of a block their meaning besides its tokens."""
        model = self._config.model_config
        name = self._options["weights"]
        if name is None:
            name = f"{model.model}@{model.revision or ''} {_fingerprint(model.model)}"
        backends = set()
        for layer in self._config.compilation_config.static_forward_context.values():
            backend = getattr(layer, "attn_backend", None)
            if backend is not None:
                backends.add(backend.get_name())
        tensor: Any = next(iter(kv_caches.values()), None)
        shape = f"{tensor.dtype} {tuple(tensor.shape[1:])} {tuple(tensor.stride()[1:])}" if hasattr(tensor, "shape") else ""
        return (f"{name} {model.dtype} {model.quantization} {self._config.cache_config.cache_dtype} {','.join(sorted(backends))} "
                f"{shape}")

    def _geometry(self, kv_caches: Dict[str, Any]) -> List[PagedLayer]:
        groups = self._caches.kv_cache_groups
        parallel = self._config.parallel_config
        if len(groups) != 1:
            raise ValueError(f"the model has {len(groups)} groups of caches: one is kept so far")
        spec = groups[0].kv_cache_spec
        if not any(base.__name__ == "FullAttentionSpec" for base in type(spec).__mro__):
            raise ValueError(f"the model's cache is a {type(spec).__name__}: full attention and MLA are kept so far")
        if getattr(parallel, "decode_context_parallel_size", 1) > 1 or getattr(parallel, "prefill_context_parallel_size", 1) > 1:
            raise ValueError("context parallelism spreads blocks over ranks: not kept so far")
        if spec.block_size != self._block_tokens:
            raise ValueError(f"blocks of {spec.block_size} tokens in a cache of {self._block_tokens}: not kept so far")
        layers = []
        for name in groups[0].layer_names:
            tensor = kv_caches[name]
            if tensor.device.type != "cpu":
                raise ValueError(f"the cache is on {tensor.device}: only caches in host memory are kept so far")
            storage, size = tensor.untyped_storage(), tensor.element_size()
            strides, shape = tensor.stride(), tensor.shape
            slot_stride, nr_regions, region_stride, region_bytes = paged_layer(shape, strides, size, self._caches.num_blocks)
            layers.append(PagedLayer(storage.data_ptr(), storage.nbytes(), tensor, tensor.storage_offset() * size, slot_stride,
                                     nr_regions, region_stride, region_bytes))
        if len({layer.block_bytes for layer in layers}) != 1:
            raise ValueError("layers differ in the size of their blocks: not kept so far")
        return layers

    def _is_usable(self) -> bool:
        return bool(self._layers) and not self._is_stuck and self._link.manager() is not None

    # The courier's.
    def _load(self, meta: OmniKVMetadata, transfer: _Transfer, job: Job) -> Set[int]:
        mover, space = self._prepare(meta)
        return mover.load(space, Keys(transfer.keys), transfer.slots[transfer.first:], transfer.first,
                                self._options["verify"], job)

    def _save(self, meta: OmniKVMetadata, transfer: _Transfer, job: Job) -> None:
        mover, space = self._prepare(meta)
        try:
            if transfer.tokens:
                # Before the blocks: then they are there when the daemon tells of them.
                space.note_tokens(transfer.keys[transfer.first:], transfer.tokens)
            new = mover.save(space, Keys(transfer.keys), transfer.slots, job)
        except OmniKVError as error:
            if not job.is_over:
                raise
            # The engine has gone on; it is a commit that failed.
            self._late_failures.append(error)
            return
        self._saved.append(new)
        if new and self._has_events:
            self._published.extend(transfer.keys[-new:])

    def _prepare(self, meta: OmniKVMetadata) -> Tuple[BlockMover, Space]:
        """Mover and space, for this step's names."""
        manager, handshake = self._link.manager(), self.handshake
        if manager is None or handshake is None:
            raise DisconnectedError(errno.ENOTCONN, "the pool cannot be reached now")
        mover, space, names = self._mover, self._space, (meta.salt, meta.hash_algorithm, meta.epoch)
        if mover is None or self._mover_of is not manager:
            mover = self._mover = BlockMover(manager, self._layers, self._options["deadline_ms"] / 1000)
            self._mover_of, space = manager, None
        if space is None or self._space_of != names:
            space = self._space = _space(manager, handshake, self._block_tokens, self._options["tenant"], *names)
            self._space_of = names
        return mover, space

    def load(self, meta: OmniKVMetadata) -> None:
        self._bad.difference_update(meta.fresh)
        self._errors.update(meta.lost)
        self._bad.update(meta.lost)
        begin = time.monotonic()
        for transfer in meta.loads:
            failed = set(range(transfer.first, len(transfer.slots)))
            try:
                if self._is_usable():
                    failed = self._link.courier.ask(partial(self._load, meta, transfer))
            except Exception as error:
                self._failed("a load is a miss", error)
            slots = {transfer.slots[i] for i in failed}
            self._errors |= slots
            self._bad |= slots
            count = len(transfer.slots) - transfer.first - len(failed)
            self._stats.add(loaded_blocks=count, loaded_bytes=count * self._bytes(), load_failed_blocks=len(failed))
        if meta.loads:
            self._stats.add(load_seconds=time.monotonic() - begin)

    def save(self, meta: OmniKVMetadata) -> None:
        begin = time.monotonic()
        for transfer in meta.saves:
            if not self._bad.isdisjoint(transfer.slots) or not self._is_writer(transfer):
                continue
            try:
                if self._is_usable():
                    self._link.courier.ask(partial(self._save, meta, transfer))
            except Exception as error:
                self._stats.add(save_failures=1)
                self._failed("blocks are not saved", error)
        if meta.saves:
            self._stats.add(save_seconds=time.monotonic() - begin)

    def _is_writer(self, transfer: _Transfer) -> bool:
        """Where all ranks keep the same bytes, one of them saves a prompt: chosen by its first block, so that all saves share."""
        if not self.handshake or not self.handshake.is_replicated:
            return True
        return int.from_bytes(transfer.keys[0][:8], "little") % self._ranks == self._rank

    def _bytes(self) -> int:
        return len(self._layers) * (self._layers[0].block_bytes if self._layers else 0)

    def _failed(self, what: str, error: BaseException) -> None:
        self._link.failed(what, error)
        if isinstance(error, StuckError):
            # Its memory is the engine's again, and the copy may still write there: never begin another.
            self._is_stuck = True

    def take_errors(self) -> Set[int]:
        errors, self._errors = self._errors, set()
        return errors

    def take_published(self) -> Optional[OmniKVPublished]:
        counts: Dict[bytes, int] = {}
        while self._published:
            counts[self._published.popleft()] = 1
        return OmniKVPublished(counts) if counts else None

    def take_stats(self) -> Optional[OmniKVStats]:
        while self._saved:
            new = self._saved.popleft()
            self._stats.add(saved_blocks=new, saved_bytes=new * self._bytes())
        while self._late_failures:
            self._stats.add(save_failures=1)
            self._failed("blocks are not saved", self._late_failures.popleft())
        if self._stats.is_empty():
            return None
        stats, self._stats = self._stats, OmniKVStats()
        return stats

    def close(self) -> None:
        mover, self._mover, self._mover_of = self._mover, None, None
        if mover is not None and not self._is_stuck:
            self._link.courier.post(mover.close)
        self._space = None
