# SPDX-License-Identifier: Apache-2.0
"""The operations that this process has asked for: their names, and the handles by which callers
wait for them.

The job (tutti._basics) owns the object. Any thread may call any function.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, FrozenSet, List, Optional, Sequence, Tuple

from tutti import _library
from tutti._coordinator import Coordinator, Request, full_name
from tutti.exceptions import HorovodInternalError


@dataclass
class _Entry:
    """The operations that one of the package's handles stands for."""
    coordinator: Coordinator
    numbers: List[int]
    requests: List[Request]
    grouped: bool
    waiting: threading.Lock = field(default_factory=threading.Lock)


class Operations:
    """See the module."""

    def __init__(self, running: Callable[[], Coordinator]) -> None:
        """running: returns the job's coordinator; ValueError where there is no job."""
        self._running = running
        self._entries: Dict[int, _Entry] = {}
        self._last_handle = 0
        self._abandoned: FrozenSet[int] = frozenset()  # The handles of the job that ended last.
        # The number of operations without a name, by set and kind. All ranks of a set count alike,
        # whatever else some of them do.
        self._noname: Dict[Tuple[int, int], int] = {}
        self._naming = threading.Lock()

    def begin(self) -> None:
        """Begins to count for a new job."""
        self._noname = {}

    def abandon(self) -> Dict[int, Any]:
        """Ends the job's handles. Returns the buffers that the library may use until its
        coordinator is closed; the caller keeps them until then."""
        entries, self._entries = self._entries, {}
        self._abandoned = frozenset(entries)
        return entries

    def forget(self) -> None:
        """Forgets the job, in the child of a fork."""
        self._naming = threading.Lock()
        self._entries = {}

    def forget_set(self, number: int) -> None:
        """Forgets the counts of a process set, which was removed."""
        self._noname = {key: n for key, n in self._noname.items() if key[0] != number}

    def enqueue(self, coordinator: Coordinator, number: int, requests: Sequence[Request],
                name: Optional[str], grouped: bool, members: Optional[Sequence[str]]) -> int:
        """Asks for the requests, which must be of one kind, in the process set with the given
        number, and returns a handle for all of them. With `grouped` they run together or not at
        all. Their names are `<op>.<name>`, or `<op>.noname.<n>` without a name; in a group
        `<op>.<name>_<i>`, or the names of `members`."""
        kind, count = requests[0].kind, len(requests)
        # A failed call is not counted, since the other ranks may not have called.
        naming: Any = self._naming if name is None else contextlib.nullcontext()
        with naming:
            counted = self._noname.get((number, kind), 0) + 1
            base = full_name(kind, f"noname.{counted}" if name is None else name)
            for i, request in enumerate(requests):
                request.name = (full_name(kind, members[i]) if members else
                                f"{base}_{i + 1}" if grouped else base).encode()
            tensors = (_library.Tensor * count)(*requests)
            numbers = (ctypes.c_int64 * count)()
            coordinator.ask("Enqueue", number, tensors, count, base.encode() if grouped else None,
                            numbers)
            if name is None:
                self._noname[number, kind] = counted
        with self._naming:
            self._last_handle += 1
            handle = self._last_handle
        self._entries[handle] = _Entry(coordinator, list(numbers), list(requests), grouped)
        return handle

    def _entry(self, handle: int) -> _Entry:
        entry = self._entries.get(handle) if isinstance(handle, int) else None
        if entry is not None:
            return entry
        if isinstance(handle, int) and handle in self._abandoned:
            raise HorovodInternalError("the job was shut down before the operation was done")
        self._running()
        raise ValueError(f"there is no handle {handle}, or it was synchronized before")

    def _is_done_with(self, handle: int) -> bool:
        """Returns whether the handle was synchronized before."""
        return isinstance(handle, int) and 0 < handle <= self._last_handle and \
            handle not in self._entries and handle not in self._abandoned

    def poll(self, handle: int) -> bool:
        """See Job.poll."""
        entry, done = self._entry(handle), ctypes.c_int()
        for number in entry.numbers:
            entry.coordinator.ask("Poll", number, ctypes.byref(done))
            if not done.value:
                return False
        return True

    def synchronize(self, handle: int) -> Any:
        """See Job.synchronize."""
        if self._is_done_with(handle):
            return None
        entry = self._entry(handle)
        coordinator = entry.coordinator
        with entry.waiting:
            if self._is_done_with(handle):  # another thread did so meanwhile
                return None
            self._entry(handle)
            try:
                # All are waited for, because no buffer may be freed while the library writes to the
                # buffer.
                error: Optional[HorovodInternalError] = None
                for number in entry.numbers:
                    try:
                        coordinator.wait(number)
                    except HorovodInternalError as failed:
                        error = error or failed
                if error is not None:
                    raise error
                results = [request.finish(coordinator.result(number, request))
                           for number, request in zip(entry.numbers, entry.requests)]
            except Exception:
                self._release(handle, entry)
                raise
            # After any other exception (KeyboardInterrupt) the library may still be at work on the
            # buffers; they stay until the job is shut down.
            self._release(handle, entry)
        return results if entry.grouped else results[0]

    def _release(self, handle: int, entry: _Entry) -> None:
        self._entries.pop(handle, None)
        try:
            for number in entry.numbers:
                entry.coordinator.call("Release", number)
        except HorovodInternalError:
            pass  # The coordinator was closed meanwhile, and everything was freed with the coordinator.
