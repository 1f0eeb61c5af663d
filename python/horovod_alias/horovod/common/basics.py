# SPDX-License-Identifier: Apache-2.0
"""Horovod's class of basic functions, which are those of the one job of this process."""

from tutti import _basics

_NAMES = ("init", "shutdown", "is_initialized", "rank", "size", "local_rank", "local_size",
          "cross_rank", "cross_size", "is_homogeneous", "start_timeline", "stop_timeline",
          "mpi_threads_supported", "mpi_enabled", "mpi_built", "gloo_enabled", "gloo_built",
          "nccl_built", "ddl_built", "ccl_built", "cuda_built", "rocm_built")


class HorovodBasics:
    """Takes any arguments, as Horovod's class does, and has its methods."""

    Average, Sum, Adasum = _basics.Average, _basics.Sum, _basics.Adasum
    Min, Max, Product = _basics.Min, _basics.Max, _basics.Product

    def __init__(self, *args):
        for name in _NAMES:
            setattr(self, name, getattr(_basics, name))


__all__ = ["HorovodBasics"]
