# SPDX-License-Identifier: Apache-2.0
"""What the package was built with, by Horovod's names."""

from __future__ import annotations

import ctypes
import os

from tutti import _library


def mpi_threads_supported() -> bool:
    """Whether MPI may be used by several threads: the modules for it start it so. ValueError before
    init."""
    from tutti._basics import job  # late: the job's module takes the functions here
    job().size()
    return mpi_built()


def _asked_for(name: str) -> bool:
    return name in os.environ.get("HOROVOD_CONTROLLER", "").split(",")


def mpi_enabled() -> bool:
    """Whether HOROVOD_CONTROLLER asks for MPI and a module for it is there."""
    return mpi_built() and _asked_for("mpi")


def mpi_built() -> bool:
    """Whether a module for MPI (libtutti_openmpi.so or libtutti_mpich.so) lies beside libtutti."""
    return _library.has_module("openmpi") or _library.has_module("mpich")


def gloo_enabled() -> bool:
    """Whether ranks negotiate without MPI: by Gloo where HOROVOD_CONTROLLER asks for it, else by
    Tutti's own means, which stand in for it. As with Horovod it is this or mpi_enabled."""
    return not mpi_enabled()


def gloo_built() -> bool:
    """Whether the module for Gloo (libtutti_gloo.so) lies beside libtutti."""
    return _library.has_module("gloo")


def nccl_built() -> int:
    """The version of NCCL's API that the library offers (as 22903), as ncclGetVersion tells it."""
    version = ctypes.c_int()
    _library.load().ncclGetVersion(ctypes.byref(version))
    return version.value


def ddl_built() -> bool:
    """False."""
    return False


def ccl_built() -> bool:
    """False."""
    return False


def cuda_built() -> bool:
    """Whether CUDA's driver is here, so that tensors may lie on a GPU."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def rocm_built() -> bool:
    """False."""
    return False
