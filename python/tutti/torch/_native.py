# SPDX-License-Identifier: Apache-2.0
"""The backend of torch.distributed in C++, whose sources are in _c10d: compiled when it is first
needed, kept for the next time, loaded, and agreed on by the ranks of a group.

TUTTI_TORCH_BACKEND chooses: "cpp" demands it, "python" does without it. Where it is not set, the
backend in C++ is taken if all ranks of the group have it. If not, they take that in Python, and one
of the ranks that lack the other warns.

What was compiled is kept in TUTTI_CACHE_DIR, else in tutti/ of XDG_CACHE_HOME or ~/.cache, under a
name that says of which PyTorch, C++ ABI, library of C++, options and sources it is. The compiler is
CXX, else the first of c++, g++ and clang++; it needs neither Python's headers nor ninja.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import functools
import grp
import hashlib
import os
import pathlib
import pwd
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import time
import warnings
from datetime import timedelta
from typing import Any, Callable, Iterator, List, Optional

import torch
import torch.distributed as dist

from tutti import _library
from tutti.torch import _ending, _meeting

# From here on PyTorch's Backend has what the sources override. Tried: 2.13.
_OLDEST = (2, 9)
_VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])
_HERE = os.path.dirname(os.path.abspath(__file__))
_SOURCES = os.path.join(_HERE, "_c10d")
_OPTIONS = ["-std=c++20", "-O2", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden"]
# The variables with secrets, as in src/config/secret.cc (tests/python/test_imports.py).
_SECRETS = ("TUTTI_COMM_KEY", "OMPI_MCA_orte_precondition_transports", "_HOROVOD_SECRET_KEY")
_COMPILE_S = 600.0
_LONGEST_PAUSE_S = 0.02
FORM_KEYS = [f"form/{name}" for name in ("warned", "reason", "failed", "told", "python", "ranks")]


class Unavailable(Exception):
    """There is no backend in C++; the text says why."""


def _include() -> str:
    """Returns the folder of nccl.h and tutti/tutti.h: that of the wheel, the checkout or the
    system."""
    package = os.path.dirname(_HERE)
    places = [os.path.join(package, "include"),
              os.path.join(package, os.pardir, os.pardir, "include"), "/usr/include"]
    for place in places:
        if os.path.exists(os.path.join(place, "tutti", "tutti.h")):
            return os.path.normpath(place)
    raise Unavailable("there is no tutti/tutti.h")


def _compiler() -> List[str]:
    named = shlex.split(os.environ.get("CXX", ""))
    for command in ([named] if named else [["c++"], ["g++"], ["clang++"]]):
        if shutil.which(command[0]):
            return command
    raise Unavailable(f"there is no C++ compiler{' ' + named[0] if named else ''}")


def _texts(include: str) -> Iterator[str]:
    for folder, names in ((_SOURCES, sorted(os.listdir(_SOURCES))),
                          (include, ["nccl.h", os.path.join("tutti", "tutti.h")])):
        for name in names:
            if name.endswith((".h", ".cc")):
                yield os.path.join(folder, name)


def _abi() -> int:
    return int(getattr(torch, "compiled_with_cxx11_abi", lambda: True)())


def _runtime() -> List[str]:
    """Returns the library of C++ that this process has loaded, for the linker. Where a compiler has
    that library as an archive only, the backend would bring another one, and the two do not mix."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        paths = (line.split(None, 5)[-1].rstrip("\n") for line in maps)
        loaded = {path for path in paths if os.path.basename(path).startswith("libstdc++.so.6")}
    return sorted(loaded)[:1]


def _file_name(include: str) -> str:
    """Returns what the compiled backend is called."""
    digest = hashlib.sha256(" ".join(_OPTIONS + _runtime()).encode())
    for path in _texts(include):
        with open(path, "rb") as file:
            digest.update(file.read() + b"\0")
    return f"tutti_c10d-{torch.__version__}-abi{_abi()}-{digest.hexdigest()[:16]}.so"


def _is_own_group(gid: int) -> bool:
    """Returns whether a group has the name of this user, as groups of a single user have."""
    try:
        return grp.getgrgid(gid).gr_name == pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return False


def _check_parent(folder: str) -> None:
    """Refuses a folder in which another user may put something else in the place of a folder of
    this user. In a sticky folder, such as /tmp, nobody may."""
    status = os.lstat(folder)
    others = status.st_mode & stat.S_IWOTH or (
        status.st_mode & stat.S_IWGRP and not _is_own_group(status.st_gid))
    if (not stat.S_ISDIR(status.st_mode) or status.st_uid not in (0, os.geteuid())
            or (others and not status.st_mode & stat.S_ISVTX)):
        raise Unavailable(f"others may write to {folder}")


def _check_own(path: str, flags: int, is_kind: Callable[[int], bool]) -> None:
    """Refuses a file or folder that another user owns or may write to. The path is opened, and no
    link at its end is followed, so that what is checked is what lies there."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | flags)
    try:
        status = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    if (not is_kind(status.st_mode) or status.st_uid != os.geteuid()
            or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
        raise Unavailable(f"others may write to {path}")


def _cache() -> str:
    """Returns the folder for what was compiled, which it makes, without symbolic links. Nobody else
    may write there, nor put another folder in its place: folders are checked from the root down, so
    that nobody can change what has been checked."""
    folder = os.environ.get("TUTTI_CACHE_DIR") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "tutti")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    folder = os.path.realpath(folder)
    for parent in reversed(pathlib.PurePath(folder).parents):
        _check_parent(str(parent))
    _check_own(folder, os.O_DIRECTORY, stat.S_ISDIR)
    return folder


def _compile(include: str, target: str) -> None:
    home = os.path.dirname(os.path.abspath(torch.__file__))
    # One translation unit: PyTorch's headers take longer to read than all of this to compile.
    unit = "".join(f'#include "{name}"\n' for name in sorted(os.listdir(_SOURCES))
                   if name.endswith(".cc"))
    headers = [os.path.join(home, "include"),
               os.path.join(home, "include", "torch", "csrc", "api", "include")]
    if not os.path.isdir(headers[1]):
        raise Unavailable("this PyTorch has no C++ headers")
    compiler = _compiler()  # Before there is a file that would stay behind.
    descriptor, made = tempfile.mkstemp(suffix=".so", dir=os.path.dirname(target))
    os.close(descriptor)
    command = [*compiler, *_OPTIONS, f"-D_GLIBCXX_USE_CXX11_ABI={_abi()}",
               *(part for folder in headers for part in ("-isystem", folder)),
               "-I", _SOURCES, "-I", include, "-x", "c++", "-", "-o", made,
               "-L", os.path.join(home, "lib"), "-ltorch_cpu", "-lc10", "-x", "none",
               *_runtime()]
    # A first run would otherwise wait without a visible reason.
    print(f"tutti: compiles its backend for PyTorch {torch.__version__}, once; this takes about "
          "half a minute", file=sys.stderr, flush=True)
    try:
        # A compiler needs no secret of the job.
        environment = {name: value for name, value in os.environ.items() if name not in _SECRETS}
        done = subprocess.run(command, input=unit, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=_COMPILE_S, check=False,
                              env=environment)
        if done.returncode != 0:
            first = next((line for line in done.stdout.splitlines() if "error" in line),
                         done.stdout[:200])
            raise Unavailable(f"{command[0]} could not compile it: {first.strip()}")
        os.chmod(made, 0o755)
        os.replace(made, target)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{command[0]} took longer than {_COMPILE_S:g} s") from None
    finally:
        if os.path.exists(made):
            os.remove(made)


def _compiled() -> str:
    """Returns the path of the compiled backend. Of several processes at once, one compiles, and the
    others wait."""
    include = _include()
    folder = _cache()
    target = os.path.join(folder, _file_name(include))
    if not os.path.exists(target):
        with open(target + ".lock", "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not os.path.exists(target):
                _compile(include, target)
    _check_own(target, 0, stat.S_ISREG)
    return target


@functools.lru_cache(maxsize=None)
def _load() -> Optional[str]:
    """Compiles and loads the backend. Returns why there is none, or None."""
    try:
        torch.ops.load_library(_compiled())
    except Unavailable as reason:
        return str(reason)
    except (OSError, RuntimeError) as error:
        return str(error)
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
    limit_s = _meeting.setting_seconds("TUTTI_INIT_TIMEOUT_S") + _COMPILE_S
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
