# SPDX-License-Identifier: MIT
"""KV-cache memory for LLM inference, with the host's DRAM as its home.

The C API, with buffers that share memory, errors that carry the library's message, and waiting that lets other threads run:

    manager = omnikv.connect("embedded:1G")
    space = manager.space("llama-3-8b", tenant="me", weights="llama-3-8b@main")
    keys = omnikv.ChainKey(secret, space.plan.block_tokens).keys(token_ids)
    with space.sequence(keys) as seq:              # begins with the longest cached prefix
        first = seq.tokens
        seq.append(len(token_ids) - first)
        for rows in seq.rows(0, layer, 0, first, len(token_ids)):
            ...                                    # write K of this layer
        seq.commit(keys)                           # others find it from now on

``omnikv.transformers`` and ``omnikv.vllm`` plug it into engines.
"""

from ._native import BUILT_VERSION, LIBRARY_VERSION
from .buffer import Buffer
from .connection import connect
from .errors import (BusyError, CanceledError, DeadlineError, DisconnectedError, ExistsError, InvalidError, LostError, NoMemoryError,
                     NoSpaceError, NotSupportedError, OmniKVError, QuotaError, StaleError, VersionError, ViewError)
from .join import Part
from .keys import KEY_BYTES_MAX, ChainKey, Keys, chain_sglang, chain_vllm, partial_key
from .layout import Group, GroupPlan, Layout, Plan, Plane
from .manager import HASH_ALGORITHMS, NEXT_USE_NEVER, TICKET_BYTES, Manager, Match, Sequence, Space, SpillStore
from .pool import Pool, PoolInfo, parse_size
from .transfer import EngineMemory, Ring, Transfer

__version__ = BUILT_VERSION

__all__ = [
    "BUILT_VERSION", "Buffer", "BusyError", "CanceledError", "ChainKey", "DeadlineError", "DisconnectedError", "EngineMemory",
    "ExistsError", "Group", "GroupPlan", "HASH_ALGORITHMS", "InvalidError", "KEY_BYTES_MAX", "Keys", "LIBRARY_VERSION",
    "Layout", "LostError", "Manager", "Match", "NEXT_USE_NEVER", "NoMemoryError", "NoSpaceError", "NotSupportedError",
    "OmniKVError", "Part", "Plan", "Plane", "Pool", "PoolInfo", "QuotaError", "Ring", "Sequence", "Space", "SpillStore",
    "StaleError", "TICKET_BYTES", "Transfer", "VersionError", "ViewError", "chain_sglang", "chain_vllm", "connect",
    "parse_size", "partial_key",
]
