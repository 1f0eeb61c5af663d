# SPDX-License-Identifier: Apache-2.0
"""The backend TUTTI of Ray's collectives (ray.util.collective), for arrays in host memory.

    import tutti.ray                                   # in the driver and in every actor
    collective.create_collective_group(actors, 2, [0, 1], backend="TUTTI", group_name="g")
    # or, in each actor
    collective.init_collective_group(2, rank, backend="TUTTI", group_name="g")

Arrays are numpy.ndarray or torch.Tensor in host memory, contiguous; the arrays of one call may be
of both kinds. Every call returns when it is done. As with Ray's own backends, an array that an actor
got from Ray's object store is written in place although NumPy calls it read-only; where the store
shares its memory, other readers of that object see it. What a call refuses is a RefusedCall; what
the library reports, a TuttiError.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import time
from typing import Any, Callable, List, Tuple

from ray.experimental import internal_kv
from ray.util.collective.backend_registry import register_collective_backend
from ray.util.collective.collective_group.base_collective_group import BaseGroup
from ray.util.collective.types import ReduceOp

from tutti.communicator import Communicator

_NAME = "TUTTI"
_OPERATORS = {ReduceOp.SUM: "sum", ReduceOp.PRODUCT: "prod", ReduceOp.MIN: "min",
              ReduceOp.MAX: "max"}
_PAUSE_S = 0.01


def _timeout_s() -> float:
    """Returns how long ranks wait for one another, as the library does."""
    return float(os.environ.get("TUTTI_INIT_TIMEOUT_S") or 300)


def _await_id(key: str, group: str) -> bytes:
    """Returns the unique id that rank 0 of the group left in Ray's store."""
    deadline = time.monotonic() + _timeout_s()
    while True:
        unique_id = internal_kv._internal_kv_get(key)
        if unique_id is not None:
            return bytes(unique_id)
        if time.monotonic() > deadline:
            raise TimeoutError(f'rank 0 of the collective group "{group}" did not come within '
                               f"{_timeout_s():g} s (TUTTI_INIT_TIMEOUT_S)")
        time.sleep(_PAUSE_S)


def _join(world_size: int, rank: int, group: str) -> Communicator:
    """Returns the communicator of a group. Blocks until all its ranks have come."""
    key = f"tutti_collective_group_{group}"
    if rank != 0:
        return Communicator(rank, world_size, _await_id(key, group))
    unique_id = Communicator.unique_id()
    internal_kv._internal_kv_put(key, unique_id)
    try:
        return Communicator(rank, world_size, unique_id)
    finally:  # All ranks have read the id, or the group is not made.
        internal_kv._internal_kv_del(key)


class RefusedCall(ValueError, RuntimeError):
    """The arguments of a call are wrong. Ray's programs look for either of the two."""


def _refusing(method: Callable[..., Any]) -> Callable[..., Any]:
    """Turns a refusal of tutti.Communicator into the error that Ray's programs look for."""
    @functools.wraps(method)
    def call(*arguments: Any, **options: Any) -> Any:
        try:
            return method(*arguments, **options)
        except ValueError as error:
            raise RefusedCall(str(error)) from error
    return call


def _only(items: List[Any]) -> Any:
    """Returns the only item: Ray passes a list with an item for each GPU of the process."""
    if len(items) != 1:
        raise ValueError(f"the backend {_NAME} has one array a process, not {len(items)}")
    return items[0]


def _is_tensor(array: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def _can_be_written(address: int, size: int) -> bool:
    """Returns whether the process may write all of this memory."""
    reached = address
    with open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            places, rights = line.split(None, 2)[:2]
            begin, end = (int(place, 16) for place in places.split("-"))
            if begin <= reached < end:
                if "w" not in rights:
                    return False
                reached = end
            if reached >= address + size:
                return True
    return False


def _writable(array: Any) -> Any:
    """Returns the array, or an array in the same memory where NumPy calls the array read-only, like
    arrays from Ray's object store."""
    if _is_tensor(array) or not hasattr(array, "flags") or array.flags.writeable:
        return array
    import numpy
    if not array.flags.c_contiguous:
        raise ValueError("an array that is read-only must be contiguous")
    if array.nbytes == 0:
        return array.copy()
    if not _can_be_written(array.ctypes.data, array.nbytes):
        raise ValueError("the array lies in memory that cannot be written: pass a copy")
    memory = (ctypes.c_char * array.nbytes).from_address(array.ctypes.data)
    memory.owner = array  # It keeps the memory.
    return numpy.frombuffer(memory, array.dtype).reshape(array.shape)


def _alike(arrays: List[Any]) -> List[Any]:
    """Returns the arrays, all of one kind: NumPy's as tensors in the same memory where some array
    is a tensor."""
    if not any(map(_is_tensor, arrays)):
        return arrays
    import torch
    return [array if _is_tensor(array) else torch.from_numpy(_writable(array)) for array in arrays]


def _stack(arrays: List[Any]) -> Any:
    if _is_tensor(arrays[0]):
        import torch
        return torch.stack(arrays)
    import numpy
    return numpy.stack(arrays)


class TuttiGroup(BaseGroup):
    """One rank of a collective group. Made by ray.util.collective; one thread at a time uses it."""

    def __init__(self, world_size: int, rank: int, group_name: str) -> None:
        super().__init__(world_size, rank, group_name)
        self._comm = _join(world_size, rank, group_name)

    @classmethod
    def backend(cls) -> str:
        return _NAME

    @classmethod
    def check_backend_availability(cls) -> bool:
        return True

    def destroy_group(self) -> None:
        self._comm.destroy()

    @staticmethod
    def _with_rows(array: Any, rows: List[Any]) -> Tuple[Any, List[Any]]:
        """Returns the array and the arrays of the list, which must be like the array, all of one
        kind. Ray has checked that the list has an array for each rank."""
        array, *rows = _alike([array, *rows])
        for row in rows:
            if row.shape != array.shape or row.dtype != array.dtype:
                raise ValueError("the arrays of the list must have the shape and type of the other "
                                 f"one, {tuple(array.shape)} and {array.dtype}: one has "
                                 f"{tuple(row.shape)} and {row.dtype}")
        return array, rows

    @_refusing
    def allreduce(self, tensor: List[Any], allreduce_options: Any) -> None:
        array = _writable(_only(tensor))
        self._comm.allreduce(array, _OPERATORS[allreduce_options.reduceOp], out=array)

    @_refusing
    def barrier(self, barrier_options: Any = None) -> None:
        self._comm.barrier()

    @_refusing
    def reduce(self, tensor: List[Any], reduce_options: Any) -> None:
        array, root = _only(tensor), reduce_options.root_rank
        if self.rank == root:
            array = _writable(array)
        self._comm.reduce(array, root, _OPERATORS[reduce_options.reduceOp],
                          out=array if self.rank == root else None)

    @_refusing
    def broadcast(self, tensor: List[Any], broadcast_options: Any) -> None:
        self._comm.broadcast(_writable(_only(tensor)), broadcast_options.root_rank)

    @_refusing
    def allgather(self, tensor_list: List[List[Any]], tensor: List[Any],
                  allgather_options: Any = None) -> None:
        array, targets = self._with_rows(_only(tensor), _only(tensor_list))
        targets = [_writable(target) for target in targets]
        for target, row in zip(targets, self._comm.allgather(array)):
            target[...] = row

    @_refusing
    def reducescatter(self, tensor: List[Any], tensor_list: List[List[Any]],
                      reducescatter_options: Any) -> None:
        array, rows = self._with_rows(_only(tensor), _only(tensor_list))
        self._comm.reducescatter(_stack(rows), _OPERATORS[reducescatter_options.reduceOp],
                                 out=_writable(array))

    @_refusing
    def send(self, tensor: List[Any], send_options: Any) -> None:
        self._comm.send(_writable(_only(tensor)), send_options.dst_rank)

    @_refusing
    def recv(self, tensor: List[Any], recv_options: Any) -> None:
        self._comm.receive(_writable(_only(tensor)), recv_options.src_rank)


register_collective_backend(_NAME, TuttiGroup)
