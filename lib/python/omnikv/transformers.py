# SPDX-License-Identifier: MIT
"""A ``Cache`` for Hugging Face transformers whose prefixes come from omnikv, on the CPU.

    store = omnikv.transformers.KVStore(omnikv.connect("embedded:1G"), model, weights="my-model@v1")
    with store.cache(input_ids) as cache:          # begins with what an earlier prompt left
        output = model.generate(input_ids, past_key_values=cache)
        cache.commit(output)                       # the next prompt finds it

Whole blocks only. A failure of omnikv is a miss, or a commit of nothing, with one line in the log: it never ends a
generation.
"""

import errno
import logging
from typing import Any, Dict, List, Optional, Tuple

import torch
from transformers.cache_utils import Cache, DynamicLayer

from .errors import InvalidError, NotSupportedError, OmniKVError
from .keys import Keys, chain_sglang
from .layout import Layout, Plan
from .manager import Manager, Sequence, Space

log = logging.getLogger("omnikv")

_DTYPES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}


def layout_of(config: Any, dtype: torch.dtype) -> Layout:
    """The layout of what a transformers model keeps in its cache: K and V of each layer, [heads][dim] a token.

    NotSupportedError names a layer that keeps something else (a sliding window, recurrent state).
    """
    config = config.get_text_config()
    for layer, kind in enumerate(getattr(config, "layer_types", None) or []):
        if kind != "full_attention":
            raise NotSupportedError(errno.EOPNOTSUPP, f'layer {layer} is "{kind}": only full_attention is kept in omnikv')
    if dtype not in _DTYPES:
        raise NotSupportedError(errno.EOPNOTSUPP, f"the model computes in {dtype}: allowed are {', '.join(map(str, _DTYPES))}")
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    k_dim = getattr(config, "qk_head_dim", None) or head_dim
    v_dim = getattr(config, "v_head_dim", None) or head_dim
    planes = [{"role": role, "dtype": _DTYPES[dtype], "heads": heads, "elems": elems, "shard_axis": "heads"}
              for role, elems in (("k", k_dim), ("v", v_dim))]
    return Layout.parse({"name": "transformers", "nr_layers": config.num_hidden_layers,
                         "groups": [{"kind": "full", "layers": "all", "planes": planes}]})


class KVStore:
    """One model's KV in a memory manager.

    ``weights`` names model and revision: it must differ wherever weights do. ``tenant`` and ``salt`` keep users apart,
    ``adapter`` names a LoRA. ``epoch`` is raised when weights change under the same name: see ``set_epoch()``.
    """

    def __init__(self, manager: Manager, model: Any, *, weights: str, block_tokens: int = 16, tenant: str = "", adapter: str = "",
                 salt: bytes = b"", epoch: int = 0):
        if model.device.type != "cpu":
            raise NotSupportedError(errno.EOPNOTSUPP, f"the model is on {model.device}: only CPU models so far")
        layout, info = layout_of(model.config, model.dtype), manager.pool_info()
        self.plan = Plan(layout, block_tokens=block_tokens, granule_bytes=info.granule_bytes)
        self.dtype = model.dtype
        self._manager = manager
        self._fields: Dict[str, Any] = {"tenant": tenant, "weights": weights, "adapter": adapter, "salt": salt,
                                        "hash_algorithm": "sglang_sha256"}
        self.space: Space = manager.space(self.plan, epoch=epoch, **self._fields)

    def set_epoch(self, epoch: int) -> None:
        """From now on only KV of this epoch is found: call it when the model's weights have changed."""
        self.space = self._manager.space(self.plan, epoch=epoch, **self._fields)

    def close(self) -> None:
        """Let the namespace go; what is cached in it stays. Its caches must be closed."""
        self.space.close()

    def __enter__(self) -> "KVStore":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def keys(self, tokens: List[int]) -> Keys:
        """Block keys of a prompt: the same in every process."""
        return chain_sglang(tokens, self.plan.block_tokens)

    def cache(self, input_ids: torch.Tensor, attention_mask: Optional[torch.Tensor] = None) -> "OmniKVCache":
        """A cache that begins with the longest prefix that all rows of ``input_ids`` ([batch, tokens]) have in the pool.

        At least one token is left to compute, since an engine needs the logits behind the last. Rows of one length only:
        InvalidError where ``attention_mask`` hides something.
        """
        if attention_mask is not None and not bool(attention_mask.all()):
            raise InvalidError(errno.EINVAL, "rows of different length: give each its own cache, or one call a row")
        return OmniKVCache(self, input_ids)


class OmniKVCache(Cache):
    """A dynamic cache that begins with ``hit_tokens`` tokens out of the pool; made by ``KVStore.cache()``.

    ``close()``, or the end of ``with``, ends its leases. What was not committed is gone then.
    """

    def __init__(self, store: KVStore, input_ids: torch.Tensor):
        super().__init__(layers=[DynamicLayer() for _ in range(store.plan.layout.nr_layers)])
        self._store = store
        self._space = store.space
        self._sequences: List[Sequence] = []
        self._prompts: List[List[int]] = input_ids.tolist()
        self._is_reordered = False
        self.hit_tokens = 0
        try:
            self._open()
            if self.hit_tokens:
                self._load()
        except OmniKVError as error:
            log.warning("omnikv: nothing of this prompt is loaded: %s", error.strerror)
            self.close()
            self.hit_tokens = 0
            self.layers = [DynamicLayer() for _ in range(store.plan.layout.nr_layers)]

    def _open(self) -> None:
        # One token must be left, so a last block that would take it is not asked for.
        for prompt in self._prompts:
            self._sequences.append(self._space.sequence(self._store.keys(prompt[:-1])))
        self.hit_tokens = min(seq.tokens for seq in self._sequences)

    def _load(self) -> None:
        plan, batch = self._store.plan, len(self._prompts)
        planes = plan.layout.groups[0].planes
        for index, layer in enumerate(self.layers):
            tensors = [torch.empty((batch, plane.heads, self.hit_tokens, plane.elems), dtype=self._store.dtype) for plane in planes]
            for row, seq in enumerate(self._sequences):
                for plane, tensor in enumerate(tensors):
                    at = 0
                    for buffer in seq.rows(0, index, plane, 0, self.hit_tokens):
                        tensor[row, :, at:at + len(buffer)] = _tensor(buffer).transpose(0, 1)
                        at += len(buffer)
            layer.lazy_initialization(*tensors)
            layer.keys, layer.values = tensors

    def commit(self, token_ids: torch.Tensor) -> int:
        """Publish the full blocks of ``token_ids`` ([batch, tokens]: prompt and what was generated). Returns how many are new.

        KV of the last token generated does not exist yet, so that its block may have to wait for the next turn. Each row must
        be what the cache has seen, from its prompt on: ValueError where it begins otherwise. After a search that moved rows
        about (beams), nothing is published, since no row of the cache then belongs to one text.
        """
        rows = token_ids.tolist()
        if len(rows) != len(self._prompts) or any(row[:len(prompt)] != prompt for row, prompt in zip(rows, self._prompts)):
            raise ValueError("commit() takes the rows that the cache was made for, each with what followed its prompt")
        if self._is_reordered or not self.get_seq_length():
            return 0
        new = 0
        try:
            for row, tokens in enumerate(rows):
                new += self._commit_row(row, tokens)
        except OmniKVError as error:
            log.warning("omnikv: only %d new blocks are kept: %s", new, error.strerror)
        return new

    def _commit_row(self, row: int, tokens: List[int]) -> int:
        block, have = self._store.plan.block_tokens, self.get_seq_length()
        shape = self._shape()
        if shape != self._expected():
            raise InvalidError(errno.EINVAL, f"the model keeps K and V as {shape} [heads, dim], its configuration says {self._expected()}")
        keys = self._store.keys(tokens[:min(len(tokens), have)])
        with self._space.sequence(keys) as seq:
            first, end = seq.tokens, len(keys) * block
            if first >= end:
                return 0
            seq.append(end - first)
            for index, layer in enumerate(self.layers):
                for plane, tensor in enumerate((layer.keys, layer.values)):
                    at = first
                    for buffer in seq.rows(0, index, plane, first, end):
                        _tensor(buffer).copy_(tensor[row, :, at:at + len(buffer)].transpose(0, 1))
                        at += len(buffer)
            return seq.commit(keys)

    def _shape(self) -> Tuple[Tuple[int, int], ...]:
        layer = self.layers[0]
        return tuple((tensor.shape[1], tensor.shape[3]) for tensor in (layer.keys, layer.values))

    def _expected(self) -> Tuple[Tuple[int, int], ...]:
        return tuple((plane.heads, plane.elems) for plane in self._store.plan.layout.groups[0].planes)

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        self._is_reordered = True
        super().reorder_cache(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._is_reordered = True
        super().batch_repeat_interleave(repeats)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self._is_reordered = True
        super().batch_select_indices(indices)

    def close(self) -> None:
        """End the leases. The tensors of the cache stay usable."""
        sequences, self._sequences = self._sequences, []
        for seq in sequences:
            seq.close()

    def __enter__(self) -> "OmniKVCache":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def _tensor(buffer: Any) -> torch.Tensor:
    """The rows as a tensor over the pool's own memory. Torch knows no read-only tensors: cached rows are only read here."""
    return torch.from_dlpack(buffer)
