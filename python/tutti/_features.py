# SPDX-License-Identifier: Apache-2.0
"""Horovod's functions that tell the features of the package."""

from __future__ import annotations

import ctypes
import importlib.util
import os
from typing import Tuple

from tutti import _identity, _library

# The plugins for MPI, and the variable by which each knows the processes of its mpirun.
_MPI_MARKS = {"openmpi": "OMPI_COMM_WORLD_SIZE", "mpich": "PMI_SIZE"}


def mpi_threads_supported() -> bool:
    """Returns whether MPI may be used by several threads. The plugins for MPI start MPI so unless
    HOROVOD_MPI_THREADS_DISABLE is set. ValueError before init."""
    _identity.rank()
    return mpi_built() and os.environ.get("HOROVOD_MPI_THREADS_DISABLE", "0") in ("", "0")


def _first_of(variable: str) -> str:
    """Returns the first name in a list such as HOROVOD_CONTROLLER, which counts."""
    return os.environ.get(variable, "").split(",")[0].strip().lower()


def mpi_enabled() -> bool:
    """Returns whether this is a job of MPI with a plugin: HOROVOD_CONTROLLER asks for MPI; or the
    variable is not set, and MPI's own mpirun started the process."""
    asked = _first_of("HOROVOD_CONTROLLER")
    if asked:
        return asked == "mpi" and mpi_built()
    if "HOROVOD_RANK" in os.environ or "TUTTI_ELASTIC_ADDR" in os.environ:
        return False
    return any(mark in os.environ and _library.has_plugin(name) for name, mark in _MPI_MARKS.items())


def mpi_built() -> bool:
    """Returns whether a plugin for MPI (libtutti_openmpi.so or libtutti_mpich.so) lies beside
    libtutti."""
    return any(_library.has_plugin(name) for name in _MPI_MARKS)


def gloo_enabled() -> bool:
    """Returns whether this is no job of MPI: ranks negotiate by Gloo where HOROVOD_CONTROLLER asks
    for Gloo, else by Tutti's own controller. As with Horovod, either this function or mpi_enabled
    returns true."""
    return not mpi_enabled()


def gloo_built() -> bool:
    """Returns whether the plugin for Gloo (libtutti_gloo.so) lies beside libtutti."""
    return _library.has_plugin("gloo")


def _gpus_ask_for_nccl() -> bool:
    """Returns whether HOROVOD_GPU_OPERATIONS, or its like for a single kind of operation, says
    nccl."""
    kinds = ("OPERATIONS", "ALLREDUCE", "ALLGATHER", "BROADCAST", "ALLTOALL", "REDUCESCATTER")
    lists = [os.environ.get(f"HOROVOD_GPU_{kind}", "").lower().split(",") for kind in kinds]
    return any(name.strip() == "nccl" for names in lists for name in names)


def offer_nccl() -> None:
    """Loads the library of the package nvidia-nccl-cu*, where tensors on GPUs are to go through
    NVIDIA's NCCL and no path was given. libtutti takes the library that the process has loaded."""
    if not _gpus_ask_for_nccl() or os.environ.get("TUTTI_NCCL_LIBRARY"):
        return
    try:
        spec = importlib.util.find_spec("nvidia.nccl")
    except ModuleNotFoundError:
        return
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = os.path.join(folder, "lib", "libnccl.so.2")
        try:
            ctypes.CDLL(path)
            return
        except OSError:
            continue  # libtutti reports its own search


def find_nccl() -> Tuple[int, str]:
    """Returns the version and path of the NCCL that HOROVOD_GPU_OPERATIONS=NCCL would take here.
    ValueError lists the places of a search in vain."""
    offer_nccl()
    version = ctypes.c_int()
    path = ctypes.create_string_buffer(4096)
    if _library.load().tuttiCoordinatorFindNccl(ctypes.byref(version), path, len(path)) != \
            _library.SUCCESS:
        raise ValueError(_library.coordinator_error())
    return version.value, os.fsdecode(path.value)


def nccl_built() -> int:
    """Returns the version of the NCCL that moves tensors on GPUs, such as 22703: of NVIDIA's
    library where HOROVOD_GPU_OPERATIONS asks for NVIDIA's library and finds the library, else of
    NCCL's API that Tutti offers."""
    if _gpus_ask_for_nccl():
        try:
            return find_nccl()[0]
        except ValueError:
            pass
    version = ctypes.c_int()
    _library.load().ncclGetVersion(ctypes.byref(version))
    return version.value


def ddl_built() -> bool:
    """Returns False: IBM ended DDL, and no library of DDL can be had."""
    return False


def has_ccl() -> bool:
    """Returns whether the plugin for oneCCL (libtutti_ccl.so) lies beside libtutti."""
    return _library.has_plugin("ccl")


def ccl_built() -> bool:
    """Returns whether oneCCL moves tensors of the host: HOROVOD_CPU_OPERATIONS asks for oneCCL, and
    its plugin is installed. Scripts do without process sets and reducescatter where Horovod has
    oneCCL, because Horovod has neither then."""
    return _first_of("HOROVOD_CPU_OPERATIONS") == "ccl" and has_ccl()


def cuda_built() -> bool:
    """Returns whether CUDA's driver is installed, and tensors may lie on a GPU."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def rocm_built() -> bool:
    """Returns False."""
    return False
