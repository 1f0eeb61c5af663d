# SPDX-License-Identifier: Apache-2.0
"""The backend of torch.distributed in C++, whose sources are in _c10d: found compiled in the package,
or compiled when it is first needed and kept for the next time; loaded, and agreed on by the ranks of
a group.

TUTTI_TORCH_BACKEND chooses: "cpp" demands it, "python" does without it. Where it is not set, the
backend in C++ is taken if all ranks of the group have it. If not, they take that in Python, and one
of the ranks that lack the other warns.

The wheel has compiled backends in lib/tutti/torch of the package, by PyTorch's minor version, for
releases of PyTorch. For every other PyTorch a compiler is needed: CXX, else the first of c++, g++ and
clang++; it needs neither Python's headers nor ninja. What was compiled is kept in the folder of
_torch_cache.py, by PyTorch's full version.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import functools
import os
import re
import stat
import sys
import time
import warnings
from datetime import timedelta
from typing import Any, List, Optional

import torch
import torch.distributed as dist

from tutti import _library, _torch_compile
from tutti._torch_cache import cache, check_own
from tutti._torch_compile import Unavailable
from tutti.torch import _ending, _meeting

# From here on PyTorch's Backend has what the sources override. docs/clients.md: the versions tried.
_OLDEST = (2, 9)
_VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_SHIPPED = os.path.join(_PACKAGE, "lib", "tutti", "torch")
_LONGEST_PAUSE_S = 0.02
FORM_KEYS = [f"form/{name}" for name in ("warned", "reason", "failed", "told", "python", "ranks")]


def _include() -> str:
    """Returns the folder of nccl.h and tutti/tutti.h: that of the wheel, the checkout or the
    system."""
    places = [os.path.join(_PACKAGE, "include"),
              os.path.join(_PACKAGE, os.pardir, os.pardir, "include"), "/usr/include"]
    for place in places:
        if os.path.exists(os.path.join(place, "tutti", "tutti.h")):
            return os.path.normpath(place)
    raise Unavailable("there is no tutti/tutti.h")


def _abi() -> int:
    return int(getattr(torch, "compiled_with_cxx11_abi", lambda: True)())


def _runtime() -> List[str]:
    """Returns the library of C++ that this process has loaded, for the linker. Where a compiler has
    that library as an archive only, the backend would bring another one, and the two do not mix."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        paths = (line.split(None, 5)[-1].rstrip("\n") for line in maps)
        loaded = {path for path in paths if os.path.basename(path).startswith("libstdc++.so.6")}
    return sorted(loaded)[:1]


def _shipped_versions() -> List[str]:
    """Returns the minor versions of PyTorch for which the package has a compiled backend, in order."""
    names = os.listdir(_SHIPPED) if os.path.isdir(_SHIPPED) else []
    versions = {_torch_compile.version_and_abi(name)[0] for name in names}
    return sorted((version for version in versions if re.fullmatch(r"\d+\.\d+", version)),
                  key=lambda version: [int(part) for part in version.split(".")])


def _shipped(include: str) -> Optional[str]:
    """Returns the path of the compiled backend that the package has for this PyTorch, or None.
    Versions of PyTorch before a release, such as 2.14.0a0, may differ from the release."""
    release = re.match(r"(\d+\.\d+)\.\d+(\+|$)", torch.__version__)
    if release is None:
        return None
    path = os.path.join(_SHIPPED, _torch_compile.file_name(release[1], _abi(), include))
    return path if os.path.exists(path) else None


def _what_to_install() -> str:
    versions = _shipped_versions()
    return ("; install one (the package g++ of Debian and Ubuntu, gcc-c++ of Fedora and RHEL), or "
            + (f"PyTorch {' or '.join(versions)}, for which this package has the backend compiled"
               if versions else "a wheel of this package that has the backend compiled"))


def _compile(include: str, target: str) -> None:
    try:
        _torch_compile.compiler()  # Before there is a file that would stay behind.
    except Unavailable as reason:
        raise Unavailable(f"{reason}{_what_to_install()}") from None
    made = _torch_compile.temporary_beside(target)
    # A first run would otherwise wait without a visible reason.
    print(f"tutti: compiles its backend for PyTorch {torch.__version__}, once; this takes about "
          "half a minute", file=sys.stderr, flush=True)
    try:
        _torch_compile.compile_backend(os.path.dirname(os.path.abspath(torch.__file__)), _abi(),
                                       include, made, _runtime())
        _torch_compile.keep(made, target)
    finally:
        if os.path.exists(made):
            os.remove(made)


def _says_why_not(reason: Exception) -> None:
    print(f"tutti: {reason}; a compiler is needed instead", file=sys.stderr, flush=True)


def _is_kept(path: str) -> bool:
    """Returns whether the compiled backend was kept there. A damaged file, and a file for another
    PyTorch, do not count."""
    if not os.path.exists(path):
        return False
    check_own(path, 0, stat.S_ISREG)
    try:
        _torch_compile.check_seal(path)
    except Unavailable as reason:
        _says_why_not(reason)
        return False
    return True


def _compiled_here(include: str) -> str:
    """Returns the path of the backend that was compiled here, now or before. Of several processes at
    once, one compiles, and the others wait."""
    name = _torch_compile.file_name(torch.__version__, _abi(), include, _runtime())
    target = os.path.join(cache(), name)
    if not _is_kept(target):
        with open(target + ".lock", "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _is_kept(target):
                _compile(include, target)
    return target


def _load_shipped(include: str) -> bool:
    """Loads the compiled backend of the package where it fits, and returns whether it did."""
    path = _shipped(include)
    if path is None:
        return False
    try:
        _torch_compile.check_seal(path)
        torch.ops.load_library(path)
    except (Unavailable, OSError, RuntimeError) as reason:
        _says_why_not(reason)
        return False
    return True


@functools.lru_cache(maxsize=None)
def _load() -> Optional[str]:
    """Loads the backend, which is compiled if needed. Returns why there is none, or None."""
    try:
        include = _include()
        if not _load_shipped(include):
            torch.ops.load_library(_compiled_here(include))
    except (Unavailable, OSError, RuntimeError) as reason:
        return str(reason)
    return None


def _wanted() -> str:
    wanted = os.environ.get("TUTTI_TORCH_BACKEND", "")
    if wanted not in ("", "cpp", "python"):
        raise ValueError(f'TUTTI_TORCH_BACKEND is "{wanted}"; it can be "cpp" or "python"')
    return wanted


def _has_form(store: Any) -> bool:
    """Returns whether this rank takes the backend in C++, which is compiled where it is needed."""
    wanted = _wanted()
    if _VERSION < _OLDEST:  # On all ranks: PyTorch's own parts do not mix versions either.
        if wanted == "cpp":
            raise RuntimeError(f"the tutti backend in C++ needs PyTorch {_OLDEST[0]}.{_OLDEST[1]}")
        return False
    reason = None if wanted == "python" else _load()
    if reason is not None:
        if wanted == "cpp":
            raise RuntimeError(f"the tutti backend in C++ is not to be had: {reason}")
        if store.add("form/warned", 1) == 1:
            warnings.warn(f"the tutti backend is the slower one in Python, because {reason}; "
                          f"TUTTI_TORCH_BACKEND=python chooses it without this warning")
    return wanted != "python" and reason is None


def _count_told(store: Any, size: int) -> None:
    """Counts a rank that knows why a rank cannot take part. The last rank takes the reason out of the
    store."""
    if store.add("form/told", 1) >= size:
        for key in FORM_KEYS:
            _meeting.delete_key(store, key)


def agreed(store: Any, rank: int, size: int) -> bool:
    """Returns whether the ranks of a group take the backend in C++. Blocks until all of them have
    asked. RuntimeError with the reason of a rank that fails, and where ranks do not come within
    TUTTI_INIT_TIMEOUT_S, besides the time for which a compiler may run."""
    try:
        has = _has_form(store)
    except Exception as error:
        # The others wait for this rank.
        store.set("form/reason", f"rank {rank} of the group cannot take part: {error}")
        store.add("form/failed", 1)
        _count_told(store, size)
        raise
    if not has:
        store.add("form/python", 1)
    limit_s = _meeting.setting_seconds("TUTTI_INIT_TIMEOUT_S") + _torch_compile.COMPILE_S
    begun, pause_s = time.monotonic(), 0.0005
    came = store.add("form/ranks", 1)
    while came < size:
        if store.add("form/failed", 0) > 0:
            reason = store.get("form/reason").decode()
            _count_told(store, size)
            raise RuntimeError(reason)
        if time.monotonic() - begun >= limit_s:
            raise RuntimeError(f"only {came} of {size} ranks of the group came within {limit_s:g} s; "
                               "TUTTI_INIT_TIMEOUT_S sets how long is waited")
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)
        came = store.add("form/ranks", 0)
    return store.add("form/python", 0) == 0


# The functions that the library calls after the end of the job's default group, with their objects.
# A process has few default groups.
_leaving: List[Any] = []


class _Job:
    """Stands for the job's default group, which the rank leaves by destroying it or at exit."""


def _when_it_ended(store: Any, rank: int, size: int) -> int:
    """Returns the address of a function that the default group calls when it has ended."""
    job = _Job()
    leave = _ending.at_end(job, store, rank, size)
    function = _library.HOST_FUNCTION(lambda _: leave())
    _leaving.append((job, function))
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _let_others_stay_out() -> None:
    """Gives backends the method that PyTorch calls on the ranks outside a new group, where the
    backend can be split and the default group has a GPU as its own. Only NCCL's backend has the
    method. Tutti's method does nothing, since only the members of a group meet."""
    backend = torch._C._distributed_c10d.Backend
    if not hasattr(backend, "perform_nocolor_split"):
        backend.perform_nocolor_split = lambda self, device: None


def create(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """Makes the backend of a group, on all of its ranks together, after they have agreed on the
    backend in C++."""
    # A group carries the backend to Python, which needs none of Python's headers.
    carrier = dist.ProcessGroup(store, rank, size)
    left = 0 if dist.is_initialized() else _when_it_ended(store, rank, size)
    torch.ops.tutti_c10d.add_backend(carrier.boxed(), _library.load()._name,
                                     timeout.total_seconds(), left, FORM_KEYS)
    _have_groups_end_at_exit()
    _let_others_stay_out()
    return carrier._get_backend(torch.device("cpu"))


def create_reconfigurable(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """Makes the backend of a group whose members change. Waits for no other rank. RuntimeError where
    the backend in C++ cannot be had, because that in Python has fixed members."""
    reason = (f"TUTTI_TORCH_BACKEND is \"{_wanted()}\"" if _wanted() == "python" else _load())
    if reason is not None:
        raise RuntimeError("enable_reconfigure needs the tutti backend in C++, which is not to be had: "
                           f"{reason}")
    carrier = dist.ProcessGroup(store, rank, size)
    torch.ops.tutti_c10d.add_reconfigurable_backend(carrier.boxed(), _library.load()._name,
                                                    timeout.total_seconds())
    _have_groups_end_at_exit()
    _let_others_stay_out()
    return carrier._get_backend(torch.device("cpu"))


@functools.lru_cache(maxsize=None)
def _have_groups_end_at_exit() -> None:
    """Ends forgotten groups at the end of Python, while Python can still be called."""
    atexit.register(_end_groups, os.getpid())


def _end_groups(process: int) -> None:
    if os.getpid() != process:  # A child of fork is no rank.
        return
    names = dist.distributed_c10d._world.pg_names
    for group in sorted(names, key=lambda one: str(names[one]), reverse=True):
        try:
            backend = group._get_backend(torch.device("cpu"))
        except RuntimeError:
            continue  # It has none for the host.
        if backend.name() != "tutti":
            continue
        if hasattr(sys, "last_type"):  # An exception that nobody caught: others are not waited for.
            backend.abort()
        else:
            backend.shutdown()
