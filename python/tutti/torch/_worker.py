# SPDX-License-Identifier: Apache-2.0
"""Threads that carry out the operations of a torch.distributed group while Python goes on, and the
communicators of these threads."""

from __future__ import annotations

import ctypes
import queue
import threading
import time
from typing import Any, Callable, Optional, Sequence, Tuple

import torch
from torch._C._distributed_c10d import Work, _create_work_from_future

from tutti import _library

# Makes a communicator; gives up where the given function raises a RuntimeError. The second argument
# says whether long waits are warned of.
Connect = Callable[[Callable[[], None], bool], ctypes.c_void_p]
Call = Tuple[Any, ...]  # the name of a function of the library, and its first arguments

UINT8 = 1  # ncclDataType_t
# A thread that has nothing left to do may take this long to return; a busy machine needs longer than
# 20 ms.
RETURN_S = 2.0
# Older PyTorch frees a Work of Python while its own code, such as DistributedDataParallel's, is
# still to wait for the Work, and then waits for ever. For older versions PyTorch makes the Work,
# which does not raise the error of its future.
_KEEPS_WORKS = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 8)


def bytes_of(tensor: torch.Tensor) -> int:
    """Returns the number of bytes of a tensor's elements."""
    return tensor.numel() * tensor.element_size()


class FutureWork(Work):
    """A Work that is done when a future is, and raises the future's error. PyTorch's own Work does
    not raise the error."""

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


class Request:
    """An operation, and the future that tells its outcome."""
    any_source = False  # whether the request is for a message from any rank

    def __init__(self, do: Callable[["Worker"], Any], value: Any) -> None:
        self._do, self._value = do, value
        self.future: torch.futures.Future = torch.futures.Future()

    def run(self, worker: "Worker") -> None:
        self._do(worker)
        self.succeed()

    def succeed(self) -> None:
        self.future.set_result(self._value)

    def fail(self, worker: "Worker", error: Exception) -> None:
        self.future.set_exception(error)


class Worker:
    """A thread that carries out requests one after another, on a communicator. The worker makes the
    communicator for the first request that needs one. The caller must close the worker."""
    patience_s = RETURN_S  # how long close waits for requests

    def __init__(self, connect: Connect) -> None:
        self._library, self._connect = _library.load(), connect
        self._requests: queue.SimpleQueue = queue.SimpleQueue()
        self._lock = threading.Lock()  # Guards the members below.
        self._comm: Optional[ctypes.c_void_p] = None
        self._closing = self._given_up = False
        self._timeout_s: Optional[float] = None  # None: as the communicator is made
        self._waits_for_any = False  # whether the thread waits for a message for any_source alone
        # A daemon thread, because a message that is never received must not keep the process alive.
        self._thread = threading.Thread(target=self._serve, name="tutti-torch", daemon=True)
        self._thread.start()

    def put(self, request: Request) -> Any:
        """Returns a Work that is done when the request is."""
        self._requests.put(request)
        return (FutureWork(request.future) if _KEEPS_WORKS
                else _create_work_from_future(request.future))

    def set_timeout(self, seconds: float) -> None:
        """Sets how long operations that begin from now on may wait without progress."""
        with self._lock:
            self._timeout_s = seconds
            self._apply_timeout()

    def _apply_timeout(self) -> None:
        if self._comm is not None and self._timeout_s is not None:
            self._library.tuttiCommSetTimeout(self._comm, self._timeout_s)

    def begin_to_close(self) -> None:
        """Takes no further requests, and gives up a wait for a message from any rank."""
        self._requests.put(None)
        with self._lock:
            self._closing = True
            if self._waits_for_any:
                self._abort()

    def await_requests(self, begun: float) -> None:
        """Waits until all requests are done. Gives up unfinished requests when patience_s have passed
        since `begun`. begin_to_close comes first."""
        self.close(begun + self.patience_s)
        if self._thread.is_alive():
            with self._lock:
                self._abort()

    def close(self, until: float) -> None:
        """Waits for the thread until the given time at most. await_requests comes first."""
        self._thread.join(max(0.0, until - time.monotonic()))

    def call(self, function: str, *arguments: Any, any_source: bool = False) -> None:
        """Calls a function of the library and blocks until its work is done. RuntimeError after a
        failure."""
        comm = self._open(any_source)
        try:
            if getattr(self._library, function)(*arguments, comm, None) != _library.SUCCESS:
                raise RuntimeError(_library.nccl_error(self._comm))
        finally:
            with self._lock:
                self._waits_for_any = False

    def call_all(self, calls: Sequence[Call]) -> None:
        """Does `call` for all calls together; none of them waits for another."""
        if not calls:
            return
        comm = self._open(any_source=False)
        result = self._library.ncclGroupStart()
        for function, *arguments in calls:
            if result == _library.SUCCESS:
                result = getattr(self._library, function)(*arguments, comm, None)
        result = self._library.ncclGroupEnd() or result
        if result != _library.SUCCESS:
            raise RuntimeError(_library.nccl_error(self._comm))

    def _open(self, any_source: bool) -> ctypes.c_void_p:
        def check() -> None:
            if self._given_up or (self._closing and any_source):
                raise RuntimeError("the group was destroyed before the operation was done")
        check()
        if self._comm is None:
            comm = self._connect(check, not any_source)
            with self._lock:
                self._comm = comm
                self._apply_timeout()
        with self._lock:
            check()
            self._waits_for_any = any_source
            return self._comm

    def check_present(self, rank: int) -> None:
        """RuntimeError where the rank of the communicator is lost."""
        with self._lock:
            get, count = self._library.tuttiCommGetLostRanks, ctypes.c_int()
            if self._comm is None or get(self._comm, None, 0, ctypes.byref(count)) != _library.SUCCESS:
                return
            lost = (ctypes.c_int * count.value)()
            if get(self._comm, lost, len(lost), ctypes.byref(count)) != _library.SUCCESS:
                return
            # More ranks may be lost by now than the list has room for; the next call sees them.
            if rank in lost:
                raise RuntimeError(f"rank {rank} of the group is lost")

    def _abort(self) -> None:
        self._given_up = True
        if self._comm is not None:
            self._library.ncclCommAbort(self._comm)
            self._comm = None

    def _serve(self) -> None:
        while True:
            request = self._requests.get()
            if request is None:
                break
            try:
                with torch.no_grad():
                    request.run(self)
            except Exception as error:  # Any exception is handed to the thread that waits.
                request.fail(self, error)
            del request  # Its tensors may be freed while this thread waits.
        with self._lock:
            comm, self._comm = self._comm, None
        # Without the lock, which await_requests needs while ncclCommDestroy waits for the other rank.
        if comm is not None:
            self._library.ncclCommDestroy(comm)
