# SPDX-License-Identifier: GPL-2.0-only
"""The types of vLLM that its connector derives from, for environments without vLLM: install() puts them where it looks.

Where vLLM is installed (the lane engines --full) the same tests run on its own.
"""

import enum
import logging
import sys
import types
from dataclasses import dataclass, field


class KVConnectorRole(enum.Enum):
    SCHEDULER = 0
    WORKER = 1


class KVConnectorMetadata:
    pass


class KVConnectorHandshakeMetadata:
    pass


class KVConnectorWorkerMetadata:
    pass


class KVConnectorBase_V1:
    def __init__(self, vllm_config, role, kv_cache_config=None):
        self._vllm_config, self._role, self._kv_cache_config, self._metadata = vllm_config, role, kv_cache_config, None

    def bind_connector_metadata(self, metadata):
        self._metadata = metadata

    def clear_connector_metadata(self):
        self._metadata = None

    def has_connector_metadata(self):
        return self._metadata is not None

    def _get_connector_metadata(self):
        return self._metadata


@dataclass
class KVConnectorStats:
    data: dict = field(default_factory=dict)

    def __post_init__(self):
        if not self.data:
            self.reset()


class KVConnectorPromMetrics:
    def __init__(self, vllm_config, metric_types, labelnames, per_engine_labelvalues):
        self._counter_cls = next(iter(metric_types.values()))


class BlockStored(types.SimpleNamespace):
    pass


def install():
    def module(name, **fields):
        found = sys.modules[name] = types.ModuleType(name)
        vars(found).update(fields)
        above, _, last = name.rpartition(".")
        if above:
            setattr(sys.modules.get(above) or module(above), last, found)
        return found

    module("vllm.logger", init_logger=logging.getLogger)
    module("vllm.distributed.kv_events", BlockStored=BlockStored)
    module("vllm.distributed.kv_transfer.kv_connector.v1.base", KVConnectorBase_V1=KVConnectorBase_V1, KVConnectorRole=KVConnectorRole,
           KVConnectorMetadata=KVConnectorMetadata, KVConnectorHandshakeMetadata=KVConnectorHandshakeMetadata,
           KVConnectorWorkerMetadata=KVConnectorWorkerMetadata)
    module("vllm.distributed.kv_transfer.kv_connector.v1.metrics", KVConnectorStats=KVConnectorStats,
           KVConnectorPromMetrics=KVConnectorPromMetrics)
    module("vllm.v1.core.kv_cache_utils", NONE_HASH=b"none", maybe_convert_block_hash=lambda key: key)
