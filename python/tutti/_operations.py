# SPDX-License-Identifier: Apache-2.0
"""The operations that this process has asked for: the requests for them, the C functions of the
coordinator that carries them out, and the handles by which callers wait for them.

The job (tutti._basics) owns the coordinator and the operations. Any thread may call any function.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, FrozenSet, Iterator, List, Optional, Sequence, Tuple

from tutti import _library
from tutti._arguments import Sum
from tutti.exceptions import HorovodInternalError

# tuttiOpKind_t
ALLREDUCE, ALLGATHER, BROADCAST, ALLTOALL, REDUCESCATTER, BARRIER = range(6)
KIND_NAMES = ("allreduce", "allgather", "broadcast", "alltoall", "reducescatter", "barrier")


class Request(_library.Tensor):
    """One operation on one array in the library's form (tuttiTensor_t), with Python's part of the
    operation. A request gets its name when it is enqueued. `keep` keeps the owners of its buffers
    alive until the operation is done; `finish(result)` returns the user's result. `stream` makes an
    array on a GPU, and `current_stream` returns the present stream of the array's library."""

    def __init__(self, kind: int, *, shape: Tuple[int, ...] = (),
                 splits: Optional[Sequence[int]] = None, op: int = Sum, prescale: float = 1.0,
                 postscale: float = 1.0, device: int = _library.HOST,
                 current_stream: Callable[[], int] = lambda: 0, keep: Any = None,
                 finish: Callable[["Result"], Any] = lambda result: None, **fields: Any) -> None:
        splits = splits or ()
        super().__init__(
            size=ctypes.sizeof(_library.Tensor), kind=kind, ndim=len(shape),
            shape=(ctypes.c_int64 * len(shape))(*shape), nsplits=len(splits),
            splits=(ctypes.c_int64 * len(splits))(*splits), op=op, prescale=prescale,
            postscale=postscale, device=device, **fields)
        self.current_stream, self.keep, self.finish = current_stream, keep, finish


@dataclass
class Result:
    """The output of a finished operation in the coordinator's memory; valid inside `finish`
    only."""
    data: int
    shape: Tuple[int, ...]
    received_splits: Tuple[int, ...] = ()


def full_name(kind: int, name: Any) -> str:
    """Returns the name of an operation with its kind in front. ValueError for an impossible
    name."""
    if not isinstance(name, str):
        raise ValueError(f"a name must be a string, not {name!r}")
    if "\0" in name:
        raise ValueError(f"a name has a zero character in it: {name!r}")
    return f"{KIND_NAMES[kind]}.{name}"


class Coordinator:
    """The C functions on one coordinator, with Python's errors and memory rules."""

    def __init__(self, pointer: ctypes.c_void_p) -> None:
        self._library, self._pointer = _library.load(), pointer
        self._calls = 0  # how many threads are inside the library
        self._closing = False
        self._idle = threading.Condition()
        self._main_waits = False

    def interrupt(self) -> None:
        """Ends the job where the main thread waits for other ranks, because ranks that wait for
        this rank would wait in vain."""
        if self._main_waits:
            try:
                self.call("Shutdown")
            except HorovodInternalError:
                pass  # The coordinator is being closed.

    def call(self, function: str, *arguments: Any) -> int:
        """Returns the result of tuttiCoordinator<function>. HorovodInternalError once it was
        closed."""
        with self._idle:
            if self._closing:
                raise HorovodInternalError("the job was shut down")
            self._calls += 1
        try:
            return getattr(self._library, "tuttiCoordinator" + function)(self._pointer, *arguments)
        finally:
            with self._idle:
                self._calls -= 1
                if self._closing:
                    self._idle.notify_all()

    def ask(self, function: str, *arguments: Any) -> None:
        """Does `call` for functions that do not wait for other ranks: ValueError for a wrong call,
        HorovodInternalError for a job that has ended."""
        result = self.call(function, *arguments)
        if result in (_library.INVALID_ARGUMENT, _library.INVALID_USAGE):
            raise ValueError(_library.coordinator_error())
        if result != _library.SUCCESS:
            raise HorovodInternalError(_library.coordinator_error())

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        """Marks calls that wait for other ranks, for `interrupt`."""
        is_main = threading.current_thread() is threading.main_thread()
        self._main_waits = self._main_waits or is_main
        try:
            yield
        finally:
            self._main_waits = self._main_waits and not is_main

    def ask_ranks(self, function: str, *arguments: Any) -> None:
        """Does `call` for functions that wait for other ranks. Disagreement among ranks is a
        HorovodInternalError, as with every operation."""
        with self._waiting():
            result = self.call(function, *arguments)
        if result == _library.INVALID_ARGUMENT:
            raise ValueError(_library.coordinator_error())
        if result != _library.SUCCESS:
            raise HorovodInternalError(_library.coordinator_error())

    def wait(self, number: int) -> None:
        with self._waiting():
            if self.call("Wait", number, -1.0) != _library.SUCCESS:
                raise HorovodInternalError(_library.coordinator_error())

    def integers(self, function: str, number: int, ctype: Any) -> Tuple[int, ...]:
        """Returns a list that the library stores in two steps, length and values."""
        count = ctypes.c_int()
        values = (ctype * 8)()
        self.ask(function, number, values, 8, ctypes.byref(count))
        if count.value > 8:
            values = (ctype * count.value)()
            self.ask(function, number, values, count.value, ctypes.byref(count))
        return tuple(values[:count.value])

    def order_streams(self, number: int, request: Request) -> None:
        """Puts later work on the GPU behind the operation, without making a thread wait. Both the
        stream that made the array and the current stream are ordered, because the array's memory
        may be used again in the order of the former."""
        current = request.current_stream()
        for stream in dict.fromkeys((request.stream or 0, current)):
            self.ask("StreamWait", number, stream or None)

    def result(self, number: int, request: Request) -> Result:
        if request.device >= 0:
            self.order_streams(number, request)
        if request.kind == BARRIER:
            return Result(0, ())
        data = ctypes.c_void_p()
        self.ask("Output", number, ctypes.byref(data))
        shape = self.integers("OutputShape", number, ctypes.c_int64)
        received: Tuple[int, ...] = ()
        if request.kind == ALLTOALL:
            received = self.integers("ReceivedSplits", number, ctypes.c_int64)
        return Result(data.value or 0, shape, received)

    def close(self) -> None:
        """Ends the job on all ranks, lets the threads inside the library out, and frees it."""
        with self._idle:
            if self._closing:
                return
            self._closing = True
        self._library.tuttiCoordinatorShutdown(self._pointer)
        with self._idle:
            self._idle.wait_for(lambda: self._calls == 0)
        self._library.tuttiCoordinatorDestroy(self._pointer)


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
