# SPDX-License-Identifier: Apache-2.0
"""Communicators as torch.distributed's groups need them: how the ranks of a group meet, and how
operations follow one another on a thread of the library while Python goes on."""

from __future__ import annotations

import ctypes
import itertools
import threading
import time
import weakref
from typing import Any, Callable, Dict, List, Optional, Sequence

import torch
from torch._C._distributed_c10d import Work, _create_work_from_future

from tutti import _library
from tutti.torch._reductions import Call, Step

# The time that a function on another thread may take to return when it has nothing left to do; a
# busy machine needs longer than 20 ms.
RETURN_S = 2.0
# Older PyTorch lets go of a Work of Python that its own code, DistributedDataParallel's for one, is
# still to wait for, and then waits for ever. There a Work does not raise what its future has.
_KEEPS_WORKS = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 8)


class FutureWork(Work):
    """A Work that is done when a future is, and raises its error, which PyTorch's own does not."""

    def __init__(self, future: torch.futures.Future) -> None:
        super().__init__()
        self._future = future

    def wait(self, timeout: Any = None) -> bool:
        self._future.wait()
        return True

    def synchronize(self) -> None:
        self._future.wait()

    def is_completed(self) -> bool:
        return self._future.done()

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> Optional[Exception]:
        """Returns the error of an operation that is done, or None."""
        try:
            self._future.value()
        except Exception as error:
            return error
        return None

    def result(self) -> Any:
        return self._future.value()

    def get_future(self) -> torch.futures.Future:
        return self._future


def work_of(future: torch.futures.Future) -> Any:
    """Returns a Work that is done when the future is."""
    return FutureWork(future) if _KEEPS_WORKS else _create_work_from_future(future)


def done(value: Any) -> Any:
    """Returns a Work that is done, with this result."""
    future: torch.futures.Future = torch.futures.Future()
    future.set_result(value)
    return _create_work_from_future(future)


def new_communicator(store: Any, key: str, rank: int, size: int,
                     closing: Callable[[], bool] = lambda: False) -> ctypes.c_void_p:
    """Makes a communicator. Blocks until all ranks have come. There is no limit until rank 0 has
    come, because messages may be asked for late; `closing` says that nobody waits for it any more,
    which is a RuntimeError."""
    library, unique_id = _library.load(), _library.UniqueId()
    if rank == 0:
        if library.ncclGetUniqueId(ctypes.byref(unique_id)) != _library.SUCCESS:
            raise RuntimeError(_library.nccl_error(None))
        store.set(key, bytes(unique_id).hex())
        store.add(key + "/there", 1)
    else:
        # A get that waits would keep other threads of this process from the store, and one of them
        # may be about to set what another rank waits for.
        pause_s = 0.001
        while store.add(key + "/there", 0) == 0:
            if closing():
                raise RuntimeError("the group was destroyed before the sender came")
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, 0.05)
        unique_id = _library.UniqueId.from_buffer_copy(bytes.fromhex(store.get(key).decode()))
    comm = ctypes.c_void_p()
    made = library.tuttiCommInitRankOn(ctypes.byref(comm), size, unique_id, rank, _library.HOST)
    if made != _library.SUCCESS:
        raise RuntimeError(_library.nccl_error(None))
    return comm


class OrderedCommunicator:
    """A communicator with a stream on which its operations run one after another. It owns both, and
    may be used by several threads."""

    def __init__(self, comm: ctypes.c_void_p) -> None:
        self._library = _library.load()
        self._comm, self._stream = comm, ctypes.c_void_p()
        if self._library.tuttiStreamCreate(ctypes.byref(self._stream)) != _library.SUCCESS:
            raise RuntimeError(_library.nccl_error(None))
        self._pending: Dict[int, Callable[[], None]] = {}
        self._numbers = itertools.count(1)
        # It must outlive every operation, and refers to nothing that refers to this object.
        self._callback = _library.HOST_FUNCTION(_caller(self._pending))
        self._lock = threading.Lock()
        self.close = weakref.finalize(self, _end, self._library, self._comm, self._stream,
                                      self._callback, self._pending)

    def run(self, steps: Sequence[Step], value: Any, keep: Any, wait: bool) -> Any:
        """Returns a Work for these steps, whose result is `value`. `keep` is kept until then.
        `wait` says that the caller waits for it at once."""
        with self._lock:
            if wait and not self._pending:
                for step in steps:
                    step() if callable(step) else self._ask(step, ctypes.c_void_p())
                return done(value)
            return self._queue(steps, value, keep)

    def _queue(self, steps: Sequence[Step], value: Any, keep: Any) -> Any:
        future: torch.futures.Future = torch.futures.Future()
        failures: List[Exception] = []
        try:
            for step in steps:
                if callable(step):
                    self._launch(_guarded(step, failures))
                else:
                    self._ask(step, self._stream)
        finally:  # After an error, too: what was queued before it still uses what is kept.
            self._launch(_finisher(self._library, self._comm, future, failures, value,
                                   (steps, keep)))
        return work_of(future)

    def _launch(self, function: Callable[[], None]) -> None:
        number = next(self._numbers)
        self._pending[number] = function
        self._library.tuttiStreamLaunchHostFunc(self._stream, self._callback, number)

    def _ask(self, calls: Sequence[Call], stream: ctypes.c_void_p) -> None:
        grouped = len(calls) > 1
        result = self._library.ncclGroupStart() if grouped else _library.SUCCESS
        for function, *arguments in calls:
            if result == _library.SUCCESS:
                result = getattr(self._library, function)(*arguments, self._comm, stream)
        if grouped:
            result = self._library.ncclGroupEnd() or result
        if result != _library.SUCCESS:
            raise RuntimeError(_library.nccl_error(self._comm))


def _caller(pending: Dict[int, Callable[[], None]]) -> Callable[[int], None]:
    """Returns what the stream calls: it runs the function that has this number."""
    def call(number: int) -> None:
        pending.pop(number)()
    return call


def _guarded(step: Callable[[], None], failures: List[Exception]) -> Callable[[], None]:
    """Returns a function that runs a step unless one before it failed, and never raises."""
    def run() -> None:
        try:
            if not failures:
                step()
        except Exception as error:  # Any exception is handed to the thread that waits.
            failures.append(error)
    return run


def _finisher(library: Any, comm: ctypes.c_void_p, future: torch.futures.Future,
              failures: List[Exception], value: Any, keep: Any) -> Callable[[], None]:
    """Returns the function that ends an operation. It holds what the operation uses."""
    kept = [keep]

    def finish() -> None:
        state = ctypes.c_int()
        library.ncclCommGetAsyncError(comm, ctypes.byref(state))
        kept.clear()
        if state.value not in (_library.SUCCESS, _library.IN_PROGRESS):
            future.set_exception(RuntimeError(_library.nccl_error(comm)))
        elif failures:
            future.set_exception(failures[0])
        else:
            future.set_result(value)
    return finish


def _end(library: Any, comm: ctypes.c_void_p, stream: ctypes.c_void_p, callback: Any,
         pending: Dict[int, Any]) -> None:
    """Ends it in good order where nothing is under way; else gives up what is waited for."""
    idle = library.tuttiStreamQuery(stream) == _library.SUCCESS
    # A thread that waited for the last operation may come here before the function that woke it
    # has returned.
    until = time.monotonic() + RETURN_S
    while not idle and not pending and time.monotonic() < until:
        time.sleep(0.001)
        idle = library.tuttiStreamQuery(stream) == _library.SUCCESS
    if idle:
        library.tuttiStreamDestroy(stream)
        library.ncclCommDestroy(comm)
    else:
        library.ncclCommAbort(comm)
        library.tuttiStreamDestroy(stream)
    del callback
