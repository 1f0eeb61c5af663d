# SPDX-License-Identifier: Apache-2.0
"""Messages between two ranks of a torch.distributed group, also from a rank that is not named.

Messages from one rank to another with one tag have a communicator of their own, so that they keep
their order and wait for nothing else. On it a message is its number of bytes (8 bytes, in the
machine's order) and then its bytes, so that a receiver learns that there is a message, and how
large it is, before it decides which tensor gets it.
"""

from __future__ import annotations

import atexit
import ctypes
import queue
import threading
import time
import weakref
from typing import Any, Callable, List, Optional

import torch

from tutti import _library
from tutti.torch._ordered import RETURN_S, FutureWork, work_of
from tutti.torch._reductions import UINT8

Connect = Callable[[Callable[[], bool]], ctypes.c_void_p]
_HEADER_BYTES = 8


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


class _Request:
    """A tensor that is to be sent, or filled by the rank that is named."""
    any_source = False

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.future = tensor, torch.futures.Future()

    def wanted(self) -> bool:
        return True

    def take(self, source: int) -> bool:
        return True

    def succeed(self) -> None:
        self.future.set_result([self.tensor])

    def fail(self, error: Exception) -> None:
        self.future.set_exception(error)


class _AnyRequest(_Request):
    """A tensor that the first rank fills that has a message. Several queues have it."""
    any_source = True

    def __init__(self, tensor: torch.Tensor, sources: int) -> None:
        super().__init__(tensor)
        self.source: Optional[int] = None
        self._lock, self._without = threading.Lock(), sources

    def wanted(self) -> bool:
        return self.source is None

    def take(self, source: int) -> bool:
        """Returns whether this rank's message is the one."""
        with self._lock:
            if self.source is not None:
                return False
            self.source = source
            return True

    def give_up(self, error: Exception) -> None:
        """Says that one rank will send nothing. The request fails when no rank is left."""
        with self._lock:
            self._without -= 1
            failed = self._without == 0 and self.source is None
        if failed:
            self.fail(error)


class AnySourceWork(FutureWork):
    """The Work of a tensor that any rank may fill."""

    def __init__(self, request: _AnyRequest) -> None:
        super().__init__(request.future)
        self._request = request

    def source_rank(self) -> int:
        """Returns the rank, within the group, whose message it was. The Work must be done."""
        if self._request.source is None:
            raise RuntimeError("no rank has sent yet; wait() for it first")
        return self._request.source

    _source_rank = source_rank


def receive_from_any(queues: List["MessageQueue"], tensor: torch.Tensor) -> AnySourceWork:
    """Returns a Work that is done when one of these queues has filled the tensor."""
    request = _AnyRequest(tensor, len(queues))
    for messages in queues:
        messages.put(request)
    return AnySourceWork(request)


class MessageQueue:
    """Messages from one rank to another with one tag. Both make it when they first need it, on a
    thread of its own, since the other may come late."""

    def __init__(self, connect: Connect, peer: int, receives: bool) -> None:
        self._library, self._connect = _library.load(), connect
        self._peer, self._receives = peer, receives
        self._requests: queue.SimpleQueue = queue.SimpleQueue()
        self._request: Optional[_Request] = None  # under way
        self._comm: Optional[ctypes.c_void_p] = None
        self._announced: Optional[int] = None  # bytes of the message that comes next
        # Guards what follows.
        self._lock = threading.Lock()
        self._closing = False
        self._waits_for_any = False  # whether it waits for a message only for requests of any rank
        # A daemon thread, so that a message that is never received does not keep the process alive.
        self._thread = threading.Thread(target=self._serve, name="tutti-messages", daemon=True)
        self._thread.start()
        _queues.add(self)

    def move(self, tensor: torch.Tensor) -> Any:
        """Returns a Work that is done when the tensor was sent, or filled."""
        request = _Request(tensor)
        self.put(request)
        return work_of(request.future)

    def put(self, request: _Request) -> None:
        self._requests.put(request)

    def close(self) -> None:
        """Ends the connection once what was asked of the named rank is done."""
        self._requests.put(None)
        with self._lock:
            self._closing = True
            if self._waits_for_any and self._comm is not None:
                self._library.ncclCommAbort(self._comm)
                self._comm = None
        self._thread.join()

    def let_return(self, until: float) -> None:
        """Blocks, until this time at the latest, as long as the thread is about to return from what
        it has done."""
        self._requests.put(None)
        while self._thread.is_alive() and not self._waits() and time.monotonic() < until:
            self._thread.join(0.001)

    def _waits(self) -> bool:
        request = self._request
        return self._waits_for_any or (request is not None and not request.future.done())

    def _serve(self) -> None:
        while True:
            self._request = None
            self._request = request = self._requests.get()
            if request is None:
                break
            try:
                self._do(request)
            except Exception as error:  # Any exception is handed to the thread that waits.
                if isinstance(request, _AnyRequest) and request.source is None:
                    request.give_up(error)
                elif not isinstance(request, _AnyRequest) or request.source == self._peer:
                    request.fail(error)
        with self._lock:
            if self._comm is not None:
                self._library.ncclCommDestroy(self._comm)
                self._comm = None

    def _do(self, request: _Request) -> None:
        if not request.wanted():
            return
        if self._comm is None:
            comm = self._connect(lambda: self._closing and request.any_source)
            with self._lock:
                self._comm = comm
        if not self._receives:
            self._send(request.tensor)
        elif not self._receive(request):
            return
        request.succeed()

    def _send(self, tensor: torch.Tensor) -> None:
        header = ctypes.c_uint64(_bytes(tensor))
        self._call(self._library.ncclSend, ctypes.addressof(header), _HEADER_BYTES)
        self._call(self._library.ncclSend, tensor.data_ptr(), _bytes(tensor))

    def _receive(self, request: _Request) -> bool:
        """Returns whether the tensor was filled, which it is not when another rank was first."""
        if self._announced is None:
            self._announced = self._wait_for_message(request)
        if not request.take(self._peer):
            return False
        count, self._announced = self._announced, None
        if count == _bytes(request.tensor):
            self._call(self._library.ncclRecv, request.tensor.data_ptr(), count)
            return True
        unwanted = torch.empty(count, dtype=torch.uint8)
        self._call(self._library.ncclRecv, unwanted.data_ptr(), count)
        raise ValueError(f"rank {self._peer} of the group sent {count} bytes for a tensor of "
                         f"{_bytes(request.tensor)}")

    def _wait_for_message(self, request: _Request) -> int:
        """Returns how large the next message is."""
        header = ctypes.c_uint64()
        with self._lock:
            if self._closing and request.any_source:
                raise RuntimeError("the group was destroyed before a message came")
            self._waits_for_any = request.any_source
        try:
            self._call(self._library.ncclRecv, ctypes.addressof(header), _HEADER_BYTES)
        finally:
            with self._lock:
                self._waits_for_any = False
        return header.value

    def _call(self, function: Any, address: int, count: int) -> None:
        comm, other = self._comm, 0 if self._receives else 1
        if count and function(address, count, UINT8, other, comm, None) != _library.SUCCESS:
            raise RuntimeError(_library.nccl_error(self._comm))


_queues: "weakref.WeakSet[MessageQueue]" = weakref.WeakSet()


@atexit.register
def _let_threads_return() -> None:
    """PyTorch ends the process by std::terminate where a thread comes back from its functions to
    Python when the interpreter has ended."""
    until = time.monotonic() + RETURN_S
    for messages in list(_queues):
        messages.let_return(until)
