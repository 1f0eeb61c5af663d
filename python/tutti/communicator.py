# SPDX-License-Identifier: Apache-2.0
"""tutti.Communicator: the library's collectives on arrays, without names, order to be agreed on, or
a background thread. All ranks call the same functions in the same order."""

from __future__ import annotations

import ctypes
import sys
from typing import Any, Optional

from tutti import _basics, _library
from tutti.exceptions import TuttiError

_REDUCTIONS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}
# ncclDataType_t by tuttiElementType_t; what is missing can be moved but not reduced.
_NCCL_TYPES = {0: 1, 1: 0, 4: 2, 5: 4, 6: 6, 7: 7, 8: 8, 10: 9, 11: 3, 12: 5, 13: 10, 14: 11}
_BYTES = (1, 1, 2, 2, 4, 8, 2, 4, 8, 1, 2, 4, 8, 1, 1)  # of an element, by tuttiElementType_t
_UINT8 = 1


def _adapter(array: Any) -> Any:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        from tutti.torch._adapter import TorchAdapter
        return TorchAdapter()
    import numpy
    if isinstance(array, numpy.ndarray):
        from tutti._numpy_adapter import NumpyAdapter
        return NumpyAdapter()
    raise ValueError(f"a {type(array).__name__} is neither a numpy.ndarray nor a torch.Tensor")


class Communicator:
    """One rank of a group of ranks.

        comm = tutti.Communicator(rank, nranks, unique_id)   # unique_id from one rank, for all
        comm = tutti.Communicator.world()                    # all ranks of the initialised job

    Arrays are numpy.ndarray or torch.Tensor in host memory, contiguous, alike on all ranks unless
    said otherwise. Every operation is done when its call returns. `out` is written where it is
    given, and may be the input where shapes allow; else the result is a new array.

    Errors: ValueError for arguments; TuttiError, with the library's sentence, for what it reports.
    A lost rank fails the communicator. Threads: one at a time; calls do not hold Python's lock.
    """

    def __init__(self, rank: int, nranks: int, unique_id: bytes) -> None:
        if len(unique_id) != _library.UNIQUE_ID_BYTES:
            raise ValueError(f"a unique id has {_library.UNIQUE_ID_BYTES} bytes, not "
                             f"{len(unique_id)}")
        self._comm = ctypes.c_void_p()
        made = _library.UniqueId.from_buffer_copy(unique_id)
        self._call("tuttiCommInitRankOn", ctypes.byref(self._comm), int(nranks), made, int(rank),
                   _library.HOST)
        self.rank, self.size = int(rank), int(nranks)

    @staticmethod
    def unique_id() -> bytes:
        """128 bytes for one new communicator, made on one rank and handed to all."""
        made = _library.UniqueId()
        if _library.load().ncclGetUniqueId(ctypes.byref(made)) != _library.SUCCESS:
            raise TuttiError(1, _library.nccl_error(None))
        return bytes(made)

    @classmethod
    def world(cls) -> "Communicator":
        """Of all ranks of the job that tutti.torch.init or tutti.numpy.init began; all call it."""
        from tutti.numpy import broadcast_object
        job = _basics.job()
        unique_id = cls.unique_id() if job.rank() == 0 else b""
        return cls(job.rank(), job.size(),
                   broadcast_object(unique_id, 0, "tutti.Communicator.world"))

    def _call(self, function: str, *arguments: Any) -> None:
        result = getattr(_library.load(), function)(*arguments)
        if result != _library.SUCCESS:
            raise TuttiError(result, _library.nccl_error(None))

    def _open(self) -> ctypes.c_void_p:
        if not self._comm:
            raise ValueError("the communicator was destroyed")
        return self._comm

    def split(self, color: int, key: int = 0) -> Optional["Communicator"]:
        """A communicator of the ranks with the same color, ordered by key; None for color -1."""
        child = Communicator.__new__(Communicator)
        child._comm = ctypes.c_void_p()
        self._call("ncclCommSplit", self._open(), color, key, ctypes.byref(child._comm), None)
        if not child._comm:
            return None
        number = ctypes.c_int()
        self._call("ncclCommUserRank", child._comm, ctypes.byref(number))
        child.rank = number.value
        self._call("ncclCommCount", child._comm, ctypes.byref(number))
        child.size = number.value
        return child

    def allreduce(self, array: Any, op: str = "sum", out: Any = None) -> Any:
        """Reduces element by element: sum, prod, max, min or avg."""
        adapter, array, out = self._prepare(array, out)
        self._call("ncclAllReduce", adapter.address(array), adapter.address(out),
                   _count(adapter, array), _reduced_type(adapter, array), _reduction(op),
                   self._open(), None)
        return out

    def reduce(self, array: Any, root: int = 0, op: str = "sum", out: Any = None) -> Any:
        """As allreduce, but on `root` alone; None on the others."""
        adapter, array, out = self._prepare(array, out)
        self._call("ncclReduce", adapter.address(array), adapter.address(out),
                   _count(adapter, array), _reduced_type(adapter, array), _reduction(op), root,
                   self._open(), None)
        return out if self.rank == root else None

    def broadcast(self, array: Any, root: int = 0) -> Any:
        """Overwrites the array with that of `root`."""
        adapter, array, out = self._prepare(array, array)
        self._call("ncclBroadcast", adapter.address(array), adapter.address(out),
                   _bytes(adapter, array), _UINT8, root, self._open(), None)
        return out

    def allgather(self, array: Any, out: Any = None) -> Any:
        """The arrays of all ranks: shape (size, *array.shape)."""
        adapter = _adapter(array)
        shape = (self.size, *adapter.shape(array))
        adapter, array, out = self._prepare(array, out, shape)
        self._call("ncclAllGather", adapter.address(array), adapter.address(out),
                   _bytes(adapter, array), _UINT8, self._open(), None)
        return out

    def reducescatter(self, array: Any, op: str = "sum", out: Any = None) -> Any:
        """Row `rank` of the reduced array, whose first dimension is `size`."""
        adapter = _adapter(array)
        shape = self._rows(adapter.shape(array))
        adapter, array, out = self._prepare(array, out, shape[1:])
        self._call("ncclReduceScatter", adapter.address(array), adapter.address(out),
                   _count(adapter, out), _reduced_type(adapter, array), _reduction(op),
                   self._open(), None)
        return out

    def alltoall(self, array: Any, out: Any = None) -> Any:
        """Row i goes to rank i; row i of the result came from it. The first dimension is `size`."""
        self._rows(_adapter(array).shape(array))
        adapter, array, out = self._prepare(array, out)
        self._call("ncclAlltoAll", adapter.address(array), adapter.address(out),
                   _bytes(adapter, array) // self.size, _UINT8, self._open(), None)
        return out

    def send(self, array: Any, to: int) -> None:
        """Waits until the other rank receives."""
        adapter, array, _ = self._prepare(array, array)
        self._call("ncclSend", adapter.address(array), _bytes(adapter, array), _UINT8, to,
                   self._open(), None)

    def receive(self, array: Any, source: int) -> Any:
        """Overwrites the array with what rank `source` sends, of the same size."""
        adapter, array, _ = self._prepare(array, array)
        self._call("ncclRecv", adapter.address(array), _bytes(adapter, array), _UINT8, source,
                   self._open(), None)
        return array

    def destroy(self) -> None:
        """Frees it. Nothing where that was done. Not done by Python itself, because ranks need not
        agree on when an object goes."""
        comm, self._comm = self._comm, ctypes.c_void_p()
        if comm:
            self._call("ncclCommDestroy", comm)

    def abort(self) -> None:
        """Frees it without waiting for anybody; what runs in it on any rank fails."""
        comm, self._comm = self._comm, ctypes.c_void_p()
        if comm:
            self._call("ncclCommAbort", comm)

    def __enter__(self) -> "Communicator":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self.destroy()
        else:
            self.abort()

    def _rows(self, shape: Any) -> Any:
        if not shape or shape[0] != self.size:
            raise ValueError(f"the shape is {tuple(shape)}; its first dimension must be the number "
                             f"of ranks, {self.size}")
        return shape

    def _prepare(self, array: Any, out: Any, shape: Any = None) -> Any:
        adapter = _adapter(array)
        wanted = adapter.shape(array) if shape is None else tuple(shape)
        source = adapter.check(array, out is array)
        if out is None:
            out = adapter.empty(wanted, source)
        else:
            adapter.check(out, True)
        if adapter.shape(out) != wanted or adapter.type(out) != adapter.type(source):
            raise ValueError(f"out must have the array's type and the shape {wanted}")
        return adapter, source, out


def _count(adapter: Any, array: Any) -> int:
    count = 1
    for dimension in adapter.shape(array):
        count *= dimension
    return count


def _bytes(adapter: Any, array: Any) -> int:
    return _count(adapter, array) * _BYTES[adapter.type(array)]


def _reduction(op: str) -> int:
    if op not in _REDUCTIONS:
        raise ValueError(f'there is no reduction "{op}"; there are {", ".join(_REDUCTIONS)}')
    return _REDUCTIONS[op]


def _reduced_type(adapter: Any, array: Any) -> int:
    kind = adapter.type(array)
    if kind not in _NCCL_TYPES:
        raise ValueError("a communicator moves bool and 16-bit integers but does not reduce them")
    return _NCCL_TYPES[kind]
