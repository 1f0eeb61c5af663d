# SPDX-License-Identifier: Apache-2.0
"""Compiles the backend of torch.distributed in C++, whose sources are in torch/_c10d, for one PyTorch,
without an import of PyTorch: for a rank that needs the backend (torch/_native.py), and for the wheel
(tools/compile_torch_backend).

A compiled file is called by the PyTorch, the C++ ABI and the sources of which it is, and ends with a
seal: its name and a digest of everything before. check_seal() thus knows a damaged file, and a file
for another PyTorch, before the file is loaded. The loader ignores what stands behind its parts of a
file.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from typing import Iterator, List, Sequence, Tuple

SOURCES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch", "_c10d")
OPTIONS = ["-std=c++20", "-O2", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden"]
# The variables with secrets, as in src/config/secret.cc (tests/python/test_imports.py).
_SECRETS = ("TUTTI_COMM_KEY", "OMPI_MCA_orte_precondition_transports", "_HOROVOD_SECRET_KEY")
COMPILE_S = 600.0
_SEAL = b"\0tutti-c10d-seal "
_NAME = re.compile(r"tutti_c10d-(?P<version>.+)-abi(?P<abi>\d)-[0-9a-f]{16}\.so")


class Unavailable(Exception):
    """There is no backend in C++; the text says why."""


def compiler() -> List[str]:
    """Returns the command of the C++ compiler: CXX, else the first of c++, g++ and clang++."""
    named = shlex.split(os.environ.get("CXX", ""))
    for command in ([named] if named else [["c++"], ["g++"], ["clang++"]]):
        if shutil.which(command[0]):
            return command
    raise Unavailable(f"there is no C++ compiler{' ' + named[0] if named else ''}")


def _texts(include: str, sources: str) -> Iterator[str]:
    for folder, names in ((sources, sorted(os.listdir(sources))),
                          (include, ["nccl.h", os.path.join("tutti", "tutti.h")])):
        for name in names:
            if name.endswith((".h", ".cc")):
                yield os.path.join(folder, name)


def file_name(version: str, abi: int, include: str, libraries: Sequence[str] = (),
              sources: str = SOURCES) -> str:
    """Returns what the file compiled for this version of PyTorch is called. `include` is the folder of
    nccl.h and tutti/tutti.h; `libraries` are those of compile_backend."""
    digest = hashlib.sha256(" ".join([*OPTIONS, *libraries]).encode())
    for path in _texts(include, sources):
        with open(path, "rb") as file:
            digest.update(file.read() + b"\0")
    return f"tutti_c10d-{version}-abi{abi}-{digest.hexdigest()[:16]}.so"


def version_and_abi(name: str) -> Tuple[str, int]:
    """Returns the version of PyTorch and the C++ ABI in the name of a compiled file; ("", 0) for
    another name."""
    named = _NAME.fullmatch(name)
    return (named["version"], int(named["abi"])) if named else ("", 0)


def compile_backend(torch_home: str, abi: int, include: str, made: str,
                    libraries: Sequence[str] = (), options: Sequence[str] = ()) -> None:
    """Compiles into the file `made`, without a seal. torch_home is the folder of the package torch,
    `libraries` are further files for the linker. Unavailable where the file cannot be compiled."""
    # One translation unit: PyTorch's headers take longer to read than all of this to compile.
    unit = "".join(f'#include "{name}"\n' for name in sorted(os.listdir(SOURCES))
                   if name.endswith(".cc"))
    headers = [os.path.join(torch_home, "include"),
               os.path.join(torch_home, "include", "torch", "csrc", "api", "include")]
    if not os.path.isdir(headers[1]):
        raise Unavailable("this PyTorch has no C++ headers")
    command = [*compiler(), *OPTIONS, *options, f"-D_GLIBCXX_USE_CXX11_ABI={abi}",
               *(part for folder in headers for part in ("-isystem", folder)),
               "-I", SOURCES, "-I", include, "-x", "c++", "-", "-o", made,
               "-L", os.path.join(torch_home, "lib"), "-ltorch_cpu", "-lc10", "-x", "none",
               *libraries]
    # A compiler needs no secret of the job.
    environment = {name: value for name, value in os.environ.items() if name not in _SECRETS}
    try:
        done = subprocess.run(command, input=unit, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=COMPILE_S, check=False,
                              env=environment)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{command[0]} took longer than {COMPILE_S:g} s") from None
    if done.returncode != 0:
        first = next((line for line in done.stdout.splitlines() if "error" in line),
                     done.stdout[:200])
        raise Unavailable(f"{command[0]} could not compile it: {first.strip()}")


def keep(made: str, target: str) -> None:
    """Seals the compiled file `made` and moves the file to `target`, whose name is that of file_name.
    Both are on one file system."""
    with open(made, "r+b") as file:
        digest = hashlib.sha256(file.read())
        seal = _SEAL + os.path.basename(target).encode() + b" "
        digest.update(seal)
        file.write(seal + digest.hexdigest().encode())
    os.chmod(made, 0o755)
    os.replace(made, target)


def check_seal(path: str) -> None:
    """Unavailable where the file is damaged, or was compiled as another file than its name says."""
    with open(path, "rb") as file:
        data = file.read()
    at = data.rfind(_SEAL)
    name, _, digest = data[at + len(_SEAL):].partition(b" ")
    if at < 0 or hashlib.sha256(data[:len(data) - len(digest)]).hexdigest().encode() != digest:
        raise Unavailable(f"{path} is damaged")
    compiled_as, wanted = name.decode(), os.path.basename(path)
    if compiled_as != wanted:
        raise Unavailable(f"{path} was compiled for PyTorch {version_and_abi(compiled_as)[0]} as "
                          f"{compiled_as}, not for PyTorch {version_and_abi(wanted)[0]}")


def temporary_beside(target: str) -> str:
    """Makes an empty file in the folder of `target` and returns its path."""
    descriptor, made = tempfile.mkstemp(suffix=".so", dir=os.path.dirname(target))
    os.close(descriptor)
    return made
