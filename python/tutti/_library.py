# SPDX-License-Identifier: Apache-2.0
"""Loads libtutti through ctypes, and declares the types of its C functions.

Nothing here knows of arrays or of jobs. The library is loaded when it is first needed, under a
private name space (RTLD_LOCAL), so that it can stand beside NVIDIA's NCCL in one process.
"""

from __future__ import annotations

import ctypes
import functools
import os
from ctypes import (POINTER, Structure, c_char_p, c_double, c_int, c_int64, c_size_t, c_uint,
                    c_uint64, c_void_p)
from typing import Any, List, Optional

SUCCESS = 0
INVALID_ARGUMENT = 4
INVALID_USAGE = 5

UNDEFINED = -(1 << 31)  # NCCL_CONFIG_UNDEF_INT
HOST = -1  # stands for the host where a CUDA device is asked for

UNIQUE_ID_BYTES = 128
ELASTIC_MAX_VALUE_BYTES = 1 << 20
LAUNCH_MAX_VALUE_BYTES = 1 << 16


class UniqueId(Structure):
    _fields_ = [("internal", ctypes.c_char * UNIQUE_ID_BYTES)]


class CoordinatorOptions(Structure):
    """tuttiCoordinatorOptions_t"""
    _fields_ = [("size", c_size_t), ("id", POINTER(UniqueId)), ("rank", c_int), ("nranks", c_int),
                ("local_rank", c_int), ("local_size", c_int), ("cross_rank", c_int),
                ("cross_size", c_int)]


class Tensor(Structure):
    """tuttiTensor_t"""
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("kind", c_int), ("type", c_int),
                ("ndim", c_int), ("shape", POINTER(c_int64)), ("input", c_void_p),
                ("output", c_void_p), ("op", c_int), ("compression", c_int),
                ("prescale", c_double), ("postscale", c_double), ("root", c_int),
                ("splits", POINTER(c_int64)), ("nsplits", c_int), ("device", c_int),
                ("stream", c_void_p)]


class LaunchInfo(Structure):
    """tuttiLaunchInfo_t"""
    _fields_ = [("size", c_size_t), ("rank", c_int), ("nranks", c_int), ("local_rank", c_int),
                ("local_size", c_int), ("one_machine", c_int), ("timeout_s", c_double),
                ("launcher", ctypes.c_char * 64), ("rendezvous", ctypes.c_char * 256)]


class LaunchPlace(Structure):
    """tuttiLaunchPlace_t"""
    _fields_ = [("machine", c_int), ("local_rank", c_int), ("local_size", c_int),
                ("cross_rank", c_int), ("cross_size", c_int)]


class Config(Structure):
    """tuttiConfig_t"""
    _fields_ = [("size", c_size_t), ("magic", c_uint), ("device", c_int), ("deterministic", c_int),
                ("timeout_s", c_double), ("init_timeout_s", c_double), ("shown_ranks", POINTER(c_int))]

    def __init__(self, **fields: Any) -> None:
        super().__init__(ctypes.sizeof(Config), 0x74757474, **{"deterministic": UNDEFINED, **fields})


# tuttiHostFn_t
HOST_FUNCTION = ctypes.CFUNCTYPE(None, c_void_p)

_COORDINATOR = {
    "Create": [POINTER(c_void_p), POINTER(CoordinatorOptions)],
    "Shutdown": [c_void_p],
    "Destroy": [c_void_p],
    "Enqueue": [c_void_p, c_int, POINTER(Tensor), c_int, c_char_p, POINTER(c_int64)],
    "Join": [c_void_p, c_int, POINTER(c_int64)],
    "Poll": [c_void_p, c_int64, POINTER(c_int)],
    "Wait": [c_void_p, c_int64, c_double],
    "Output": [c_void_p, c_int64, POINTER(c_void_p)],
    "OutputShape": [c_void_p, c_int64, POINTER(c_int64), c_int, POINTER(c_int)],
    "ReceivedSplits": [c_void_p, c_int64, POINTER(c_int64), c_int, POINTER(c_int)],
    "LastJoined": [c_void_p, c_int64, POINTER(c_int)],
    "StreamWait": [c_void_p, c_int64, c_void_p],
    "Release": [c_void_p, c_int64],
    "AddProcessSet": [c_void_p, POINTER(c_int), c_int, POINTER(c_int)],
    "RemoveProcessSet": [c_void_p, c_int],
    "ProcessSetRanks": [c_void_p, c_int, POINTER(c_int), c_int, POINTER(c_int)],
    "StartTimeline": [c_void_p, c_char_p, c_int],
    "StopTimeline": [c_void_p],
    "FindNccl": [POINTER(c_int), c_char_p, c_size_t],
    "Counter": [c_void_p, c_int, c_char_p, POINTER(c_uint64)],
}

_ELASTIC = {
    "Connect": [POINTER(c_void_p), c_char_p, c_char_p, c_double],
    "Set": [c_void_p, c_char_p, c_char_p, c_size_t],
    "Get": [c_void_p, c_char_p, c_uint64, c_double, c_char_p, c_size_t, POINTER(c_size_t),
            POINTER(c_uint64)],
    "Interrupt": [c_void_p],
    "Close": [c_void_p],
}

_LAUNCH = {
    "Read": [POINTER(c_void_p), c_int],
    "Part": [c_void_p, POINTER(c_int), c_int, POINTER(c_void_p)],
    "Describe": [c_void_p, POINTER(LaunchInfo)],
    "Meet": [c_void_p, c_char_p, c_size_t, c_char_p, c_size_t, POINTER(c_size_t), c_double],
    "Places": [c_void_p, POINTER(LaunchPlace), c_int],
    "Interrupt": [c_void_p],
    "Close": [c_void_p],
    "Machine": [c_char_p, c_size_t],
    "CountPlaces": [POINTER(c_char_p), POINTER(LaunchPlace), c_int],
}

_NCCL = {
    "ncclGetVersion": [POINTER(c_int)],
    "ncclGetUniqueId": [POINTER(UniqueId)],
    "tuttiGetUniqueIdFor": [POINTER(UniqueId), c_char_p],
    "tuttiCommInitRankOn": [POINTER(c_void_p), c_int, UniqueId, c_int, c_int],
    "tuttiCommInitRankConfig": [POINTER(c_void_p), c_int, UniqueId, c_int, c_void_p,
                                POINTER(Config)],
    "tuttiCommGetLostRanks": [c_void_p, POINTER(c_int), c_int, POINTER(c_int)],
    "tuttiCommSetTimeout": [c_void_p, c_double],
    "ncclParamGetParameter": [c_char_p, POINTER(c_char_p), POINTER(c_int)],
    "ncclCommDestroy": [c_void_p],
    "ncclCommAbort": [c_void_p],
    "ncclCommSplit": [c_void_p, c_int, c_int, POINTER(c_void_p), c_void_p],
    "ncclCommCount": [c_void_p, POINTER(c_int)],
    "ncclCommUserRank": [c_void_p, POINTER(c_int)],
    "ncclAllReduce": [c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p],
    "ncclReduce": [c_void_p, c_void_p, c_size_t, c_int, c_int, c_int, c_void_p, c_void_p],
    "ncclBroadcast": [c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p],
    "ncclAllGather": [c_void_p, c_void_p, c_size_t, c_int, c_void_p, c_void_p],
    "ncclReduceScatter": [c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p],
    "ncclAlltoAll": [c_void_p, c_void_p, c_size_t, c_int, c_void_p, c_void_p],
    "ncclSend": [c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p],
    "ncclRecv": [c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p],
    "ncclGroupStart": [],
    "ncclGroupEnd": [],
    "ncclGather": [c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p],
    "ncclScatter": [c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p],
    "tuttiAllGatherV": [c_void_p, c_size_t, c_void_p, POINTER(c_size_t), POINTER(c_size_t), c_int,
                        c_void_p, c_void_p],
    "tuttiReduceScatterV": [c_void_p, c_void_p, POINTER(c_size_t), c_int, c_int, c_void_p,
                            c_void_p],
    "tuttiAlltoAllV": [c_void_p, POINTER(c_size_t), POINTER(c_size_t), c_void_p,
                       POINTER(c_size_t), POINTER(c_size_t), c_int, c_void_p, c_void_p],
    "tuttiGatherV": [c_void_p, c_size_t, c_void_p, POINTER(c_size_t), POINTER(c_size_t), c_int,
                     c_int, c_void_p, c_void_p],
    "tuttiScatterV": [c_void_p, POINTER(c_size_t), POINTER(c_size_t), c_void_p, c_size_t, c_int,
                      c_int, c_void_p, c_void_p],
    "tuttiBarrier": [c_void_p, c_void_p],
}


def candidates() -> List[str]:
    """Returns the places of libtutti, in this order: TUTTI_LIBRARY alone where the variable is set;
    else the copy that came with the package, then the loader's folders."""
    named = os.environ.get("TUTTI_LIBRARY")
    if named:
        return [named]
    here = os.path.dirname(os.path.abspath(__file__))
    bundled = os.path.join(here, "lib", "libtutti.so.0")
    return ([bundled] if os.path.exists(bundled) else []) + ["libtutti.so.0"]


@functools.lru_cache(maxsize=None)
def load() -> ctypes.CDLL:
    """Loads the library once and returns the library. ImportError lists the places of the
    search."""
    reasons = []
    for path in candidates():
        try:
            library = ctypes.CDLL(path)
            _declare(library)
            return library
        except (OSError, AttributeError) as error:
            reasons.append(f"{path}: {error}")
    raise ImportError("libtutti.so.0 could not be loaded; set TUTTI_LIBRARY to its path. Tried " +
                      "; ".join(reasons))


def has_plugin(name: str) -> bool:
    """Returns whether libtutti_<name>.so lies beside the library that is loaded."""
    address = ctypes.cast(load().tuttiCoordinatorCreate, c_void_p).value or 0
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            begin, end = (int(part, 16) for part in line.split(" ", 1)[0].split("-"))
            if begin <= address < end:
                folder = os.path.dirname(line.rstrip("\n").split(" ", 5)[-1].strip())
                return os.path.exists(os.path.join(folder, f"libtutti_{name}.so"))
    return False


def _declare(library: ctypes.CDLL) -> None:
    for part, functions in (("Coordinator", _COORDINATOR), ("Elastic", _ELASTIC),
                            ("Launch", _LAUNCH)):
        for name, arguments in functions.items():
            function = getattr(library, f"tutti{part}{name}")
            function.restype, function.argtypes = c_int, arguments
        last_error = getattr(library, f"tutti{part}LastError")
        last_error.restype, last_error.argtypes = c_char_p, []
    for name, arguments in _NCCL.items():
        function = getattr(library, name)
        function.restype, function.argtypes = c_int, arguments
    library.ncclGetLastError.restype = c_char_p
    library.ncclGetLastError.argtypes = [c_void_p]


def coordinator_error() -> str:
    """Returns the sentence of this thread's last failed tuttiCoordinator call."""
    return (load().tuttiCoordinatorLastError() or b"").decode(errors="replace")


def nccl_error(comm: Optional[c_void_p]) -> str:
    """Returns the sentence of this thread's last failed nccl call."""
    return (load().ncclGetLastError(comm) or b"").decode(errors="replace")
