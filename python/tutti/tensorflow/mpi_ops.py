# SPDX-License-Identifier: Apache-2.0
"""The operations on TensorFlow's tensors.

Tensors are seen as NumPy arrays, without a copy where they lie in host memory, and results are
tensors in host memory. Inside tf.function an operation is a node that calls Python when the graph
runs (tf.py_function): such nodes run one after another, in the order of the program, and XLA cannot
compile them. Operations wait for their result, carry gradients, and take variables where they take
tensors.

Errors: ValueError at once for what is wrong in itself; HorovodInternalError for what the ranks
disagree about, or a lost rank. From a graph both arrive as errors of TensorFlow with that sentence.
Threads: any.
"""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence

import numpy as np
import tensorflow as tf

import tutti.numpy as on_arrays
from tutti import _basics
from tutti._basics import Average, ProcessSet, Sum, barrier, check_op, global_process_set
from tutti._collectives import Collectives, check_group
from tutti._numpy_adapter import NumpyAdapter
from tutti.tensorflow.compression import Compression

_ops = Collectives(NumpyAdapter())


def _move(function: Callable[..., Sequence[Any]], tensors: Sequence[Any],
          types: Sequence[tf.DType]) -> List[tf.Tensor]:
    """Returns what function(*arrays) returns for the tensors' arrays as tensors of these types; in
    a graph, tensors that will have it."""
    def run(*eager: tf.Tensor) -> List[tf.Tensor]:
        results = function(*[np.asarray(tensor) for tensor in eager])
        return [tf.convert_to_tensor(result, dtype) for result, dtype in zip(results, types)]
    if tf.executing_eagerly():
        return run(*tensors)
    return list(tf.py_function(run, tensors, list(types)))


def _shaped(results: Sequence[tf.Tensor], like: Sequence[tf.Tensor], rows: bool = False
            ) -> List[tf.Tensor]:
    """Tells a graph the shapes of results: those of `like`, with `rows` but for the first
    dimension."""
    for result, tensor in zip(results, like):
        shape = tensor.shape
        if rows and shape.rank:
            shape = tf.TensorShape([None]).concatenate(shape[1:])
        result.set_shape(shape)
    return list(results)


def _tensors(values: Any) -> List[tf.Tensor]:
    return [tf.convert_to_tensor(value) for value in check_group(values)]


def _of_gradient(name: Optional[str]) -> Optional[str]:
    """Returns the name of the operation of backward."""
    return None if name is None else f"{name}.grad"


def size_of(process_set: ProcessSet) -> int:
    """Returns how many ranks a set has. ValueError where it was not added, or before init."""
    _basics.job().size()
    return len(_basics.check_process_set(process_set).ranks or ())


def reduce_all(tensors: Sequence[Any], names: Optional[Sequence[str]], group: Optional[str],
               op: int, *, grouped: bool = False, compression: Any = Compression.none,
               prescale: float = 1.0, postscale: float = 1.0,
               process_set: ProcessSet = global_process_set) -> List[tf.Tensor]:
    """Returns the reduced tensors, which are asked for at the same time: as a group that is called
    `group`, or each by itself, by its name in `names` or without one."""
    wire = getattr(compression, "wire", None)
    if wire is None:
        pairs = [compression.compress(tensor) for tensor in tensors]
        sent = reduce_all([part for part, _ in pairs], names, group, op, grouped=grouped,
                          prescale=prescale, postscale=postscale, process_set=process_set)
        return [compression.decompress(result, context)
                for result, (_, context) in zip(sent, pairs)]
    options = {"in_place": False, "compression": wire, "prescale": prescale, "postscale": postscale,
               "process_set": process_set}

    def run(names: Optional[Sequence[str]], group: Optional[str], *arrays: np.ndarray
            ) -> Sequence[np.ndarray]:
        if grouped:
            return _basics.synchronize(_ops.allreduce(arrays, group, op, grouped=True, **options))
        handles = [_ops.allreduce([array], names[i] if names else None, op, **options)
                   for i, array in enumerate(arrays)]
        return [_basics.synchronize(handle) for handle in handles]

    @tf.custom_gradient
    def reduce(*own: tf.Tensor) -> Any:
        types = [tensor.dtype for tensor in own]

        def gradient(*gradients: tf.Tensor) -> List[tf.Tensor]:
            back = [f"{name}.grad" for name in names] if names else None
            return _move(lambda *arrays: run(back, _of_gradient(group), *arrays), gradients, types)
        results = _move(lambda *arrays: run(names, group, *arrays), own, types)
        return _shaped(results, own), gradient

    return list(reduce(*[tf.convert_to_tensor(tensor) for tensor in tensors]))


def gather_slices(slices: tf.IndexedSlices, name: Optional[str], op: int, process_set: ProcessSet
                  ) -> tf.IndexedSlices:
    """Returns the sum or average of IndexedSlices: the rows of all ranks, with their indices.
    NotImplementedError, as with Horovod, for other operators."""
    if op not in (Average, Sum):
        raise NotImplementedError("tf.IndexedSlices know only Average and Sum; "
                                  "sparse_as_dense=True makes tensors of them")
    values = allgather(slices.values, name and f"{name}.values", process_set=process_set)
    indices = allgather(slices.indices, name and f"{name}.indices", process_set=process_set)
    if op == Average:
        values = values / tf.cast(size_of(process_set), values.dtype)
    return tf.IndexedSlices(values, indices, dense_shape=slices.dense_shape)


def allreduce(tensor: Any, average: Optional[bool] = None, device_dense: str = "",
              device_sparse: str = "", compression: Any = Compression.none,
              op: Optional[int] = None, prescale_factor: float = 1.0,
              postscale_factor: float = 1.0, name: Optional[str] = None,
              process_set: ProcessSet = global_process_set, ignore_name_scope: bool = False) -> Any:
    """Returns the tensors of all ranks, of one shape, reduced element by element; average by
    default. tf.IndexedSlices are gathered instead. The devices and name scopes are Horovod's and
    not needed, here and below."""
    op = check_op(op, average)
    if isinstance(tensor, tf.IndexedSlices):
        return gather_slices(tensor, name, op, process_set)
    return reduce_all([tensor], None if name is None else [name], None, op, compression=compression,
                      prescale=prescale_factor, postscale=postscale_factor,
                      process_set=process_set)[0]


def grouped_allreduce(tensors: Sequence[Any], average: Optional[bool] = None,
                      device_dense: str = "", device_sparse: str = "",
                      compression: Any = Compression.none, op: Optional[int] = None,
                      prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                      process_set: ProcessSet = global_process_set,
                      ignore_name_scope: bool = False, name: Optional[str] = None
                      ) -> List[Any]:
    """Returns tensors that are reduced together or not at all. IndexedSlices among them are
    gathered after that."""
    if not tensors:
        return list(tensors)
    op = check_op(op, average)
    results = list(tensors)
    dense = [i for i, tensor in enumerate(tensors) if not isinstance(tensor, tf.IndexedSlices)]
    if dense:
        reduced = reduce_all([tensors[i] for i in dense], None, name, op, grouped=True,
                             compression=compression, prescale=prescale_factor,
                             postscale=postscale_factor, process_set=process_set)
        for i, tensor in zip(dense, reduced):
            results[i] = tensor
    for i in sorted(set(range(len(results))) - set(dense)):
        results[i] = gather_slices(results[i], name and f"{name}_{i}", op, process_set)
    return results


def _gather(tensors: List[tf.Tensor], name: Optional[str], grouped: bool, process_set: ProcessSet
            ) -> List[tf.Tensor]:
    """Returns the rows of all ranks. The gradient: the average of all ranks' gradients, of which
    each takes the rows it brought, as with Horovod."""
    types = [tensor.dtype for tensor in tensors]

    def forward(*arrays: np.ndarray) -> Sequence[np.ndarray]:
        results = _basics.synchronize(_ops.allgather(arrays, name, grouped=grouped,
                                                     process_set=process_set))
        return results if grouped else [results]

    def backward(rows: np.ndarray, *gradients: np.ndarray) -> Sequence[np.ndarray]:
        back = _of_gradient(name)
        all_rows = on_arrays.allgather(rows.reshape(1, -1), back and f"{back}.rows", process_set)
        before = all_rows[:process_set.rank()].sum(0)
        means = on_arrays.grouped_allreduce(list(gradients), back, process_set=process_set)
        return [mean[begin:begin + count] for mean, begin, count in zip(means, before, rows)]

    @tf.custom_gradient
    def gather(*own: tf.Tensor) -> Any:
        rows = tf.stack([tf.shape(tensor)[0] for tensor in own])

        def gradient(*gradients: tf.Tensor) -> List[tf.Tensor]:
            return _shaped(_move(backward, [rows, *gradients], types), own)
        return _shaped(_move(forward, own, types), own, rows=True), gradient

    return list(gather(*tensors))


def allgather(tensor: Any, name: Optional[str] = None, ignore_name_scope: bool = False,
              process_set: ProcessSet = global_process_set) -> tf.Tensor:
    """Returns the rows of all ranks, in order of rank; the first dimension may differ."""
    return _gather(_tensors([tensor]), name, False, process_set)[0]


def grouped_allgather(tensors: Sequence[Any], name: Optional[str] = None,
                      ignore_name_scope: bool = False,
                      process_set: ProcessSet = global_process_set) -> List[tf.Tensor]:
    """Returns tensors that are gathered together."""
    return _gather(_tensors(tensors), name, True, process_set)


def broadcast_all(tensors: Sequence[Any], root_rank: int, names: Optional[Sequence[str]],
                  process_set: ProcessSet) -> List[tf.Tensor]:
    """Returns the root's tensors, which are asked for at the same time. The gradient: on the root
    the average of all ranks' gradients, else zeros."""
    def forward(*arrays: np.ndarray) -> Sequence[np.ndarray]:
        handles = [on_arrays.broadcast_async(array, root_rank, names[i] if names else None,
                                             process_set) for i, array in enumerate(arrays)]
        return [_basics.synchronize(handle) for handle in handles]

    def backward(*gradients: np.ndarray) -> Sequence[np.ndarray]:
        means = on_arrays.grouped_allreduce(list(gradients), process_set=process_set)
        return means if _basics.rank() == root_rank else [np.zeros_like(mean) for mean in means]

    @tf.custom_gradient
    def send(*own: tf.Tensor) -> Any:
        types = [tensor.dtype for tensor in own]

        def gradient(*gradients: tf.Tensor) -> List[tf.Tensor]:
            return _move(backward, gradients, types)
        return _shaped(_move(forward, own, types), own), gradient

    return list(send(*[tf.convert_to_tensor(tensor) for tensor in tensors]))


def broadcast(tensor: Any, root_rank: int, name: Optional[str] = None,
              ignore_name_scope: bool = False, process_set: ProcessSet = global_process_set
              ) -> tf.Tensor:
    """Returns the tensor of `root_rank`, a number among all ranks of the job."""
    return broadcast_all([tensor], root_rank, None if name is None else [name], process_set)[0]


def broadcast_(variables: Sequence[Any], root_rank: int, name: Optional[str] = None,
               process_set: ProcessSet = global_process_set) -> List[tf.Tensor]:
    """Assigns the root's values to variables, of TensorFlow or Keras, and returns the values."""
    if not variables:
        return []
    names = None if name is None else [f"{name}.{i}" for i in range(len(variables))]
    values = broadcast_all(variables, root_rank, names, process_set)
    for variable, value in zip(variables, values):
        variable.assign(value)
    return values


def alltoall(tensor: Any, splits: Any = None, name: Optional[str] = None,
             ignore_name_scope: bool = False, process_set: ProcessSet = global_process_set) -> Any:
    """Sends splits[i] rows to the set's i-th rank, equal parts without splits. Returns the rows
    that came; with splits also how many came from each rank."""
    def exchange(name: Optional[str], array: np.ndarray, parts: Optional[np.ndarray]) -> Any:
        return _basics.synchronize(on_arrays.alltoall_async(array, parts, name, process_set))

    @tf.custom_gradient
    def send(own: tf.Tensor, *parts: tf.Tensor) -> Any:
        rows, received = _move(
            lambda array, *numbers: exchange(name, array, numbers[0] if numbers else None),
            [own, *parts], [own.dtype, tf.int32])

        def gradient(of_rows: tf.Tensor, of_received: Any) -> List[Any]:
            back, = _move(lambda *given: exchange(_of_gradient(name), *given)[:1],
                          [of_rows, received], [own.dtype])
            return [*_shaped([back], [own]), *[None for _ in parts]]
        return (*_shaped([rows], [own], rows=True), received), gradient

    parts = [] if splits is None else [tf.convert_to_tensor(splits)]
    rows, received = send(tf.convert_to_tensor(tensor), *parts)
    return rows if splits is None else (rows, received)


def _scatter(tensors: List[tf.Tensor], name: Optional[str], op: int, grouped: bool,
             compression: Any, prescale: float, postscale: float, process_set: ProcessSet
             ) -> List[tf.Tensor]:
    """Returns this rank's rows of the reduced tensors."""
    wire: Any = getattr(compression, "wire", None)
    if wire is None:
        raise ValueError("reducescatter takes Compression.none, fp16 and bf16 only")
    types = [tensor.dtype for tensor in tensors]

    def forward(*arrays: np.ndarray) -> Sequence[np.ndarray]:
        results = _basics.synchronize(_ops.reducescatter(
            arrays, name, op, grouped=grouped, compression=wire, prescale=prescale,
            postscale=postscale, process_set=process_set))
        return results if grouped else [results]

    @tf.custom_gradient
    def scatter(*own: tf.Tensor) -> Any:
        def gradient(*gradients: tf.Tensor) -> List[tf.Tensor]:
            factor = prescale * postscale * (size_of(process_set) if op == Sum else 1)
            scaled = [of_rows * tf.cast(factor, of_rows.dtype) for of_rows in gradients]
            return _shaped(_gather(scaled, _of_gradient(name), grouped, process_set), own)
        return _shaped(_move(forward, own, types), own, rows=True), gradient

    return list(scatter(*tensors))


def reducescatter(tensor: Any, device_dense: str = "", compression: Any = Compression.none,
                  op: int = Average, name: Optional[str] = None,
                  process_set: ProcessSet = global_process_set, ignore_name_scope: bool = False,
                  prescale_factor: float = 1.0, postscale_factor: float = 1.0) -> tf.Tensor:
    """Returns this rank's rows of the reduced tensor; the first (rows mod n) ranks get one more."""
    return _scatter(_tensors([tensor]), name, check_op(op), False, compression, prescale_factor,
                    postscale_factor, process_set)[0]


def grouped_reducescatter(tensors: Sequence[Any], device_dense: str = "",
                          compression: Any = Compression.none, op: int = Average,
                          name: Optional[str] = None,
                          process_set: ProcessSet = global_process_set,
                          ignore_name_scope: bool = False, prescale_factor: float = 1.0,
                          postscale_factor: float = 1.0) -> List[tf.Tensor]:
    """Returns tensors that are reduced and shared out together."""
    return _scatter(_tensors(tensors), name, check_op(op), True, compression, prescale_factor,
                    postscale_factor, process_set)


def join() -> tf.Tensor:
    """Says that this rank has no more data, and takes part in the others' operations until all have
    joined. Returns the rank that joined last."""
    return _number(lambda: _basics.job().join())


def _number(tell: Callable[[], int]) -> tf.Tensor:
    """Returns a number that is asked for when a graph runs, not when it is made."""
    return _move(lambda: [np.int32(tell())], [], [tf.int32])[0]


def rank_op(name: Optional[str] = None) -> tf.Tensor:
    """Returns rank() as a tensor. Names are Horovod's and not needed, here and below."""
    return _number(_basics.rank)


def local_rank_op(name: Optional[str] = None) -> tf.Tensor:
    """Returns local_rank() as a tensor."""
    return _number(_basics.local_rank)


def size_op(process_set_id: int = 0, name: Optional[str] = None) -> tf.Tensor:
    """Returns the size of a process set as a tensor."""
    return _number(lambda: len(_basics.job().process_set_ids_and_ranks()[process_set_id]))


def local_size_op(name: Optional[str] = None) -> tf.Tensor:
    """Returns local_size() as a tensor."""
    return _number(_basics.local_size)


def process_set_included_op(process_set_id: int = 0, name: Optional[str] = None) -> tf.Tensor:
    """Returns as a tensor whether this process is in a process set: 0 or 1."""
    return _number(lambda: int(
        _basics.rank() in _basics.job().process_set_ids_and_ranks()[process_set_id]))
