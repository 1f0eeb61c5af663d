# SPDX-License-Identifier: Apache-2.0
"""Horovod's operations for NumPy arrays.

    import tutti.numpy as hvd
    hvd.init()
    mean = hvd.allreduce(gradient, name="gradient")

Arrays are numpy.ndarray of any native number type or bool (bfloat16 and float8 by ml_dtypes), or
whatever hands its memory to NumPy (DLPack or the array interface); results are numpy.ndarray, or of
the library that the array came from where that has from_dlpack (JAX, CuPy, PyTorch). Complex
numbers are moved, summed and averaged. Functions that end in `_` write their result into the array,
which must be contiguous. `..._async` gives a handle for `poll` and `synchronize`; the array must
stay as it is until then.

Errors: ValueError at once for what is wrong in itself (a name still pending, a bad root, splits
that do not add up, a set that this rank is not in); HorovodInternalError from the operation when
the ranks disagree or one is lost. Threads: every function from any thread.
"""

from __future__ import annotations

from typing import Any, List, Optional, Sequence

import numpy as np

from tutti import _basics, _objects
from tutti._basics import (Adasum, Average, Max, Min, ProcessSet, Product, Sum, add_process_set,
                           barrier, ccl_built, check_op, cross_rank, cross_size, cuda_built,
                           ddl_built, global_process_set, gloo_built, gloo_enabled, init,
                           is_homogeneous, is_initialized, local_rank, local_size, mpi_built,
                           mpi_enabled, mpi_threads_supported, nccl_built, poll, rank,
                           remove_process_set, rocm_built, shutdown, size, start_timeline,
                           stop_timeline, synchronize)
from tutti._collectives import Collectives
from tutti._numpy_adapter import NumpyAdapter
from tutti.exceptions import HorovodInternalError, HostsUpdatedInterrupt

__all__ = [
    "Adasum", "Average", "Compression", "HorovodInternalError", "HostsUpdatedInterrupt", "Max",
    "Min", "ProcessSet", "Product", "Sum", "add_process_set", "allgather", "allgather_async",
    "allgather_object", "allreduce", "allreduce_", "allreduce_async", "allreduce_async_",
    "alltoall", "alltoall_async", "barrier", "broadcast", "broadcast_", "broadcast_async",
    "broadcast_async_", "broadcast_object", "ccl_built", "cross_rank", "cross_size", "cuda_built",
    "ddl_built", "global_process_set", "gloo_built", "gloo_enabled", "grouped_allgather",
    "grouped_allgather_async", "grouped_allreduce", "grouped_allreduce_",
    "grouped_allreduce_async", "grouped_allreduce_async_", "grouped_reducescatter",
    "grouped_reducescatter_async", "init", "is_homogeneous", "is_initialized", "join",
    "local_rank", "local_size", "mpi_built", "mpi_enabled", "mpi_threads_supported", "nccl_built",
    "poll", "rank", "reducescatter", "reducescatter_async", "remove_process_set", "rocm_built",
    "shutdown", "size", "start_timeline", "stop_timeline", "synchronize",
]

_job = _basics.job()
join = _job.join
_ops = Collectives(NumpyAdapter())


class Compression:
    """The types to which float32 and float64 elements are rounded while they travel."""
    none = 0
    fp16 = 1
    bf16 = 2


def _allreduce(arrays: Sequence[Any], name: Optional[str], op: Optional[int], in_place: bool,
               grouped: bool, prescale_factor: float, postscale_factor: float,
               compression: int, process_set: ProcessSet) -> int:
    return _ops.allreduce(arrays, name, check_op(op),
                          in_place=in_place, grouped=grouped, compression=compression,
                          prescale=prescale_factor, postscale=postscale_factor,
                          process_set=process_set)


def allreduce_async(array: Any, name: Optional[str] = None, op: Optional[int] = None,
                    prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                    compression: int = Compression.none,
                    process_set: ProcessSet = global_process_set) -> int:
    """Returns a handle for the arrays of all ranks, reduced element by element; average by default.

    The shape is the same on all ranks. An integer average is truncated toward zero.
    """
    return _allreduce([array], name, op, False, False, prescale_factor, postscale_factor,
                      compression, process_set)


def allreduce_async_(array: np.ndarray, name: Optional[str] = None, op: Optional[int] = None,
                     prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                     compression: int = Compression.none,
                     process_set: ProcessSet = global_process_set) -> int:
    """Does allreduce_async into the array itself."""
    return _allreduce([array], name, op, True, False, prescale_factor, postscale_factor,
                      compression, process_set)


def allreduce(array: Any, *args: Any, **kwargs: Any) -> np.ndarray:
    """Does allreduce_async and waits; returns an array of the same shape."""
    return synchronize(allreduce_async(array, *args, **kwargs))


def allreduce_(array: np.ndarray, *args: Any, **kwargs: Any) -> np.ndarray:
    """Does allreduce_async_ and waits; returns the array itself."""
    return synchronize(allreduce_async_(array, *args, **kwargs))


def grouped_allreduce_async(arrays: Sequence[Any], name: Optional[str] = None,
                            op: Optional[int] = None, prescale_factor: float = 1.0,
                            postscale_factor: float = 1.0, compression: int = Compression.none,
                            process_set: ProcessSet = global_process_set) -> int:
    """Returns a handle for several arrays that are reduced together or not at all; a list of
    arrays."""
    return _allreduce(arrays, name, op, False, True, prescale_factor, postscale_factor,
                      compression, process_set)


def grouped_allreduce_async_(arrays: Sequence[np.ndarray], name: Optional[str] = None,
                             op: Optional[int] = None, prescale_factor: float = 1.0,
                             postscale_factor: float = 1.0, compression: int = Compression.none,
                             process_set: ProcessSet = global_process_set) -> int:
    """Does grouped_allreduce_async into the arrays themselves."""
    return _allreduce(arrays, name, op, True, True, prescale_factor, postscale_factor,
                      compression, process_set)


def grouped_allreduce(arrays: Sequence[Any], *args: Any, **kwargs: Any) -> List[np.ndarray]:
    """Does grouped_allreduce_async and waits for its result."""
    return synchronize(grouped_allreduce_async(arrays, *args, **kwargs))


def grouped_allreduce_(arrays: Sequence[np.ndarray], *args: Any,
                       **kwargs: Any) -> List[np.ndarray]:
    """Does grouped_allreduce_async_ and waits for its result."""
    return synchronize(grouped_allreduce_async_(arrays, *args, **kwargs))


def allgather_async(array: Any, name: Optional[str] = None,
                    process_set: ProcessSet = global_process_set) -> int:
    """Returns a handle for the rows of all ranks, in order of rank: shape (sum of rows, ...). The
    first dimension may differ from rank to rank, the others not."""
    return _ops.allgather([array], name, process_set=process_set)


def allgather(array: Any, name: Optional[str] = None,
              process_set: ProcessSet = global_process_set) -> np.ndarray:
    """Does allgather_async and waits for its result."""
    return synchronize(allgather_async(array, name, process_set))


def grouped_allgather_async(arrays: Sequence[Any], name: Optional[str] = None,
                            process_set: ProcessSet = global_process_set) -> int:
    """Returns a handle for several arrays that are gathered together; a list of arrays."""
    return _ops.allgather(arrays, name, grouped=True,
                          process_set=process_set)


def grouped_allgather(arrays: Sequence[Any], name: Optional[str] = None,
                      process_set: ProcessSet = global_process_set) -> List[np.ndarray]:
    """Does grouped_allgather_async and waits for its result."""
    return synchronize(grouped_allgather_async(arrays, name, process_set))


def broadcast_async(array: Any, root_rank: int, name: Optional[str] = None,
                    process_set: ProcessSet = global_process_set) -> int:
    """Returns a handle for the array of `root_rank`, which counts among all ranks, in a set as
    well. The shape is the same on all ranks."""
    return _ops.broadcast(array, root_rank, name, in_place=False,
                          process_set=process_set)


def broadcast_async_(array: np.ndarray, root_rank: int, name: Optional[str] = None,
                     process_set: ProcessSet = global_process_set) -> int:
    """Does broadcast_async into the array itself."""
    return _ops.broadcast(array, root_rank, name, in_place=True, process_set=process_set)


def broadcast(array: Any, root_rank: int, name: Optional[str] = None,
              process_set: ProcessSet = global_process_set) -> np.ndarray:
    """Does broadcast_async and waits for its result."""
    return synchronize(broadcast_async(array, root_rank, name, process_set))


def broadcast_(array: np.ndarray, root_rank: int, name: Optional[str] = None,
               process_set: ProcessSet = global_process_set) -> np.ndarray:
    """Does broadcast_async_ and waits for its result."""
    return synchronize(broadcast_async_(array, root_rank, name, process_set))


def alltoall_async(array: Any, splits: Any = None, name: Optional[str] = None,
                   process_set: ProcessSet = global_process_set) -> int:
    """Returns a handle for (rows, received_splits): splits[i] rows of the array go to the set's
    i-th rank, equal parts without splits; received_splits[i] rows came from it."""
    return _ops.alltoall(array, splits, name, process_set=process_set)


def alltoall(array: Any, splits: Any = None, name: Optional[str] = None,
             process_set: ProcessSet = global_process_set) -> Any:
    """Does alltoall_async and waits; returns the rows, or with splits (rows, received_splits)."""
    rows, received = synchronize(alltoall_async(array, splits, name, process_set))
    return rows if splits is None else (rows, received)


def reducescatter_async(array: Any, name: Optional[str] = None, op: int = Average,
                        prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                        compression: int = Compression.none,
                        process_set: ProcessSet = global_process_set) -> int:
    """Returns a handle for this rank's rows of the reduced array. Rows are shared out in order of
    rank; the first (rows mod n) ranks get one more."""
    return _ops.reducescatter([array], name, check_op(op), compression=compression,
                              prescale=prescale_factor, postscale=postscale_factor,
                              process_set=process_set)


def reducescatter(array: Any, *args: Any, **kwargs: Any) -> np.ndarray:
    """Does reducescatter_async and waits for its result."""
    return synchronize(reducescatter_async(array, *args, **kwargs))


def grouped_reducescatter_async(arrays: Sequence[Any], name: Optional[str] = None,
                                op: int = Average, prescale_factor: float = 1.0,
                                postscale_factor: float = 1.0,
                                compression: int = Compression.none,
                                process_set: ProcessSet = global_process_set) -> int:
    """Returns a handle for several arrays that are reduced and shared out together; a list of
    arrays."""
    return _ops.reducescatter(arrays, name, check_op(op),
                              grouped=True, compression=compression, prescale=prescale_factor,
                              postscale=postscale_factor, process_set=process_set)


def grouped_reducescatter(arrays: Sequence[Any], *args: Any, **kwargs: Any) -> List[np.ndarray]:
    """Does grouped_reducescatter_async and waits for its result."""
    return synchronize(grouped_reducescatter_async(arrays, *args, **kwargs))


def broadcast_object(obj: Any, root_rank: int = 0, name: Optional[str] = None,
                     process_set: ProcessSet = global_process_set) -> Any:
    """Returns `root_rank`'s object on every rank, pickled on the way (by cloudpickle where pickle
    cannot and it is installed): only among ranks that trust one another. The others' `obj` is
    ignored. ValueError on every rank, with one sentence, where the object cannot be pickled."""
    name = name or "object"

    def move(mine: Optional[bytearray]) -> Any:
        count = np.array([len(mine or b"")], np.int64)
        broadcast_(count, root_rank, f"{name}.size", process_set)
        data = np.empty(int(count[0]), np.uint8) if mine is None else np.frombuffer(mine, np.uint8)
        return broadcast_(data, root_rank, f"{name}.bytes", process_set)
    return _objects.broadcast(obj, rank(), root_rank, move)


def allgather_object(obj: Any, name: Optional[str] = None,
                     process_set: ProcessSet = global_process_set) -> List[Any]:
    """Returns the objects of all ranks, in order of rank, pickled as those of broadcast_object.
    ValueError on every rank, with one sentence, where one cannot be."""
    name = name or "object"

    def move(mine: bytearray) -> List[Any]:
        counts = allgather(np.array([len(mine)], np.int64), f"{name}.sizes", process_set)
        joined = allgather(np.frombuffer(mine, np.uint8), f"{name}.bytes", process_set)
        return np.split(joined, np.cumsum(counts)[:-1])
    return _objects.allgather(obj, rank(), move)
