# SPDX-License-Identifier: Apache-2.0
"""tutti.Communicator offers the library's collectives on arrays. There are no names and no
negotiation: all ranks must call the same functions in the same order."""

from __future__ import annotations

import ctypes
import sys
from typing import Any, Iterable, List, Optional, Tuple

from tutti import _basics, _cuda, _library
from tutti.exceptions import TuttiError

_REDUCTIONS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}
# ncclDataType_t by tuttiElementType_t. Types that are missing can be moved but not reduced.
_NCCL_TYPES = {0: 1, 1: 0, 4: 2, 5: 4, 6: 6, 7: 7, 8: 8, 10: 9, 11: 3, 12: 5, 13: 10, 14: 11}
_BYTES = (1, 1, 2, 2, 4, 8, 2, 4, 8, 1, 2, 4, 8, 1, 1)  # bytes of an element by tuttiElementType_t
_UINT8 = 1
_INT64 = 5  # tuttiElementType_t


class Communicator:
    """One rank of a group of ranks.

        comm = tutti.Communicator(rank, nranks, unique_id)   # unique_id from one rank, for all
        comm = tutti.Communicator.world()                    # all ranks of the initialised job

    Without `device` the rank is one of the host: arrays are numpy.ndarray or torch.Tensor in host
    memory, and every operation is done when its call returns. With `device`, the number of a CUDA
    device, all ranks are GPUs: arrays lie in that device's memory, and are torch.Tensor or of a
    library that has CUDA's array interface (CuPy, Numba); operations run on the stream that the
    array's library has as its current one, behind what that holds, and the call does not wait for
    them. Where a library has no `empty` in its namespace (Numba), `out` has to be given.

    Arrays are contiguous, and of the same shape on all ranks unless a function says otherwise;
    complex numbers are moved, and reduced by sum and avg. `out` is written where it is given, and
    may be the input where shapes allow; else the result is a new array.

    Errors: ValueError for arguments; TuttiError, with the library's sentence, for what it reports.
    A lost rank fails the communicator. Threads: one at a time; calls do not hold Python's lock.
    """

    def __init__(self, rank: int, nranks: int, unique_id: bytes,
                 device: Optional[int] = None) -> None:
        if len(unique_id) != _library.UNIQUE_ID_BYTES:
            raise ValueError(f"a unique id has {_library.UNIQUE_ID_BYTES} bytes, not "
                             f"{len(unique_id)}")
        self._comm = ctypes.c_void_p()
        made = _library.UniqueId.from_buffer_copy(unique_id)
        self._device = None if device is None else _device_number(device)
        self._call("tuttiCommInitRankOn", ctypes.byref(self._comm), int(nranks), made, int(rank),
                   _library.HOST if self._device is None else self._device)
        self.rank, self.size = int(rank), int(nranks)

    @staticmethod
    def unique_id() -> bytes:
        """Returns 128 bytes for one new communicator, to be made on one rank and handed to all."""
        made = _library.UniqueId()
        if _library.load().ncclGetUniqueId(ctypes.byref(made)) != _library.SUCCESS:
            raise TuttiError(1, _library.nccl_error(None))
        return bytes(made)

    @classmethod
    def world(cls, device: Optional[int] = None) -> "Communicator":
        """Returns a communicator of all ranks of the job that tutti.torch.init or tutti.numpy.init
        began. All of them must call it, each with its own device or all without one."""
        from tutti.numpy import broadcast_object
        job = _basics.job()
        unique_id = cls.unique_id() if job.rank() == 0 else b""
        return cls(job.rank(), job.size(),
                   broadcast_object(unique_id, 0, "tutti.Communicator.world"), device)

    def _call(self, function: str, *arguments: Any) -> None:
        result = getattr(_library.load(), function)(*arguments)
        if result != _library.SUCCESS:
            raise TuttiError(result, _library.nccl_error(None))

    def _open(self) -> ctypes.c_void_p:
        if not self._comm:
            raise ValueError("the communicator was destroyed")
        return self._comm

    def split(self, color: int, key: int = 0) -> Optional["Communicator"]:
        """Returns a communicator of the ranks with the same color, ordered by key; None for color
        -1."""
        child = Communicator.__new__(Communicator)
        child._comm, child._device = ctypes.c_void_p(), self._device
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
        return self._run("ncclAllReduce", adapter, array, out, *_elements(adapter, array, op),
                         _reduction(op))

    def reduce(self, array: Any, root: int = 0, op: str = "sum", out: Any = None) -> Any:
        """Reduces as allreduce does, to `root` alone; returns None on the others."""
        adapter, array, out = self._prepare(array, out)
        self._run("ncclReduce", adapter, array, out, *_elements(adapter, array, op),
                  _reduction(op), root)
        return out if self.rank == root else None

    def broadcast(self, array: Any, root: int = 0) -> Any:
        """Overwrites the array with that of `root`."""
        adapter, array, out = self._prepare(array, array)
        return self._run("ncclBroadcast", adapter, array, out, _bytes(adapter, array), _UINT8, root)

    def allgather(self, array: Any, out: Any = None) -> Any:
        """Returns the arrays of all ranks, in an array of shape (size, *array.shape)."""
        adapter = self._adapter(array)
        shape = (self.size, *adapter.shape(array))
        adapter, array, out = self._prepare(array, out, shape)
        return self._run("ncclAllGather", adapter, array, out, _bytes(adapter, array), _UINT8)

    def reducescatter(self, array: Any, op: str = "sum", out: Any = None) -> Any:
        """Returns row `rank` of the reduced array, whose first dimension is `size`."""
        adapter = self._adapter(array)
        shape = self._rows(adapter.shape(array))
        adapter, array, out = self._prepare(array, out, shape[1:])
        return self._run("ncclReduceScatter", adapter, array, out, *_elements(adapter, out, op),
                         _reduction(op))

    def reducescatter_rows(self, array: Any, op: str = "sum", rows: Any = None) -> Any:
        """Returns this rank's rows of the reduced array: the first rows[0] go to rank 0, the next
        rows[1] to rank 1, ...; without `rows` all alike, the first ranks one more where it does not
        come out even."""
        adapter, array = self._source(array)
        shape = adapter.shape(array)
        if not shape:
            raise ValueError("a single number has no rows to be shared")
        if rows is None:
            rows = [shape[0] // self.size + (rank < shape[0] % self.size)
                    for rank in range(self.size)]
        counts = self._rows_of(rows, shape[0])
        out = adapter.empty((counts[self.rank], *shape[1:]), array)
        width, kind = _elements(adapter, array, op)
        width //= max(shape[0], 1)
        return self._run("tuttiReduceScatterV", adapter, array, out,
                         _sizes(count * width for count in counts), kind, _reduction(op))

    def allgather_rows(self, array: Any) -> Any:
        """Returns the rows of all ranks, one rank's after another's. The first dimension may
        differ."""
        adapter, array = self._source(array)
        shape = adapter.shape(array)
        if not shape:
            raise ValueError("a single number has no rows to be gathered; see allgather")
        counts = self._tell(adapter, array, shape[0])
        out = adapter.empty((sum(counts), *shape[1:]), array)
        width = _width(adapter, array)
        self._call("tuttiAllGatherV", adapter.address(array), shape[0] * width,
                   adapter.address(out), _sizes(count * width for count in counts), None, _UINT8,
                   *self._on(adapter, array))
        return out

    def alltoall_rows(self, array: Any, splits: Any) -> Any:
        """Sends splits[i] rows to rank i; returns the rows that came, and how many came from
        each."""
        adapter, array = self._source(array)
        shape = adapter.shape(array)
        if not shape:
            raise ValueError("a single number has no rows to be sent")
        sent = self._rows_of(adapter.splits(splits), shape[0])
        table = self._tell(adapter, array, *sent)
        received = table[self.rank::self.size]
        out = adapter.empty((sum(received), *shape[1:]), array)
        width = _width(adapter, array)
        self._call("tuttiAlltoAllV", adapter.address(array), _sizes(n * width for n in sent), None,
                   adapter.address(out), _sizes(n * width for n in received), None, _UINT8,
                   *self._on(adapter, array))
        return out, adapter.make_splits(received, array)

    def gather(self, array: Any, root: int = 0, out: Any = None) -> Any:
        """Gathers as allgather does, on `root` alone; returns None on the others."""
        adapter = self._adapter(array)
        shape = (self.size, *adapter.shape(array))
        self._check_rank(root)
        if self.rank != root:
            adapter, array = self._source(array)
            self._call("ncclGather", adapter.address(array), None, _bytes(adapter, array), _UINT8,
                       root, *self._on(adapter, array))
            return None
        adapter, array, out = self._prepare(array, out, shape)
        return self._run("ncclGather", adapter, array, out, _bytes(adapter, array), _UINT8, root)

    def scatter(self, array: Any, root: int = 0, out: Any = None) -> Any:
        """Returns row `rank` of the root's array, whose first dimension is `size`. The other ranks
        pass None for the array, and an `out` of the shape and type of a row."""
        self._check_rank(root)
        if self.rank != root:
            if out is None:
                raise ValueError("scatter needs `out` on ranks other than the root")
            adapter, out, _ = self._prepare(out, out)
            self._call("ncclScatter", None, adapter.address(out), _bytes(adapter, out), _UINT8,
                       root, *self._on(adapter, out))
            return out
        shape = self._rows(self._adapter(array).shape(array))
        adapter, array, out = self._prepare(array, out, shape[1:])
        return self._run("ncclScatter", adapter, array, out, _bytes(adapter, out), _UINT8, root)

    def gather_rows(self, array: Any, root: int = 0) -> Any:
        """Gathers as allgather_rows does, on `root` alone; returns None on the others."""
        self._check_rank(root)
        adapter, array = self._source(array)
        shape = adapter.shape(array)
        if not shape:
            raise ValueError("a single number has no rows to be gathered; see gather")
        counts = self._tell(adapter, array, shape[0])
        width = _width(adapter, array)
        out = adapter.empty((sum(counts), *shape[1:]), array) if self.rank == root else None
        self._call("tuttiGatherV", adapter.address(array), shape[0] * width,
                   None if out is None else adapter.address(out),
                   _sizes(count * width for count in counts), None, _UINT8, root,
                   *self._on(adapter, array))
        return out

    def scatter_rows(self, array: Any, rows: Any = None, root: int = 0, out: Any = None) -> Any:
        """Returns this rank's rows of the root's array: the first rows[0] go to rank 0, the next
        rows[1] to rank 1, .... The other ranks pass None for the array, and an `out` of the shape
        and type of their rows."""
        self._check_rank(root)
        if self.rank != root:
            if out is None:
                raise ValueError("scatter_rows needs `out` on ranks other than the root")
            adapter, out, _ = self._prepare(out, out)
            self._call("tuttiScatterV", None, None, None, adapter.address(out),
                       _bytes(adapter, out), _UINT8, root, *self._on(adapter, out))
            return out
        shape = self._adapter(array).shape(array)
        if not shape:
            raise ValueError("a single number has no rows to be scattered")
        counts = self._rows_of(rows, shape[0])
        adapter, array, out = self._prepare(array, out, (counts[root], *shape[1:]))
        width = _width(adapter, array)
        self._call("tuttiScatterV", adapter.address(array),
                   _sizes(count * width for count in counts), None, adapter.address(out),
                   counts[root] * width, _UINT8, root, *self._on(adapter, array))
        return out

    def barrier(self) -> None:
        """Returns after every rank has called it."""
        self._call("tuttiBarrier", self._open(), None)
        if self._device is not None:
            _cuda.wait_for_default_stream(self._device)

    def alltoall(self, array: Any, out: Any = None) -> Any:
        """Sends row i to rank i; row i of the result came from it. The first dimension is
        `size`."""
        self._rows(self._adapter(array).shape(array))
        adapter, array, out = self._prepare(array, out)
        return self._run("ncclAlltoAll", adapter, array, out,
                         _bytes(adapter, array) // self.size, _UINT8)

    def send(self, array: Any, to: int) -> None:
        """Sends the array to a rank, and waits until that rank receives it."""
        adapter, array, _ = self._prepare(array, array)
        self._call("ncclSend", adapter.address(array), _bytes(adapter, array), _UINT8, to,
                   *self._on(adapter, array))

    def receive(self, array: Any, source: int) -> Any:
        """Overwrites the array with what rank `source` sends, of the same size."""
        adapter, array, _ = self._prepare(array, array)
        self._call("ncclRecv", adapter.address(array), _bytes(adapter, array), _UINT8, source,
                   *self._on(adapter, array))
        return array

    def destroy(self) -> None:
        """Frees the communicator; does nothing where that was done. Python does not do so by
        itself, because ranks need not agree on when an object is collected."""
        comm, self._comm = self._comm, ctypes.c_void_p()
        if comm:
            self._call("ncclCommDestroy", comm)

    def abort(self) -> None:
        """Frees the communicator without waiting for other ranks; its operations fail on all
        ranks."""
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

    def _check_rank(self, rank: Any) -> None:
        if _basics.whole_number(rank, "a rank") not in range(self.size):
            raise ValueError(f"there is no rank {rank} among {self.size}")

    def _rows_of(self, rows: Any, most: int) -> List[int]:
        counts = [_basics.whole_number(count, "a number of rows") for count in rows]
        if len(counts) != self.size or min(counts) < 0 or sum(counts) != most:
            raise ValueError(f"rows {counts} are not {self.size} numbers that add up to {most}")
        return counts

    def _tell(self, adapter: Any, array: Any, *numbers: int) -> List[int]:
        """Returns the numbers of all ranks, equally many of each. They lie where the array does."""
        mine = adapter.int64s(numbers, array)
        all_numbers = adapter.int64s([0] * (self.size * len(numbers)), array)
        self._call("ncclAllGather", adapter.address(mine), adapter.address(all_numbers),
                   len(numbers), _NCCL_TYPES[_INT64], *self._on(adapter, array))
        return all_numbers.tolist()

    def _rows(self, shape: Any) -> Any:
        if not shape or shape[0] != self.size:
            raise ValueError(f"the shape is {tuple(shape)}; its first dimension must be the number "
                             f"of ranks, {self.size}")
        return shape

    def _adapter(self, array: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(array, torch.Tensor):
            from tutti.torch._adapter import TorchAdapter
            return TorchAdapter(gpus=self._device is not None)
        if self._device is not None:
            if hasattr(array, "__cuda_array_interface__"):
                from tutti._cuda_array_adapter import CudaArrayAdapter
                return CudaArrayAdapter()
            raise ValueError(f"a {type(array).__module__}.{type(array).__name__} is no array in a "
                             "GPU's memory: it is no torch.Tensor, and lacks CUDA's array "
                             "interface, which CuPy and Numba have")
        import numpy
        if isinstance(array, numpy.ndarray):
            from tutti._numpy_adapter import NumpyAdapter
            return NumpyAdapter()
        raise ValueError(f"a {type(array).__name__} is neither a numpy.ndarray nor a torch.Tensor")

    def _check(self, adapter: Any, array: Any, in_place: bool) -> Any:
        """Returns the array as it is to be read, after a check that this rank can reach it."""
        checked = adapter.check(array, in_place)
        place = adapter.device(checked) if self._device is not None else None
        if place not in (None, self._device):
            raise ValueError(f"the array lies on {'the host' if place < 0 else f'device {place}'}, "
                             f"but this rank is device {self._device}")
        return checked

    def _on(self, adapter: Any, array: Any) -> Tuple[Any, Any]:
        """Returns the last two arguments of an operation on the array: communicator and stream."""
        return self._open(), None if self._device is None else adapter.current_stream(array)

    def _run(self, function: str, adapter: Any, array: Any, out: Any, *arguments: Any) -> Any:
        """Calls an operation from `array` to `out`, and returns `out`."""
        self._call(function, adapter.address(array), adapter.address(out), *arguments,
                   *self._on(adapter, array))
        return out

    def _source(self, array: Any) -> Tuple[Any, Any]:
        adapter = self._adapter(array)
        return adapter, self._check(adapter, array, False)

    def _prepare(self, array: Any, out: Any, shape: Any = None) -> Any:
        adapter = self._adapter(array)
        wanted = adapter.shape(array) if shape is None else tuple(shape)
        source = self._check(adapter, array, out is array)
        if out is None:
            out = adapter.empty(wanted, source)
        else:
            self._check(adapter, out, True)
        if adapter.shape(out) != wanted or out.dtype != source.dtype:
            raise ValueError(f"out must have the array's type and the shape {wanted}")
        return adapter, source, out


def _device_number(device: Any) -> int:
    number = _basics.whole_number(device, "a device")
    if number < 0:
        raise ValueError(f"device is {number}, which is no device")
    return number


def _count(adapter: Any, array: Any) -> int:
    count = 1
    for dimension in adapter.shape(array):
        count *= dimension
    return count


def _bytes(adapter: Any, array: Any) -> int:
    real = adapter.as_real(array)
    array = array if real is None else real
    return _count(adapter, array) * _BYTES[adapter.type(array)]


def _width(adapter: Any, array: Any) -> int:
    """Returns the bytes of a row."""
    shape = adapter.shape(array)
    return _bytes(adapter, adapter.empty((1, *shape[1:]), array)) if shape[0] == 0 else \
        _bytes(adapter, array) // shape[0]


def _sizes(numbers: Iterable[int]) -> Any:
    values = list(numbers)
    return (ctypes.c_size_t * len(values))(*values)


def _elements(adapter: Any, array: Any, op: str) -> Tuple[int, int]:
    """Returns how many elements are reduced, and their ncclDataType_t."""
    real = adapter.as_real(array)
    if real is not None and op not in ("sum", "avg"):
        raise ValueError("complex numbers are reduced by sum and avg only")
    array = array if real is None else real
    return _count(adapter, array), _reduced_type(adapter, array)


def _reduction(op: str) -> int:
    if op not in _REDUCTIONS:
        raise ValueError(f'there is no reduction "{op}"; there are {", ".join(_REDUCTIONS)}')
    return _REDUCTIONS[op]


def _reduced_type(adapter: Any, array: Any) -> int:
    kind = adapter.type(array)
    if kind not in _NCCL_TYPES:
        raise ValueError("a communicator moves bool and 16-bit integers but does not reduce them")
    return _NCCL_TYPES[kind]
