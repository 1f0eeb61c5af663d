# SPDX-License-Identifier: Apache-2.0
"""How the ranks of a group meet through torch.distributed's store, and how a rank notes there that
the rank has left. The same as _c10d/rendezvous.h; groups of both forms leave nothing else there."""

from __future__ import annotations

import ctypes
import secrets
import time
import warnings
from typing import Any, Callable, Optional, Sequence, Tuple

from tutti import _library

Limit = Tuple[float, str]  # seconds, 0 for none, and what sets the limit

# Begins the reason of a rank 0 without an id, in the id's place.
_FAILED = b"failed: "
# The words of the library where an id leads nowhere (bootstrap/root_client.cc): nobody listens at
# its address, or the host of the address is silent. Other failures have other causes.
_UNREACHABLE = "cannot reach the root"
_REFUSED, _SILENT = "ECONNREFUSED", "the host did not answer"
_STALE = "; the unique id in the store seems stale, left by rank 0 of an earlier start of the job: "
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.0005, 0.05
# The ranks that have met by the store need a moment for the rest, however late they have met.
_LEAST_FOR_INIT_S = 5.0
_MOST_FOR_INIT_S = 1e6  # The longest initTimeoutSeconds.
_FORGOTTEN_S = 2.0
# As src/base/long_wait.h has it.
_WARN_EVERY_S, _FEWEST_WARN_S = 10.0, 0.5


def setting_seconds(name: str) -> float:
    """Returns the value of a setting of the library, such as TUTTI_TIMEOUT_S."""
    text, length = ctypes.c_char_p(), ctypes.c_int()
    if _library.load().ncclParamGetParameter(name.encode(), ctypes.byref(text),
                                             ctypes.byref(length)) != _library.SUCCESS:
        raise RuntimeError(_library.nccl_error(None))
    return float((text.value or b"0").decode())


def delete_key(store: Any, key: str) -> None:
    """Takes a key out of a store that can delete."""
    try:
        store.delete_key(key)
    except RuntimeError:
        pass


def note_left(store: Any, note: str, rank: int, size: int) -> None:
    """Writes to the store that a rank has left its group. The last rank takes the notes out."""
    if not note:
        return
    try:
        store.set(f"{note}/{rank}", "left")
        if store.add(f"{note}/count", 1) >= size:
            for each in (*range(size), "count"):
                delete_key(store, f"{note}/{each}")
    except RuntimeError:
        pass  # The store has ended.


def has_left(store: Any, note: str, rank: int) -> bool:
    """Returns whether the note of note_left names the rank."""
    try:
        return bool(note) and bool(store.check([f"{note}/{rank}"]))
    except AttributeError:
        return False


class Meeting:
    """A meeting of ranks that make a communicator in host memory. `rank` is the number there, and
    `shown_rank` that in the group; `peer` is the only awaited rank of the group, -1 for several;
    `whom` and `what` are for sentences; with `warns` long waits are warned of. `group` is the meeting
    of all ranks of the group. `note` begins the keys in the store of notes about ranks that leave the
    communicator, and is a new one for each communicator; "" before the communicator is made.
    `forget` has further keys that nobody needs once the ranks have met."""

    def __init__(self, store: Any, key: str, rank: int, size: int, *, timeout_s: float, limit: Limit,
                 shown_rank: int, peer: int, whom: str, what: str,
                 group: Optional["Meeting"], forget: Sequence[str] = ()) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._id, self._there, self._came = key, key + "/there", key + "/came"
        self._told = key + "/told"  # How many ranks know why rank 0 cannot begin.
        self._timeout_s, self._limit = timeout_s, limit
        self._shown_rank, self._peer, self._whom, self._what = shown_rank, peer, whom, what
        self._group, self.note, self._forget = group, "", forget
        self._pause_s = _FIRST_PAUSE_S

    def make(self, check: Callable[[], None], warns: bool = True) -> ctypes.c_void_p:
        """Makes the communicator. Blocks until all ranks have come. RuntimeError at the end of the
        limit, with the reason of rank 0 where rank 0 cannot begin, and where `check`, which is
        called several times a second, raises the error."""
        self._check, self._warns = check, warns
        self._begun = self._warned = time.monotonic()
        self._pause_s = _FIRST_PAUSE_S
        return self._meet_as_first() if self._rank == 0 else self._meet_as_other()

    def _sentence(self, now: float) -> str:
        return (f"rank {self._shown_rank} of the group has waited {now - self._begun:.1f} s for "
                f"{self._whom} to make {self._what}")

    def _wait(self, addition: str = "") -> None:
        """Raises where the wait is over, else sleeps for a moment, longer each time."""
        now, (limit_s, origin) = time.monotonic(), self._limit
        if 0 < limit_s <= now - self._begun:
            raise RuntimeError(f"an operation came to the timeout of its group: "
                               f"{self._sentence(now)}; {origin} sets how long is waited{addition}")
        self._check()
        if (self._pause_s == _LONGEST_PAUSE_S and self._group
                and has_left(self._store, self._group.note, self._peer)):
            raise RuntimeError(f"rank {self._peer} of the group has left the group, and rank "
                               f"{self._shown_rank} waits for it to make {self._what}")
        every_s = min(max(limit_s / 2, _FEWEST_WARN_S), _WARN_EVERY_S) if limit_s else _WARN_EVERY_S
        if self._warns and now - self._warned >= every_s:
            self._warned = now
            warnings.warn(f"{self._sentence(now)}, and goes on waiting{addition}")
        time.sleep(self._pause_s)
        self._pause_s = min(self._pause_s * 1.5, _LONGEST_PAUSE_S)

    def _init(self, offer: bytes, comm: ctypes.c_void_p) -> int:
        """Makes the communicator by an offer of rank 0: the id, and the random end of the note's
        name. The id under NCCL_COMM_ID may be the same for all communicators."""
        hex_id, number = offer.decode().split()
        unique_id = _library.UniqueId.from_buffer_copy(bytes.fromhex(hex_id))
        limit_s = self._limit[0]
        left_s = min(self._begun + limit_s - time.monotonic(), _MOST_FOR_INIT_S)
        config = _library.Config(device=_library.HOST, timeout_s=self._timeout_s,
                                 init_timeout_s=max(left_s, _LEAST_FOR_INIT_S) if limit_s else 0)
        if self._peer >= 0:
            shown = (self._shown_rank, self._peer)
            config.shown_ranks = (ctypes.c_int * 2)(*(shown if self._rank == 0 else shown[::-1]))
        made = int(_library.load().tuttiCommInitRankConfig(
            ctypes.byref(comm), self._size, unique_id, self._rank, None, ctypes.byref(config)))
        if made == _library.SUCCESS:
            self.note = f"left/{number}"
        return made

    def _make_id(self, unique_id: Any) -> bool:
        """Makes an id that the ranks reach as they reach the store, whichever interfaces the hosts
        have."""
        store, library = self._store, _library.load()
        while hasattr(store, "underlying_store"):
            store = store.underlying_store
        host = getattr(store, "host", None)
        made = (library.ncclGetUniqueId(ctypes.byref(unique_id)) if host is None else
                library.tuttiGetUniqueIdFor(ctypes.byref(unique_id), host.encode()))
        return bool(made == _library.SUCCESS)

    def _count_told(self) -> None:
        """Counts a rank that knows why rank 0 cannot begin. The last rank takes the reason out of
        the store."""
        try:
            if self._store.add(self._told, 1) < self._size:
                return
        except RuntimeError:
            return  # The reason itself matters more.
        for key in (self._id, self._there, self._told):
            delete_key(self._store, key)

    def _leave_offer(self) -> bytes:
        """Leaves an offer in the store, or the reason why this rank has none."""
        unique_id = _library.UniqueId()
        made = self._make_id(unique_id)
        error = "" if made else _library.nccl_error(None)
        offer = (f"{bytes(unique_id).hex()} {secrets.token_hex(8)}".encode() if made
                 else _FAILED + error.encode())
        self._store.set(self._id, offer.decode())
        self._store.add(self._there, 1)
        if not made:
            self._count_told()
            raise RuntimeError(error)
        return offer

    def _meet_as_first(self) -> ctypes.c_void_p:
        offer, comm = self._leave_offer(), ctypes.c_void_p()
        try:
            while self._store.add(self._came, 0) < self._size - 1:
                self._wait()
            if self._init(offer, comm) != _library.SUCCESS:
                raise RuntimeError(_library.nccl_error(None))
        except RuntimeError:
            delete_key(self._store, self._there)  # The offer serves nobody any more.
            raise
        # The next meeting may have the same keys.
        for key in (*self._forget, self._id, self._came, self._there):
            delete_key(self._store, key)
        return comm

    def _await_forgotten(self) -> None:
        """Waits until rank 0 has taken the meeting out of the store."""
        until, pause_s = time.monotonic() + _FORGOTTEN_S, _FIRST_PAUSE_S
        try:
            while self._store.check([self._there]) and time.monotonic() < until:
                time.sleep(pause_s)
                pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)
        except (AttributeError, RuntimeError):
            pass  # An older PyTorch, or a store that has ended.

    def _await_offer(self, stale: bytes, why: str) -> bytes:
        """Waits for an offer other than `stale`, which failed with the reason `why`."""
        while True:
            # A get that waits would keep other threads of this process from the store, and one of
            # the threads may be about to set a value for which another rank waits.
            if self._store.add(self._there, 0) > 0:
                offer: bytes = self._store.get(self._id)
                if offer != stale:
                    return offer
            self._wait(_STALE + why if stale else "")

    def _take_offer(self) -> ctypes.c_void_p:
        offer, why = b"", ""
        while True:
            offer = self._await_offer(offer, why)
            if offer.startswith(_FAILED):
                self._count_told()
                raise RuntimeError(f"rank 0 cannot begin to make {self._what}: "
                                   f"{offer[len(_FAILED):].decode(errors='replace')}")
            comm = ctypes.c_void_p()
            if self._init(offer, comm) == _library.SUCCESS:
                self._await_forgotten()
                return comm
            why = _library.nccl_error(None)
            if _UNREACHABLE not in why or not (_REFUSED in why or _SILENT in why):
                raise RuntimeError(why)

    def _meet_as_other(self) -> ctypes.c_void_p:
        self._store.add(self._came, 1)
        try:
            return self._take_offer()
        except RuntimeError:
            try:
                # This rank does not come. Rank 0 may have taken the counter out of the store before.
                if self._store.add(self._came, -1) < 0:
                    delete_key(self._store, self._came)
            except RuntimeError:
                pass
            raise
