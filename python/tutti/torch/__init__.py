# SPDX-License-Identifier: Apache-2.0
"""Horovod's API for PyTorch: `import tutti.torch as hvd` reads as `import horovod.torch as hvd`.

    hvd.init()
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

Tensors in host memory or on a GPU; see docs/python.md for what differs.
"""

from __future__ import annotations

from tutti._basics import (Adasum, Average, Max, Min, ProcessSet, Product, Sum, add_process_set,
                           ccl_built, cross_rank, cross_size, cuda_built, ddl_built,
                           global_process_set, gloo_built, gloo_enabled, init, is_homogeneous,
                           is_initialized, local_rank, local_size, mpi_built, mpi_enabled,
                           mpi_threads_supported, nccl_built, rank, remove_process_set,
                           rocm_built, shutdown, size, start_timeline, stop_timeline)
from tutti.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from tutti.torch import elastic
from tutti.torch.compression import Compression
from tutti.torch.functions import (allgather_object, broadcast_object, broadcast_optimizer_state,
                                   broadcast_parameters)
from tutti.torch.mpi_ops import (allgather, allgather_async, allreduce, allreduce_,
                                 allreduce_async, allreduce_async_, alltoall, alltoall_async,
                                 barrier, broadcast, broadcast_, broadcast_async,
                                 broadcast_async_, grouped_allgather, grouped_allgather_async,
                                 grouped_allreduce, grouped_allreduce_, grouped_allreduce_async,
                                 grouped_allreduce_async_, grouped_reducescatter,
                                 grouped_reducescatter_async, join, poll, reducescatter,
                                 reducescatter_async, sparse_allreduce_async, synchronize)
from tutti.torch.optimizer import DistributedOptimizer
from tutti.torch.sync_batch_norm import SyncBatchNorm
