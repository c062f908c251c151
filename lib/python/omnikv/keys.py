# SPDX-License-Identifier: MIT
"""Block keys: an engine's own hashes, or one of the chains that the library computes."""

import errno
import operator
from typing import Any, Iterable, Iterator, Optional, Sequence, Union

from ._native import Handle, check, ffi, lib, text
from .errors import InvalidError, check_bounds

KEY_BYTES_MAX: int = lib.OMNIKV_KEY_BYTES_MAX
_TOKENS_MAX = (1 << 32) - 1


class Keys:
    """Keys of a prompt's blocks, first block first, in the form that the C library reads: convert once, use often.

    Each key is 1 to 32 opaque bytes and names the whole prefix up to and including its block.
    """

    def __init__(self, keys: Iterable[bytes] = ()):
        keys = list(keys)
        lengths = {len(key) for key in keys}
        for length in lengths:
            check_bounds(f"a key of {length} bytes", length, 1, KEY_BYTES_MAX)
        self._c = ffi.new("struct omnikv_key[]", max(len(keys), 1))
        self._nr = len(keys)
        if len(lengths) == 1:
            lib.okv_py_pack_keys(self._c, b"".join(keys), len(keys), lengths.pop())
            return
        for i, key in enumerate(keys):
            ffi.memmove(self._c[i].bytes, key, len(key))
            self._c[i].len = len(key)

    @classmethod
    def _of(cls, array: Any, nr: int) -> "Keys":
        keys = cls.__new__(cls)
        keys._c, keys._nr = array, nr
        return keys

    def __len__(self) -> int:
        return self._nr

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return Keys(self[i] for i in range(*index.indices(self._nr)))
        if not -self._nr <= index < self._nr:
            raise IndexError("key out of range")
        key = self._c[index % self._nr]
        return bytes(ffi.buffer(key.bytes, key.len))

    def __iter__(self) -> Iterator[bytes]:
        return (self[i] for i in range(self._nr))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Keys) and list(self) == list(other)

    def partial(self, index: int, nr_tokens: int) -> bytes:
        """Key of a tail of ``nr_tokens`` tokens whose full block would have the key at ``index``."""
        return partial_key(self[index], nr_tokens)


KeysLike = Union[Keys, Sequence[bytes]]


def as_keys(keys: KeysLike) -> Keys:
    return keys if isinstance(keys, Keys) else Keys(keys)


def as_tail(tail: Optional[bytes]) -> Any:
    return ffi.NULL if tail is None else Keys([tail])._c


def partial_key(key: bytes, nr_tokens: int) -> bytes:
    """Key of a partial tail, bound to its length: SHA-256 over ``key`` and ``nr_tokens``. 32 bytes."""
    check_bounds(f"a tail of {nr_tokens} tokens", nr_tokens, 1, _TOKENS_MAX)
    out = ffi.new("struct omnikv_key *")
    check(lib.omnikv_key_partial(Keys([key])._c, nr_tokens, out), "omnikv_key_partial")
    return bytes(ffi.buffer(out.bytes, out.len))


def as_tokens(tokens: Iterable[int]) -> Any:
    """Token ids as the C library reads them. TypeError for what is no integer, which would else be rounded."""
    try:
        view = memoryview(tokens)  # type: ignore[arg-type]
        if view.format in ("I", "i") and view.itemsize == 4 and view.c_contiguous and view.ndim == 1:
            array = ffi.from_buffer("uint32_t[]", view)
            if view.format == "i" and lib.okv_py_has_negative(array, len(array)):
                raise InvalidError(errno.EINVAL, f"a token id is negative: 0 to {_TOKENS_MAX} are allowed")
            return array
    except TypeError:
        pass
    try:
        return ffi.new("uint32_t[]", [operator.index(token) for token in tokens])
    except OverflowError as error:
        raise InvalidError(errno.EINVAL, f"a token id is not within 0 to {_TOKENS_MAX}: {error}") from None


def chain_vllm(tokens: Iterable[int], block_tokens: int, seed: str, extra_keys: Sequence[str] = ()) -> Keys:
    """Keys as vLLM's ``sha256_cbor`` computes them: full blocks only, 32 bytes each.

    ``seed`` is the text of PYTHONHASHSEED; ``extra_keys`` enter the first block (a cache salt).
    """
    check_bounds(f"blocks of {block_tokens} tokens", block_tokens, 1, _TOKENS_MAX)
    array = as_tokens(tokens)
    nr = len(array) // block_tokens
    out = ffi.new("struct omnikv_key[]", max(nr, 1))
    extra = [text(key) for key in extra_keys]
    extras = ffi.new("char *[]", extra) if extra else ffi.NULL
    return Keys._of(out, check(lib.omnikv_chain_vllm(text(seed), array, len(array), block_tokens, extras, len(extra), out),
                               "omnikv_chain_vllm"))


def chain_sglang(tokens: Iterable[int], block_tokens: int) -> Keys:
    """Keys as SGLang's ``get_hash_str`` computes them: full blocks only, 32 bytes each."""
    check_bounds(f"blocks of {block_tokens} tokens", block_tokens, 1, _TOKENS_MAX)
    array = as_tokens(tokens)
    nr = len(array) // block_tokens
    out = ffi.new("struct omnikv_key[]", max(nr, 1))
    return Keys._of(out, check(lib.omnikv_chain_sglang(array, len(array), block_tokens, out), "omnikv_chain_sglang"))


class ChainKey(Handle):
    """A secret (16 bytes or more), made ready for hashing token prefixes at memory speed. Any thread.

    Processes that are to share blocks need the same secret.
    """

    def __init__(self, secret: bytes, block_tokens: int):
        if len(secret) < lib.OMNIKV_CHAIN_SECRET_BYTES_MIN:
            raise InvalidError(errno.EINVAL, f"a secret of {len(secret)} bytes: {lib.OMNIKV_CHAIN_SECRET_BYTES_MIN} or more are needed")
        check_bounds(f"blocks of {block_tokens} tokens", block_tokens, 1, lib.OMNIKV_CHAIN_BLOCK_TOKENS_MAX)
        out = ffi.new("struct omnikv_chain_key **")
        check(lib.omnikv_chain_key_create(secret, len(secret), block_tokens, out), "omnikv_chain_key_create")
        super().__init__(out[0], lib.omnikv_chain_key_destroy)
        self.block_tokens = block_tokens

    def keys(self, tokens: Iterable[int]) -> Keys:
        """Keys of the full blocks of a prompt from its start, 16 bytes each. ``tokens``: ints, or a buffer of 32-bit ones."""
        array = as_tokens(tokens)
        out = ffi.new("struct omnikv_key[]", max(len(array) // self.block_tokens, 1))
        return Keys._of(out, check(lib.omnikv_chain_fast(self.pointer, ffi.NULL, array, len(array), out), "omnikv_chain_fast"))
