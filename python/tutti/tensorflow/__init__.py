# SPDX-License-Identifier: Apache-2.0
"""Horovod's API for TensorFlow 2: `import tutti.tensorflow as hvd` reads as
`import horovod.tensorflow as hvd`.

    hvd.init()
    with tf.GradientTape() as tape:
        loss = ...
    tape = hvd.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, model.trainable_variables)

Operations work eagerly and inside tf.function, through the host's memory; docs/python.md says what
differs from Horovod. tutti.tensorflow.keras has the optimizer and callbacks for Keras 3.
"""

from __future__ import annotations

from tutti._basics import (Adasum, Average, Max, Min, ProcessSet, Product, Sum, add_process_set,
                           ccl_built, cross_rank, cross_size, cuda_built, ddl_built,
                           global_process_set, gloo_built, gloo_enabled, init, is_homogeneous,
                           is_initialized, local_rank, local_size, mpi_built, mpi_enabled,
                           mpi_threads_supported, nccl_built, rank, remove_process_set,
                           rocm_built, shutdown, size, start_timeline, stop_timeline)
from tutti.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from tutti.tensorflow.compression import Compression
from tutti.tensorflow.functions import allgather_object, broadcast_object, broadcast_variables
from tutti.tensorflow.gradients import DistributedGradientTape, PartialDistributedGradientTape
from tutti.tensorflow.mpi_ops import (allgather, allreduce, alltoall, barrier, broadcast,
                                      broadcast_, grouped_allgather, grouped_allreduce,
                                      grouped_reducescatter, join, local_rank_op, local_size_op,
                                      process_set_included_op, rank_op, reducescatter, size_op)


def DistributedOptimizer(optimizer, *args, **kwargs):
    """Returns tutti.tensorflow.keras.DistributedOptimizer of an optimizer of Keras 3."""
    from tutti.tensorflow import keras  # takes Keras, which not everybody needs
    return keras.DistributedOptimizer(optimizer, *args, **kwargs)
