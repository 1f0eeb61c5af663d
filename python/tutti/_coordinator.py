# SPDX-License-Identifier: Apache-2.0
"""The C functions of one coordinator with Python's errors and memory rules, and the types of their
arguments and results. Threads: any."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from dataclasses import dataclass
from typing import Any, Callable, Iterator, List, Optional, Sequence, Tuple

from tutti import _elastic, _features, _library
from tutti._arguments import Sum
from tutti.exceptions import HorovodInternalError

# tuttiOpKind_t
ALLREDUCE, ALLGATHER, BROADCAST, ALLTOALL, REDUCESCATTER, BARRIER = range(6)
KIND_NAMES = ("allreduce", "allgather", "broadcast", "alltoall", "reducescatter", "barrier")
# The time between two questions whether a generation that does not begin was given up.
_LOOK_S = 0.5


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


def create(options: _library.CoordinatorOptions) -> ctypes.c_void_p:
    """Creates a coordinator; blocks until all ranks have come."""
    _features.offer_nccl()
    pointer = ctypes.c_void_p()
    if _library.load().tuttiCoordinatorCreate(ctypes.byref(pointer), ctypes.byref(options)) != \
            _library.SUCCESS:
        raise ValueError(_library.coordinator_error())
    return pointer


def create_unless(given_up: Callable[[], bool], options: _library.CoordinatorOptions
                  ) -> ctypes.c_void_p:
    """Calls create on a thread of its own, because Ctrl-C must be heard meanwhile, and raises
    GenerationBroken soon after `given_up()` returns True: the wait for a rank that died before it
    came would last until the library's limit for initialising. The thread ends by itself at the
    limit."""
    outcome: List[Any] = []
    abandoned = False
    changed = threading.Condition()

    def attempt() -> None:
        try:
            made: Any = create(options)
        except ValueError as error:
            made = error
        with changed:
            outcome.append(made)
            changed.notify_all()
            if not abandoned:
                return
        if not isinstance(made, ValueError):
            _library.load().tuttiCoordinatorDestroy(made)

    threading.Thread(target=attempt, name="tutti-create", daemon=True).start()
    with changed:
        try:
            while not changed.wait_for(lambda: bool(outcome), _LOOK_S):
                if given_up():
                    raise _elastic.GenerationBroken("a worker ended before all had met")
        except BaseException:
            abandoned = True
            raise
    if isinstance(outcome[0], ValueError):
        raise outcome[0]
    return outcome[0]


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
