# SPDX-License-Identifier: Apache-2.0
"""Horovod's API for PyTorch: `import tutti.torch as hvd` reads as `import horovod.torch as hvd`.

    hvd.init()
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

Tensors in host memory; see docs/python.md for what differs.
"""

from __future__ import annotations

from tutti import _basics
from tutti._basics import (Adasum, Average, Max, Min, ProcessSet, Product, Sum, ccl_built,
                           cuda_built, ddl_built, global_process_set, gloo_built, gloo_enabled,
                           mpi_built, mpi_enabled, mpi_threads_supported, nccl_built, rocm_built)
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

_job = _basics.job()
init = _job.init
shutdown = _job.shutdown
is_initialized = _job.is_initialized
rank = _job.rank
size = _job.size
local_rank = _job.local_rank
local_size = _job.local_size
cross_rank = _job.cross_rank
cross_size = _job.cross_size
is_homogeneous = _job.is_homogeneous
add_process_set = _job.add_process_set
remove_process_set = _job.remove_process_set
start_timeline = _job.start_timeline
stop_timeline = _job.stop_timeline
