# SPDX-License-Identifier: Apache-2.0
"""Messages between two ranks of a torch.distributed group, also from a rank that is not named.

Messages from one rank to another with one tag have a Worker of their own, keep their order and wait
for nothing else. A message is its number of bytes (8 bytes, in the machine's order) and then its
bytes. A receiver thus learns of a message and its size before the receiver decides which tensor
gets the message.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any, List, Optional

import torch

from tutti.torch._worker import (RETURN_S, UINT8, Connect, FutureWork, Request, Worker, bytes_of)

_HEADER_BYTES = 8
_SEND_PATIENCE_S = 10.0


class _Message(Request):
    """A tensor to send to the named rank, or to fill from the named rank."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(lambda worker: None, [tensor])
        self.tensor = tensor

    def run(self, worker: Worker) -> None:
        assert isinstance(worker, MessageQueue)
        if worker.move(self):
            self.succeed()

    def take(self, source: int) -> bool:
        """Returns whether the tensor gets the message of this rank."""
        return True


class _AnyMessage(_Message):
    """A tensor that the first rank with a message fills. Several queues have the tensor."""
    any_source = True

    def __init__(self, tensor: torch.Tensor, sources: int) -> None:
        super().__init__(tensor)
        self.source: Optional[int] = None
        self._lock, self._without = threading.Lock(), sources

    def run(self, worker: Worker) -> None:
        if self.source is None:
            super().run(worker)

    def take(self, source: int) -> bool:
        with self._lock:
            if self.source is not None:
                return False
            self.source = source
            return True

    def fail(self, worker: Worker, error: Exception) -> None:
        """Fails after the failure of the message that was taken, or when no rank is left."""
        assert isinstance(worker, MessageQueue)
        with self._lock:
            self._without -= 1
            none_left = self._without == 0 and self.source is None
        if none_left or self.source == worker.peer:
            super().fail(worker, error)


class AnySourceWork(FutureWork):
    """The Work of a tensor that any rank may fill."""

    def __init__(self, request: _AnyMessage) -> None:
        super().__init__(request.future)
        self._request = request

    def source_rank(self) -> int:
        """Returns the rank, within the group, that sent the message. The Work must be done."""
        if self._request.source is None:
            raise RuntimeError("no rank has sent yet; wait() for it first")
        return self._request.source

    _source_rank = source_rank


def receive_from_any(queues: List["MessageQueue"], tensor: torch.Tensor) -> AnySourceWork:
    """Returns a Work that is done when a queue has filled the tensor."""
    request = _AnyMessage(tensor, len(queues))
    for messages in queues:
        messages.put(request)
    return AnySourceWork(request)


class MessageQueue(Worker):
    """Messages from one rank to another with one tag. Both ranks make the queue when they first
    need the queue."""

    def __init__(self, connect: Connect, peer: int, receives: bool) -> None:
        self.peer, self._receives = peer, receives
        # A program that ends a group while it still receives has no use for the message. The peer
        # of a message that leaves may come later to receive.
        self.patience_s = RETURN_S if receives else _SEND_PATIENCE_S
        self._announced: Optional[int] = None  # bytes of the next message
        super().__init__(connect)

    def send_or_receive(self, tensor: torch.Tensor) -> Any:
        """Returns a Work that is done when the tensor was sent, or filled."""
        return self.put(_Message(tensor))

    def move(self, message: _Message) -> bool:
        """Returns whether the tensor was sent or filled; false where another rank was first."""
        tensor, header = message.tensor, ctypes.c_uint64(bytes_of(message.tensor))
        if not self._receives:
            self.call("ncclSend", ctypes.addressof(header), _HEADER_BYTES, UINT8, 1)
            self._move_bytes("ncclSend", tensor, 1)
            return True
        if self._announced is None:
            self.call("ncclRecv", ctypes.addressof(header), _HEADER_BYTES, UINT8, 0,
                      any_source=message.any_source)
            self._announced = header.value
        if not message.take(self.peer):
            return False
        count, self._announced = self._announced, None
        if count == bytes_of(tensor):
            self._move_bytes("ncclRecv", tensor, 0)
            return True
        self._move_bytes("ncclRecv", torch.empty(count, dtype=torch.uint8), 0)
        raise ValueError(f"rank {self.peer} of the group sent {count} bytes for a tensor of "
                         f"{bytes_of(tensor)}")

    def _move_bytes(self, function: str, tensor: torch.Tensor, other: int) -> None:
        if tensor.numel():
            self.call(function, tensor.data_ptr(), bytes_of(tensor), UINT8, other)
