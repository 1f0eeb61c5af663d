# SPDX-License-Identifier: Apache-2.0
"""The backend TUTTI of Ray's collectives (ray.util.collective), for arrays in host memory.

    import tutti.ray                                   # in the driver and in every actor
    collective.create_collective_group(actors, 2, [0, 1], backend="TUTTI", group_name="g")
    # or, in each actor
    collective.init_collective_group(2, rank, backend="TUTTI", group_name="g")

Arrays are numpy.ndarray or torch.Tensor in host memory, contiguous. Every call returns when it is
done. What tutti.Communicator refuses is a ValueError; what the library reports, a TuttiError.
"""

from __future__ import annotations

import os
import time
from typing import Any, List

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
    return float(os.environ.get("TUTTI_INIT_TIMEOUT_S") or 120)


def _await_id(key: str, group: str) -> bytes:
    """Returns what rank 0 of the group left in Ray's store."""
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
    finally:  # All ranks have read it, or the group is not made.
        internal_kv._internal_kv_del(key)


def _only(items: List[Any]) -> Any:
    """Returns the one item: Ray passes a list with an item for each GPU of the process."""
    if len(items) != 1:
        raise ValueError(f"the backend {_NAME} has one array a process, not {len(items)}")
    return items[0]


def _stack(arrays: List[Any]) -> Any:
    import numpy
    if isinstance(arrays[0], numpy.ndarray):
        return numpy.stack(arrays)
    import torch
    return torch.stack(arrays)


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

    def allreduce(self, tensor: List[Any], allreduce_options: Any) -> None:
        array = _only(tensor)
        self._comm.allreduce(array, _OPERATORS[allreduce_options.reduceOp], out=array)

    def barrier(self, barrier_options: Any = None) -> None:
        self._comm.barrier()

    def reduce(self, tensor: List[Any], reduce_options: Any) -> None:
        array, root = _only(tensor), reduce_options.root_rank
        self._comm.reduce(array, root, _OPERATORS[reduce_options.reduceOp],
                          out=array if self.rank == root else None)

    def broadcast(self, tensor: List[Any], broadcast_options: Any) -> None:
        self._comm.broadcast(_only(tensor), broadcast_options.root_rank)

    def allgather(self, tensor_list: List[List[Any]], tensor: List[Any],
                  allgather_options: Any = None) -> None:
        array, targets = _only(tensor), _only(tensor_list)
        for target in targets:
            if target.shape != array.shape or target.dtype != array.dtype:
                raise ValueError("the arrays of the list must have the shape and type of the one "
                                 "that is gathered")
        for target, row in zip(targets, self._comm.allgather(array)):
            target[...] = row

    def reducescatter(self, tensor: List[Any], tensor_list: List[List[Any]],
                      reducescatter_options: Any) -> None:
        self._comm.reducescatter(_stack(_only(tensor_list)),
                                 _OPERATORS[reducescatter_options.reduceOp], out=_only(tensor))

    def send(self, tensor: List[Any], send_options: Any) -> None:
        self._comm.send(_only(tensor), send_options.dst_rank)

    def recv(self, tensor: List[Any], recv_options: Any) -> None:
        self._comm.receive(_only(tensor), recv_options.src_rank)


register_collective_backend(_NAME, TuttiGroup)
