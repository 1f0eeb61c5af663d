# SPDX-License-Identifier: Apache-2.0
"""Gradients that are reduced over the ranks before the caller sees them."""

from __future__ import annotations

from typing import Any, Callable, List, Sequence, Set

import tensorflow as tf

from tutti._basics import Average, ProcessSet, Sum, check_op, global_process_set
from tutti.tensorflow.compression import Compression
from tutti.tensorflow.mpi_ops import gather_slices, reduce_all, size_of

Reduce = Callable[[Sequence[Any]], List[Any]]


def make_reduce(prefix: str, compression: Any, sparse_as_dense: bool, op: int,
                gradient_predivide_factor: float, process_set: ProcessSet) -> Reduce:
    """Returns a function that reduces a list of gradients, which travel as `prefix.N` by their
    place in the list. Gradients that are None stay None, on all ranks alike; ranks outside of the
    set keep theirs."""
    op = check_op(op)
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor is for op=Average only")

    def reduce(gradients: Sequence[Any]) -> List[Any]:
        results = [tf.convert_to_tensor(gradient)
                   if sparse_as_dense and isinstance(gradient, tf.IndexedSlices) else gradient
                   for gradient in gradients]
        if not process_set.included() or size_of(process_set) == 1:
            return results
        how, prescale, postscale = op, 1.0, 1.0
        if gradient_predivide_factor != 1.0:
            how, prescale = Sum, 1.0 / gradient_predivide_factor
            postscale = gradient_predivide_factor / size_of(process_set)
        sparse = [i for i, gradient in enumerate(results) if isinstance(gradient, tf.IndexedSlices)]
        dense = [i for i, gradient in enumerate(results)
                 if gradient is not None and i not in sparse]
        reduced = reduce_all([results[i] for i in dense], [f"{prefix}.{i}" for i in dense], None,
                             how, compression=compression, prescale=prescale, postscale=postscale,
                             process_set=process_set) if dense else []
        for i, gradient in zip(dense, reduced):
            results[i] = gradient
        for i in sparse:
            results[i] = gather_slices(results[i], f"{prefix}.{i}", op, process_set)
        return results
    return reduce


def reduce_but_local(reduce: Reduce, gradients: Sequence[Any], is_local: Sequence[bool],
                     scale: bool, process_set: ProcessSet) -> List[Any]:
    """Reduces the gradients but for the local gradients of this rank, which are divided by the
    number of ranks where `scale` says so, to match the average of the others."""
    results = reduce([None if local else gradient
                      for gradient, local in zip(gradients, is_local)])
    for i, local in enumerate(is_local):
        if not local:
            continue
        own = gradients[i]
        if own is None or not scale:
            results[i] = own
        elif isinstance(own, tf.IndexedSlices):
            results[i] = tf.IndexedSlices(own.values / size_of(process_set), own.indices,
                                          own.dense_shape)
        else:
            results[i] = own / size_of(process_set)
    return results


class _DistributedTape:
    """The additions of a distributed tape to the class of the tape with which the tape shares its
    state."""
    _reduce: Reduce
    _local_sources: Set[int]
    _scale_local: bool
    _process_set: ProcessSet

    def register_local_source(self, source: Any) -> None:
        """Leaves the gradient of a variable to this rank."""
        self._local_sources.add(id(source))

    def gradient(self, target: Any, sources: Any, *args: Any, use_generic_names: bool = False,
                 **kwargs: Any) -> Any:
        """Returns the gradients, reduced. `use_generic_names` is Horovod's and not needed."""
        gradients = super().gradient(target, sources, *args, **kwargs)  # type: ignore[misc]
        flat = tf.nest.flatten(sources)
        is_local = [id(source) in self._local_sources for source in flat]
        reduced = reduce_but_local(self._reduce, tf.nest.flatten(gradients), is_local,
                                   self._scale_local, self._process_set)
        return tf.nest.pack_sequence_as(gradients, reduced)


def DistributedGradientTape(gradtape: tf.GradientTape, device_dense: str = "",
                            device_sparse: str = "", compression: Any = Compression.none,
                            sparse_as_dense: bool = False, op: int = Average,
                            gradient_predivide_factor: float = 1.0, num_groups: int = 0,
                            groups: Any = None, process_set: ProcessSet = global_process_set,
                            scale_local_gradients: bool = True) -> tf.GradientTape:
    """Returns a tape with what `gradtape` has recorded and records, whose gradient() reduces.
    Groups are Horovod's and not needed: all gradients of a call travel at the same time."""
    kind: Any = type(type(gradtape).__name__, (_DistributedTape, type(gradtape)), {})
    made = object.__new__(kind)
    made.__dict__ = gradtape.__dict__  # one recording, whichever tape is entered
    made._reduce = make_reduce("DistributedGradientTape", compression, sparse_as_dense, op,
                               gradient_predivide_factor, process_set)
    made._local_sources = set()
    made._scale_local, made._process_set = scale_local_gradients, process_set
    return made


def PartialDistributedGradientTape(gradtape: tf.GradientTape, *args: Any, local_layers: Any = None,
                                   **kwargs: Any) -> tf.GradientTape:
    """Returns a DistributedGradientTape that leaves the gradients of these layers to each rank."""
    made = DistributedGradientTape(gradtape, *args, **kwargs)
    layers = local_layers if isinstance(local_layers, (list, tuple)) else [local_layers]
    for layer in layers if local_layers is not None else []:
        for variable in layer.trainable_weights:
            made.register_local_source(variable)
    return made
