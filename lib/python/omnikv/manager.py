# SPDX-License-Identifier: MIT
"""The memory manager: namespaces, lookups with leases, sequences.

Calls that may take time release the interpreter's lock. Managers and spaces may be used by any thread, a sequence by one
thread at a time.
"""

import errno
import time
import warnings
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence as Seq, Tuple, Union

from ._native import Handle, check, ffi, lib, new_error, sized, text, text_of
from .buffer import Buffer, Place, shape_of
from .errors import DisconnectedError, InvalidError, ViewError, check_bounds, error_for
from .join import Part
from .keys import Keys, KeysLike, as_keys, as_tail, as_tokens
from .layout import Layout, Plan
from .pool import Pool, PoolInfo, parse_size, pool_info

HASH_ALGORITHMS = {
    "opaque": lib.OMNIKV_HASH_OPAQUE, "sha256_cbor": lib.OMNIKV_HASH_VLLM_SHA256_CBOR,
    "sglang_sha256": lib.OMNIKV_HASH_SGLANG_SHA256, "fast": lib.OMNIKV_HASH_FAST,
}
_NUMBER_MAX = (1 << 63) - 1
_SESSION_MAX = (1 << 64) - 1

NEXT_USE_NEVER: int = lib.OMNIKV_NEXT_USE_NEVER
TICKET_BYTES: int = ffi.sizeof("struct omnikv_ticket")
# A wait returns to the interpreter so often, so that Ctrl-C ends it.
_WAIT_STEP_MS = 200

_SILENT = "omnikvd does not answer: try again when it is back"
_NOT_OWN = "the manager is this process's own: only processes of one omnikvd wait for each other"

# What errors of commit() mean whose reason the library alone knows.
_COMMIT_WHY = {
    errno.EINVAL: "a key stands there twice or is cached behind another prefix, or the tail ends within an entry of a group",
    errno.EBUSY: "a transfer into these blocks is under way: wait for it first",
    errno.EIO: "a store into these blocks has failed: truncate() to before them, and store again",
    errno.ENOSPC: "no room for a copy of the tail, which others share: close sequences and matches, or make the pool larger",
    errno.ESTALE: "the epoch was raised meanwhile: what was computed before is not published",
}
_RETAIN_WHY = {
    errno.EDQUOT: "pins have reached their bound, there are too many retentions, or all others of this process are worth more: retain "
                  "less, or let one end (unretain())",
    errno.ENOTCONN: _SILENT,
}
_GIVE_WHY = {
    errno.ENOTCONN: "omnikvd does not answer, or has not got all of its blocks yet: commit() again later",
    errno.ENODATA: "there is no state at its end to go on from",
    errno.ESTALE: "the epoch was raised meanwhile, or what it has was dropped: open another one",
    errno.EDQUOT: "pins have reached their bound: give less at once, or allow more (omnikvd --pins)",
}
_TAKE_WHY = {
    errno.ESTALE: "there is no such ticket in this namespace: it was taken, is over its time, or never was",
    errno.EAGAIN: "the ticket is there, and not all of its blocks could be had now: try again",
    errno.ENOTCONN: _SILENT,
}


class _Client(Handle):
    def __init__(self, pool: Pool):
        out = ffi.new("struct omnikv_client **")
        ret = lib.omnikv_client_open(pool.pointer, lib.OMNIKV_CLIENT_F_MANAGER, out)
        if ret == -errno.EALREADY:
            raise error_for(errno.EALREADY, "omnikv_client_open", "the daemon manages this pool; attach to it with "
                            "omnikv.connect(\"unix:SOCKET\") instead of \"daemon:SOCKET\"")
        check(ret, "omnikv_client_open")
        super().__init__(out[0], lib.omnikv_client_close, pool)


class SpillStore(Handle):
    """A bounded home of blocks on NVMe: a directory, a file or a block device, with one owner at a time."""

    def __init__(self, path: str, *, capacity: Union[int, str] = 0, pool: Optional[Pool] = None):
        config = sized("omnikv_spill_config", capacity_bytes=parse_size(capacity), notice=lib.okv_py_notice,
                       pool=pool.pointer if pool else ffi.NULL)
        out, err = ffi.new("struct omnikv_spill **"), new_error()
        check(lib.omnikv_spill_open(text(path), config, out, err), "omnikv_spill_open", err)
        super().__init__(out[0], lib.omnikv_spill_close, *([pool] if pool else []))


class Manager(Handle):
    """The memory manager over one pool: which blocks are cached, who leases them, which leave first.

    Make one with ``omnikv.connect()``; the constructor is for a pool that this process manages itself. What an earlier
    manager cached and this one cannot use is a RuntimeWarning.
    """

    def __init__(self, pool: Pool, *, eviction: Optional[str] = None, spill: Optional[SpillStore] = None):
        client = _Client(pool)
        name = text(eviction)
        config = sized("omnikv_manager_config", eviction=name, spill=spill.pointer if spill else ffi.NULL)
        out, err = ffi.new("struct omnikv_manager **"), new_error()
        try:
            check(lib.omnikv_manager_create(client.pointer, config, out, err), "omnikv_manager_create", err)
        except BaseException:
            client.close()
            raise
        if text_of(err):
            warnings.warn(f"omnikv: {text_of(err)}", RuntimeWarning, stacklevel=3)
        super().__init__(out[0], lib.omnikv_manager_destroy, client, *([spill] if spill else []))
        self._owned: List[Handle] = [client]
        self._is_attached = False

    @classmethod
    def attach(cls, socket: Optional[str] = None, *, deadline_ms: int = 0, reserve: Union[int, str] = 0) -> "Manager":
        """The manager of a running omnikvd: what one process commits, all others find.

        ``deadline_ms`` bounds each request to the daemon (0: 1000), ``reserve`` is memory of the pool kept for appends while
        it does not answer. While it is away lookups find what this process uses itself; when it is back, all goes on.
        DisconnectedError: nobody serves ``socket``.
        """
        config = sized("omnikv_attach_config", deadline_ms=deadline_ms, reserve_bytes=parse_size(reserve))
        out, err = ffi.new("struct omnikv_manager **"), new_error()
        ret = lib.omnikv_manager_attach(text(socket), config, out, err)
        if ret == -errno.ENOENT:
            raise DisconnectedError(errno.ENOENT, text_of(err) or f"nobody serves {socket}")
        check(ret, "omnikv_manager_attach", err)
        manager = cls.__new__(cls)
        Handle.__init__(manager, out[0], lib.omnikv_manager_destroy)
        manager._owned, manager._is_attached = [], True
        return manager

    def close(self) -> None:
        """End it, and what it alone uses. Cached blocks go with it, unless others keep them."""
        super().close()
        owned, self._owned = getattr(self, "_owned", []), []
        for handle in owned:
            handle.close()

    def space(self, model: Union[Plan, Layout, str], *, tenant: str = "", weights: str = "", adapter: str = "",
              salt: bytes = b"", epoch: int = 0, hash_algorithm: str = "opaque") -> "Space":
        """The namespace of these fields: blocks are found only where all of them are equal. See ``Space``."""
        return Space(self, model, tenant=tenant, weights=weights, adapter=adapter, salt=salt, epoch=epoch,
                     hash_algorithm=hash_algorithm)

    def stats(self) -> Dict[str, Any]:
        """Counters since creation, and what is there now (``nr_blocks``, ``cached_bytes``); bytes and blocks by name."""
        c = sized("omnikv_manager_stats")
        check(lib.omnikv_manager_stats(self.pointer, c), "omnikv_manager_stats")
        return self._stats_of(c)

    def shared_stats(self) -> Dict[str, Any]:
        """As ``stats()``, of the omnikvd that this manager is attached to, over all its processes."""
        c = sized("omnikv_manager_stats")
        check(lib.omnikv_manager_shared_stats(self.pointer, c), "omnikv_manager_shared_stats", why={
            errno.EOPNOTSUPP: "the manager is this process's own: stats() has all", errno.ENOTCONN: _SILENT})
        return self._stats_of(c)

    @staticmethod
    def _stats_of(c: Any) -> Dict[str, Any]:
        return {name: getattr(c, name) for name, _ in ffi.typeof("struct omnikv_manager_stats").fields if name != "size"}

    def pool_info(self) -> PoolInfo:
        return pool_info(self._pool_pointer())

    def _pool_pointer(self) -> Any:
        return lib.omnikv_client_pool(lib.omnikv_manager_client(self.pointer))

    def check(self) -> None:
        """Walk all invariants; OmniKVError (EUCLEAN) names the first that is broken. For tests."""
        err = new_error()
        check(lib.omnikv_manager_check(self.pointer, err), "omnikv_manager_check", err)

    def flush(self) -> int:
        """Write what nothing leases to the spill store and give its memory back. Returns the number of blocks."""
        return check(lib.omnikv_manager_flush(self.pointer), "omnikv_manager_flush")

    def reset(self) -> int:
        """Drop what nothing leases. A spill store keeps what it has. Returns the number of blocks."""
        return check(lib.omnikv_manager_reset(self.pointer), "omnikv_manager_reset")

    def raise_epoch(self) -> int:
        """Weights have changed: nothing that is cached now, in memory or on NVMe, is hit again, by any process. Returns the new
        epoch."""
        return check(lib.omnikv_manager_raise_epoch(self.pointer), "omnikv_manager_raise_epoch")


class Space(Handle):
    """One namespace. ``model`` is a plan, or a layout (or the name of a preset) that the planner cuts with the pool's granule.

    Any thread may look up and open sequences. ``notice`` says, where it is known, why blocks of a namespace that differs in
    its layout alone will not be found.
    """

    def __init__(self, manager: Manager, model: Union[Plan, Layout, str], *, tenant: str = "", weights: str = "",
                 adapter: str = "", salt: bytes = b"", epoch: int = 0, hash_algorithm: str = "opaque"):
        if isinstance(model, str):
            model = Layout.preset(model)
        if isinstance(model, Layout):
            model = Plan(model, granule_bytes=lib.omnikv_pool_granule_bytes(manager._pool_pointer()))
        if hash_algorithm not in HASH_ALGORITHMS:
            raise InvalidError(errno.EINVAL, f'hash_algorithm "{hash_algorithm}": allowed are {", ".join(HASH_ALGORITHMS)}')
        self.plan, self.manager = model, manager
        strings = [text(s) for s in (tenant, weights, adapter)]
        salt_bytes = ffi.new("char[]", salt)
        ns = sized("omnikv_namespace", tenant=strings[0], weights=strings[1], adapter=strings[2],
                   layout=ffi.addressof(model._c, "layout"), block_tokens=model.block_tokens,
                   hash_algorithm=HASH_ALGORITHMS[hash_algorithm], salt=salt_bytes if salt else ffi.NULL, salt_len=len(salt),
                   epoch=epoch)
        identity = ffi.new("uint8_t[32]")
        check(lib.omnikv_namespace_identity(ns, identity), "omnikv_namespace_identity")
        out, err = ffi.new("struct omnikv_space **"), new_error()
        check(lib.omnikv_space_open(manager.pointer, ns, model._c, out, err), "omnikv_space_open", err)
        super().__init__(out[0], lib.omnikv_space_close, manager)
        self.identity: bytes = bytes(identity)
        self.notice: str = text_of(err)

    def lookup(self, keys: KeysLike) -> int:
        """How many leading blocks are cached now. Nothing is leased: the answer may be old at once."""
        keys = as_keys(keys)
        return check(lib.omnikv_lookup(self.pointer, keys._c, len(keys)), "omnikv_lookup")

    def match(self, keys: KeysLike, tail: Optional[bytes] = None) -> "Match":
        """The longest cached prefix, leased until the match is closed. ``tail``: key of a partial block behind ``keys``."""
        return Match(self, keys, tail)

    def sequence(self, keys: KeysLike = (), tail: Optional[bytes] = None) -> "Sequence":
        """A sequence that begins with the longest cached prefix of ``keys``; its blocks stay leased until it is closed."""
        keys, out = as_keys(keys), ffi.new("struct omnikv_seq **")
        check(lib.omnikv_seq_open(self.pointer, keys._c, len(keys), as_tail(tail), out), "omnikv_seq_open")
        return Sequence(self, out[0])

    def sequences(self, prompts: Iterable[KeysLike], tails: Optional[Iterable[Optional[bytes]]] = None) -> List["Sequence"]:
        """Many at once, each as by ``sequence()``, and several times as fast; ``tails`` has one (or None) a prompt.

        After an error none is open.
        """
        keys = [as_keys(prompt) for prompt in prompts]
        ends = [as_tail(tail) for tail in tails] if tails is not None else [ffi.NULL] * len(keys)
        if len(ends) != len(keys):
            raise InvalidError(errno.EINVAL, f"{len(ends)} tails for {len(keys)} prompts: give one, or None, for each")
        if len(keys) > lib.OMNIKV_SEQ_BATCH_MAX:
            raise InvalidError(errno.EINVAL, f"{len(keys)} prompts: at most {lib.OMNIKV_SEQ_BATCH_MAX} go into one call")
        prefixes, out = ffi.new("struct omnikv_prefix[]", len(keys)), ffi.new("struct omnikv_seq *[]", len(keys))
        for prefix, prompt, end in zip(prefixes, keys, ends):
            prefix.keys, prefix.nr_keys, prefix.tail = prompt._c, len(prompt), end
        check(lib.omnikv_seq_open_batch(self.pointer, prefixes, len(keys), out), "omnikv_seq_open_batch")
        return [Sequence(self, pointer) for pointer in out]

    def prefetch(self, keys: KeysLike) -> int:
        """A prompt with this prefix is going to come: what of it is on NVMe is brought back now. Waits for the disk.

        Returns how many leading blocks are in memory then. Nothing is leased; it counts as used.
        """
        keys = as_keys(keys)
        with self._called() as pointer:
            return check(lib.omnikv_space_prefetch(pointer, keys._c, len(keys)), "omnikv_space_prefetch", why={
                errno.ENOTCONN: _SILENT, errno.EBUSY: "omnikvd has too much to bring back already: the prompt's own lookup will do it"})

    def retain(self, keys: KeysLike, tail: Optional[bytes] = None, *, session: int, pin: bool = False, priority: int = 0,
               ttl_ms: int = 0, next_use_ms: int = 0) -> int:
        """Keep the cached begin of this prefix in memory, for ``session``: any number but 0, an agent's or a conversation's.

        A session retains one prefix of a namespace: the new one takes the place of the one before. ``pin``: it does not leave
        at all before ``ttl_ms`` are over. Otherwise it leaves after what is not retained: the lowest ``priority`` (0 to 100)
        first, and of one priority what is used latest, in ``next_use_ms`` milliseconds from now (0: not known).
        ``next_use_ms=NEXT_USE_NEVER`` with nothing else beside: the session is over, and what only it used leaves next.
        ``ttl_ms`` of 0 is twice ``next_use_ms``; it ends earlier by ``unretain()`` and with the process.

        Returns how many leading blocks are retained now. QuotaError: bounds are reached, and what was retained before stays.
        """
        keys = as_keys(keys)
        check_bounds(f"session {session}", session, 1, _SESSION_MAX)
        check_bounds(f"priority {priority}", priority, 0, lib.OMNIKV_PRIORITY_MAX)
        check_bounds(f"ttl_ms of {ttl_ms}", ttl_ms, 0, lib.OMNIKV_RETAIN_MS_MAX)
        if next_use_ms != NEXT_USE_NEVER:
            check_bounds(f"next_use_ms of {next_use_ms}", next_use_ms, 0, lib.OMNIKV_RETAIN_MS_MAX)
            if pin and priority:
                raise InvalidError(errno.EINVAL, f"a pin with priority {priority}: pins do not leave, so they have none")
            if not ttl_ms and (pin or not next_use_ms):
                raise InvalidError(errno.EINVAL, "a pin without ttl_ms: give it an end" if pin else
                                   "neither ttl_ms nor next_use_ms: nothing would be kept; give one of them")
        elif pin or priority or ttl_ms:
            raise InvalidError(errno.EINVAL, "NEXT_USE_NEVER says that the session is over: pin, priority and ttl_ms have no place beside it")
        how = sized("omnikv_retention", flags=lib.OMNIKV_RETAIN_F_PIN if pin else 0, priority=priority, session=session,
                    ttl_ms=ttl_ms, next_use_ms=next_use_ms)
        return check(lib.omnikv_space_retain(self.pointer, keys._c, len(keys), as_tail(tail), how), "omnikv_space_retain",
                     why=_RETAIN_WHY)

    def unretain(self, session: int) -> None:
        """What ``session`` retains is as any other block again. StaleError: it retains nothing (any more)."""
        check_bounds(f"session {session}", session, 1, _SESSION_MAX)
        check(lib.omnikv_space_unretain(self.pointer, session), "omnikv_space_unretain", why={
            errno.ENOENT: f"session {session} retains nothing (any more)", errno.ENOTCONN: _SILENT})

    def promise(self, keys: KeysLike, timeout_ms: int) -> None:
        """This process computes these blocks now and is going to commit them: others can ``wait()`` instead of computing them too.

        It ends when the block is published, after ``timeout_ms`` (0: it is not computed here any more), and with the process.
        """
        keys = as_keys(keys)
        check_bounds(f"timeout_ms of {timeout_ms}", timeout_ms, 0, lib.OMNIKV_PROMISE_MS_MAX)
        check(lib.omnikv_space_promise(self.pointer, keys._c, len(keys), timeout_ms), "omnikv_space_promise", why={
            errno.EOPNOTSUPP: _NOT_OWN, errno.ENOTCONN: _SILENT, errno.ENOSPC: "too many blocks are promised already: promise fewer at once"})

    def wait(self, key: bytes, timeout_ms: int) -> bool:
        """Wait for a block that another process computes: True where it is cached, False where nobody computes it (any more).

        DeadlineError: somebody still does. Other threads run meanwhile, and Ctrl-C ends it.
        """
        keys = Keys([key])
        check_bounds(f"timeout_ms of {timeout_ms}", timeout_ms, 0, lib.OMNIKV_PROMISE_MS_MAX)
        until = time.monotonic() + timeout_ms / 1000
        with self._called() as pointer:
            while True:
                begin = time.monotonic()
                left_ms = max(0, int((until - begin) * 1000))
                ret = lib.omnikv_space_wait(pointer, keys._c, min(left_ms, _WAIT_STEP_MS))
                if ret != -errno.ETIME or left_ms <= _WAIT_STEP_MS:
                    break
                # A daemon that is silent is not asked at all.
                time.sleep(max(0.0, begin + _WAIT_STEP_MS / 1000 - time.monotonic()))
        return bool(check(ret, "omnikv_space_wait", why={
            errno.ETIME: f"after {timeout_ms} ms the block is still being computed, or omnikvd is silent", errno.EOPNOTSUPP: _NOT_OWN, errno.ENOTCONN: _SILENT}))

    def epoch(self) -> int:
        """Which weights what is computed from now on is of; ``Manager.raise_epoch()`` raises it. Sequences note it by themselves."""
        return check(lib.omnikv_space_epoch(self.pointer), "omnikv_space_epoch")

    def part(self, groups: Optional[Iterable[int]] = None, *, nr_tokens: Optional[int] = None, epoch: Optional[int] = None) -> "Part":
        """Private memory for one rank's part of a block: these groups of the layout (None: all), ``nr_tokens`` tokens (None: a
        full block). See ``Part``. ``epoch``: what ``epoch()`` said before its bytes were computed (None: it is computed from
        now on)."""
        return Part(self, groups, nr_tokens, epoch)

    def take(self, ticket: bytes) -> "Sequence":
        """Take over a sequence that ``Sequence.give()`` has made a ticket of, in any process that has opened the same namespace.

        It is as if opened with the keys of all of its blocks. A process that dies meanwhile leaves the ticket to another one.
        StaleError: there is no such ticket (any more); BusyError: try again.
        """
        if len(ticket) != TICKET_BYTES:
            raise InvalidError(errno.EINVAL, f"a ticket of {len(ticket)} bytes: it has {TICKET_BYTES}")
        c, out = ffi.new("struct omnikv_ticket *"), ffi.new("struct omnikv_seq **")
        ffi.memmove(c.bytes, ticket, TICKET_BYTES)
        with self._called() as pointer:
            check(lib.omnikv_seq_take(pointer, c, out), "omnikv_seq_take", why=_TAKE_WHY)
            return Sequence(self, out[0])

    def note_tokens(self, keys: KeysLike, tokens: Seq[int]) -> None:
        """What tokens the blocks ``keys``, which are going to be committed, stand for: ``block_tokens`` a key, in order.

        omnikvd keeps them with the blocks where its setting "tokens" says so, and tells subscribers of its events.
        Elsewhere this does nothing.
        """
        keys = as_keys(keys)
        if len(tokens) != len(keys) * self.plan.block_tokens:
            raise InvalidError(errno.EINVAL, f"{len(tokens)} tokens for {len(keys)} blocks: {self.plan.block_tokens} a block are needed")
        check(lib.omnikv_space_note_tokens(self.pointer, keys._c, len(keys), as_tokens(tokens)), "omnikv_space_note_tokens")

    def admit(self, nr_tokens: int) -> bool:
        """Would KV of ``nr_tokens`` more tokens fit now, counting what could be evicted? NoSpaceError: never in this pool."""
        check_bounds(f"admit() of {nr_tokens} tokens", nr_tokens, 0, _NUMBER_MAX)
        return bool(check(lib.omnikv_admit(self.pointer, nr_tokens), "omnikv_admit", why={
            errno.ENOSPC: f"{nr_tokens} tokens never fit in this pool: make it larger, or ask for fewer"}))


class Match(Handle):
    """A hit with its leases: ``blocks`` blocks (a partial tail included), ``tokens`` tokens, ``tail_tokens`` of them in the tail."""

    def __init__(self, space: Space, keys: KeysLike, tail: Optional[bytes] = None):
        keys, out = as_keys(keys), ffi.new("struct omnikv_match **")
        check(lib.omnikv_match(space.pointer, keys._c, len(keys), as_tail(tail), out), "omnikv_match")
        super().__init__(out[0], lib.omnikv_match_put, space)
        self.blocks: int = lib.omnikv_match_blocks(out[0])
        self.tokens: int = lib.omnikv_match_tokens(out[0])
        self.tail_tokens: int = lib.omnikv_match_tail_tokens(out[0])


class _Shown(NamedTuple):
    """What a view of a sequence shows: rows of this block."""
    block: int
    is_state: bool
    is_readonly: bool


class Sequence(Handle):
    """A chain of cached blocks plus a private tail. Open one with ``Space.sequence()``; one thread at a time.

    While a view of its rows lives (a memoryview, an array, a tensor; see ``rows()``), calls that would free, publish or share
    these rows raise ViewError, which is a BufferError, and change nothing; closing takes effect with the last view.
    """

    def __init__(self, space: Space, pointer: Any):
        super().__init__(pointer, lib.omnikv_seq_close, space)
        self.space = space
        self._pool = space.manager._pool_pointer()
        self._block_tokens = space.plan.block_tokens
        self._nr_shared = 0    # leading blocks that a fork had too and that were not copied since

    def _nr_blocks(self, nr_tokens: int) -> int:
        return -(-nr_tokens // self._block_tokens)

    def _is_readonly(self, block: int) -> bool:
        return block < self._nr_blocks(self.cached_tokens) or block < self._nr_shared

    def _refuse(self, what: str, takes: Callable[[_Shown], bool]) -> None:
        """ViewError if a view shows what a call ``takes``. An array or a tensor cannot be revoked."""
        blocks = [shown.block for shown in list(self._exports) if takes(shown)]
        if blocks:
            raise ViewError(errno.EBUSY, f"a view (memoryview, array or tensor) of block {min(blocks)} lives, and its rows {what}: "
                            "let it go first (del; release() of a memoryview)")

    @property
    def tokens(self) -> int:
        """Length, in tokens."""
        return lib.omnikv_seq_tokens(self.pointer)

    @property
    def cached_tokens(self) -> int:
        """Tokens of it that came from the cache or were committed to it."""
        return lib.omnikv_seq_cached_tokens(self.pointer)

    @property
    def nvme_blocks(self) -> int:
        """Blocks that opening it brought back from NVMe."""
        return lib.omnikv_seq_nvme_blocks(self.pointer)

    def append(self, nr_tokens: int) -> None:
        """Room for more tokens, evicting inline as needed. NoSpaceError: everything else is leased; nothing has changed."""
        check_bounds(f"append() of {nr_tokens} tokens", nr_tokens, 0, _NUMBER_MAX)
        # A part of a block that others may read is copied, and then the sequence's own.
        part = self.tokens // self._block_tokens if nr_tokens and self.tokens % self._block_tokens else None
        if self._exports and nr_tokens:
            first, last = self._nr_blocks(self.cached_tokens), self._nr_blocks(self.tokens) - 1
            self._refuse("are exchanged for a copy, or are state that is given up",
                         lambda shown: shown.is_readonly and shown.block == part or shown.is_state and first <= shown.block < last)
        check(lib.omnikv_seq_append(self.pointer, nr_tokens), "omnikv_seq_append", why={
            errno.ENOSPC: f"no room for {nr_tokens} more tokens beside what is leased: close sequences and matches, append fewer, or "
                          "make the pool larger"})
        if part is not None:
            self._nr_shared = min(self._nr_shared, part)

    def truncate(self, nr_tokens: int) -> None:
        """Drop tokens from the end, down to ``nr_tokens``. InvalidError where the sequence is shorter."""
        check_bounds(f"truncate() to {nr_tokens} tokens", nr_tokens, 0, self.tokens)
        if self._exports and nr_tokens < self.tokens:
            gone, state_gone = self._nr_blocks(nr_tokens), nr_tokens // self._block_tokens
            self._refuse("are to be dropped", lambda shown: shown.block >= (state_gone if shown.is_state else gone))
        check(lib.omnikv_seq_truncate(self.pointer, nr_tokens), "omnikv_seq_truncate")
        self._nr_shared = min(self._nr_shared, self._nr_blocks(nr_tokens))

    def checkpoint(self, at_most: int) -> int:
        """The last position not behind ``at_most`` where the sequence can go on after a loss."""
        check_bounds(f"a checkpoint at most at {at_most}", at_most, 0, _NUMBER_MAX)
        return lib.omnikv_seq_checkpoint(self.pointer, at_most)

    def fork(self) -> "Sequence":
        """Another sequence that shares everything so far; O(1) in length, nothing is copied.

        What they share is read-only in both from now on; the block that the next append of one continues is copied for it.
        """
        out = ffi.new("struct omnikv_seq **")
        self._refuse("can be written and are to be shared", lambda shown: not shown.is_readonly)
        check(lib.omnikv_seq_fork(self.pointer, out), "omnikv_seq_fork")
        fork = Sequence(self.space, out[0])
        self._nr_shared = fork._nr_shared = self._nr_blocks(self.tokens)
        return fork

    def commit(self, keys: KeysLike, tail: Optional[bytes] = None) -> int:
        """Publish the first ``len(keys)`` full blocks, and the partial tail under ``tail``, so that lookups find them.

        All stores into them must be complete. Returns the number of blocks newly published. Each block appears whole or not
        at all; after an error ``cached_tokens`` tells how far it got.
        """
        keys = as_keys(keys)
        full, rest = divmod(self.tokens, self._block_tokens)
        if len(keys) > full:
            raise InvalidError(errno.EINVAL, f"{len(keys)} keys for {full} full blocks of {self._block_tokens} tokens: append() and store first")
        if tail is not None and (len(keys) < full or not rest):
            raise InvalidError(errno.EINVAL, f"a tail stands behind the keys of all full blocks: there are {len(keys)} keys, {full} full "
                               f"blocks and {rest} tokens behind them")
        if self._exports:
            first = self._nr_blocks(self.cached_tokens)
            self._refuse("are to be published, or given up for those that are cached",
                         lambda shown: first <= shown.block < len(keys) or tail is not None and shown.block == full)
        return check(lib.omnikv_seq_commit(self.pointer, keys._c, len(keys), as_tail(tail)), "omnikv_seq_commit", why=_COMMIT_WHY)

    def give(self, timeout_ms: int) -> bytes:
        """A ticket (16 bytes that nobody guesses) by which another process of the same omnikvd takes it over: ``Space.take()``.

        All of it must be committed, a tail too. Its blocks are held from here on until they are taken or ``timeout_ms`` are over,
        whatever becomes of this process. The sequence stays the caller's: to move it, close it after this.
        """
        check_bounds(f"timeout_ms of {timeout_ms}", timeout_ms, 1, lib.OMNIKV_GIVE_MS_MAX)
        if not self.tokens or self.cached_tokens < self.tokens:
            raise InvalidError(errno.EINVAL, f"{self.cached_tokens} of {self.tokens} tokens are committed: commit() all of them, a tail too, "
                               "before the sequence is given" if self.tokens else "an empty sequence cannot be given")
        ticket = ffi.new("struct omnikv_ticket *")
        check(lib.omnikv_seq_give(self.pointer, timeout_ms, ticket), "omnikv_seq_give", why=_GIVE_WHY)
        return bytes(ffi.buffer(ticket.bytes))

    def block_crc(self, block: int, group: int = 0) -> int:
        """CRC32C of a committed block's rows, in the order layer, plane, row. LostError (ENODATA) while uncommitted."""
        out = ffi.new("uint32_t *")
        check_bounds(f"block {block} of the sequence", block, 0, self._nr_blocks(self.tokens) - 1)
        check_bounds(f"group {group} of the layout", group, 0, self.space.plan._c.layout.nr_groups - 1)
        check(lib.omnikv_seq_block_crc(self.pointer, block, group, out), "omnikv_seq_block_crc", why={
            errno.ENODATA: f"block {block} has no sum: it is not committed whole"})
        return out[0]

    def pieces(self, group: int, layer_index: int, plane: int, begin: int, end: int, device_off: int = 0) -> Tuple[Any, int]:
        """(C array, count) of the pieces that hold tokens [begin, end) of one plane of one stored layer: one a block.

        For ``Ring.load()`` and ``Ring.store()``. ``device_off``: where the row of token ``begin`` lies in device memory, in bytes.
        """
        plan = self.space.plan._c
        check_bounds(f"group {group} of the layout", group, 0, plan.layout.nr_groups - 1)
        check_bounds(f"stored layer {layer_index} of group {group}", layer_index, 0, plan.groups[group].nr_stored - 1)
        check_bounds(f"plane {plane} of group {group}", plane, 0, plan.layout.groups[group].nr_planes - 1)
        check_bounds(f"rows to token {end} of the sequence", end, 0, self.tokens)
        check_bounds(f"rows from token {begin} to {end}", begin, 0, end)
        check_bounds(f"device_off {device_off}", device_off, 0, _NUMBER_MAX)
        most = end // self._block_tokens - begin // self._block_tokens + 2
        array = ffi.new("struct omnikv_piece[]", most)
        return array, check(lib.omnikv_seq_pieces(self.pointer, group, layer_index, plane, begin, end, device_off, array, most),
                            "omnikv_seq_pieces", why={errno.ENODATA: f"there is no state at token {end}"})

    def rows(self, group: int, layer: int, plane: int, begin: int, end: int) -> List[Buffer]:
        """Views of the rows of tokens [begin, end) of one plane of model layer ``layer``: one Buffer a block, in order.

        Shapes are [rows][heads][elems] of the plane's dtype; with a scaled plan [rows][bytes]. Rows of cached or committed
        blocks, and those shared with a fork, are read-only.
        """
        plan = self.space.plan
        index = plan.layer_index(group, layer)
        pieces, count = self.pieces(group, index, plane, begin, end)
        info, group_plan = plan.layout.groups[group], plan.groups[group]
        row_bytes = group_plan.row_bytes[plane]
        if not info.tokens_per_entry:      # state: one row, in the block of the last token
            places = [Place(group, index, plane, begin, end, (end - 1) // self._block_tokens, True)]
        else:
            step, places, at = info.tokens_per_entry, [], begin // info.tokens_per_entry
            for i in range(count):
                rows = pieces[i].bytes // row_bytes
                places.append(Place(group, index, plane, at * step, (at + rows) * step, at // group_plan.entries, False))
                at += rows
        found = []
        for i in range(count):
            shape, dtype = shape_of(plan, group, plane, pieces[i].bytes // row_bytes)
            found.append(Buffer(self, places[i], shape, dtype))
        return found

    def _address(self, place: Place) -> int:
        piece = ffi.new("struct omnikv_piece *")
        check(lib.omnikv_seq_pieces(self.pointer, place.group, place.layer_index, place.plane, place.begin, place.end, 0, piece, 1),
              "omnikv_seq_pieces")
        return int(ffi.cast("uintptr_t", lib.omnikv_pool_addr(self._pool, ffi.addressof(piece, "extent")))) + piece.extent_off

    def _view(self, place: Place) -> Any:
        return self._export(self._address(place), _Shown(place.block, place.is_state, self._is_readonly(place.block)))
