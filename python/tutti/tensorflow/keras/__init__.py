# SPDX-License-Identifier: Apache-2.0
"""Horovod's API for Keras 3 on TensorFlow: `import tutti.tensorflow.keras as hvd`.

    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.01 * hvd.size())), ...)
    model.fit(..., callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])

The functions of one value (allreduce, allgather, broadcast, reducescatter) take whatever TensorFlow
makes a tensor of, and return NumPy arrays.
"""

from __future__ import annotations

from typing import Any, List, Optional, Set

import keras
import tensorflow as tf

from tutti._basics import (Adasum, Average, Max, Min, ProcessSet, Product, Sum, add_process_set,
                           ccl_built, cross_rank, cross_size, cuda_built, ddl_built,
                           global_process_set, gloo_built, gloo_enabled, init, is_homogeneous,
                           is_initialized, local_rank, local_size, mpi_built, mpi_enabled,
                           mpi_threads_supported, nccl_built, rank, remove_process_set,
                           rocm_built, shutdown, size, start_timeline, stop_timeline)
from tutti.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from tutti.tensorflow import mpi_ops
from tutti.tensorflow.compression import Compression
from tutti.tensorflow.gradients import Reduce, make_reduce, reduce_but_local
from tutti.tensorflow.keras import callbacks


class _Accumulators:
    """Adds up gradients over some passes, to be reduced after the last of them."""

    def __init__(self, passes: int, average: bool) -> None:
        self.passes = passes
        self._average = average
        self._sums: List[Any] = []
        self._count: Any = None

    def add(self, gradients: Any) -> tf.Tensor:
        """Adds the gradients of a pass. Returns whether it was the last."""
        if self._count is None:
            with tf.init_scope():
                self._count = tf.Variable(0)
                self._sums = [None if gradient is None else
                              tf.Variable(tf.zeros(gradient.shape, gradient.dtype))
                              for gradient in gradients]
        for total, gradient in zip(self._sums, gradients):
            if total is not None:
                total.assign_add(tf.convert_to_tensor(gradient))
        return tf.equal(self._count.assign_add(1), self.passes)

    def take(self) -> List[Any]:
        """Returns the sums, or averages, and begins anew."""
        taken = []
        for total in self._sums:
            value = None if total is None else total.read_value()
            taken.append(value / self.passes if value is not None and self._average else value)
            if total is not None:
                with tf.control_dependencies([value]):
                    total.assign(tf.zeros_like(total))
        self._count.assign(0)
        return taken


class _DistributedOptimizer:
    """Reduces gradients before an optimizer of Keras, the other base class, applies them."""
    _reduce: Reduce
    _accumulators: Optional[_Accumulators]
    _local_variables: Set[int]
    _scale_local: bool
    _process_set: ProcessSet
    # These are members of Keras's class.
    _trainable_variables: Any
    _iterations: Any
    built: bool
    build: Any

    def register_local_var(self, variable: Any) -> None:
        """Leaves the gradient of a variable to this rank."""
        self._local_variables.add(id(variable))

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Reduces the gradients over the ranks, and applies them."""
        grads = list(grads)
        if not grads:
            return
        variables = list(self._trainable_variables if trainable_variables is None
                         else trainable_variables)
        accumulators = self._accumulators
        apply = super().apply  # type: ignore[misc]
        if accumulators is None:
            apply(self._reduced(grads, variables), variables)
            return
        if not self.built:
            self.build(variables)  # not inside a branch of the graph
        take = accumulators.take

        def update() -> tf.Tensor:
            apply(self._reduced(take(), variables), variables)
            return tf.constant(0)

        def skip() -> tf.Tensor:
            self._iterations.assign_add(1)
            return tf.constant(0)
        tf.cond(accumulators.add(grads), update, skip)

    def _reduced(self, gradients: List[Any], variables: List[Any]) -> List[Any]:
        is_local = [id(variable) in self._local_variables for variable in variables]
        return reduce_but_local(self._reduce, gradients, is_local, self._scale_local,
                                self._process_set)


def DistributedOptimizer(optimizer: Any, name: Optional[str] = None, device_dense: str = "",
                         device_sparse: str = "", compression: Any = Compression.none,
                         sparse_as_dense: bool = False, gradient_predivide_factor: float = 1.0,
                         op: int = Average, backward_passes_per_step: int = 1,
                         average_aggregated_gradients: bool = False, num_groups: int = 0,
                         groups: Any = None, process_set: ProcessSet = global_process_set,
                         scale_local_gradients: bool = True) -> Any:
    """Returns an optimizer of the same class and configuration, not its state, that reduces
    gradients over the ranks before it clips and applies them. With backward_passes_per_step it
    applies the sum of so many passes' gradients, or their average. Groups and devices are Horovod's
    and not needed: all gradients of a step travel at the same time."""
    if keras.backend.backend() != "tensorflow":
        raise ValueError(f"Keras works on {keras.backend.backend()} here, and this is for "
                         "TensorFlow (KERAS_BACKEND=tensorflow)")
    if op not in (Average, Sum):
        raise ValueError("Keras' optimizers take op=Average and op=Sum only")
    if backward_passes_per_step < 1:
        raise ValueError("backward_passes_per_step must be 1 or more")
    base = type(optimizer)
    kind: Any = type(base.__name__, (_DistributedOptimizer, base), {"__module__": base.__module__})
    made = kind.from_config(optimizer.get_config())
    made._reduce = make_reduce(name or f"Distributed{base.__name__}", compression,
                               sparse_as_dense, op, gradient_predivide_factor, process_set)
    made._local_variables = set()
    made._scale_local, made._process_set = scale_local_gradients, process_set
    made._accumulators = None if backward_passes_per_step == 1 else \
        _Accumulators(backward_passes_per_step, average_aggregated_gradients)
    return made


def allreduce(value: Any, name: Optional[str] = None, average: Optional[bool] = None,
              prescale_factor: float = 1.0, postscale_factor: float = 1.0,
              op: Optional[int] = None, compression: Any = Compression.none) -> Any:
    """Returns the values of all ranks, reduced; average by default."""
    return mpi_ops.allreduce(tf.constant(value), average, op=op, name=name, compression=compression,
                             prescale_factor=prescale_factor,
                             postscale_factor=postscale_factor).numpy()


def allgather(value: Any, name: Optional[str] = None) -> Any:
    """Returns the rows of all ranks."""
    return mpi_ops.allgather(tf.constant(value), name).numpy()


def broadcast(value: Any, root_rank: int, name: Optional[str] = None) -> Any:
    """Returns the root's value."""
    return mpi_ops.broadcast(tf.constant(value), root_rank, name).numpy()


def reducescatter(value: Any, name: Optional[str] = None, op: int = Average) -> Any:
    """Returns this rank's rows of the reduced value."""
    return mpi_ops.reducescatter(tf.constant(value), op=op, name=name).numpy()
