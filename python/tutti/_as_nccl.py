# SPDX-License-Identifier: Apache-2.0
"""Packs the installed library under the name of NVIDIA's package, for an index of one's own: a
package that requires nvidia-nccl-cu13==2.30.7 then gets Tutti without knowing."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import re
from typing import Optional, Tuple

import _tutti_nccl
from tutti import _wheel
from tutti._version import __version__

_REQUIREMENT = re.compile(r"nvidia-nccl-cu(\d+)\s*\(?==([0-9.]+)")


def wanted_by_torch() -> Optional[Tuple[int, str]]:
    """Returns the CUDA and the version of nvidia-nccl-cuN that the installed PyTorch requires, or
    None."""
    try:
        requirements = importlib.metadata.requires("torch") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    for requirement in requirements:
        found = _REQUIREMENT.match(requirement)
        if found:
            return int(found[1]), found[2]
    return None


def _api_version(library: str) -> str:
    code = ctypes.c_int()
    ctypes.CDLL(library).ncclGetVersion(ctypes.byref(code))
    return f"{code.value // 10000}.{code.value // 100 % 100}.{code.value % 100}"


def build(folder: str, cuda: Optional[int] = None, version: Optional[str] = None) -> str:
    """Writes the wheel and returns its path. Without `cuda` and `version` the wheel is the one that
    the installed PyTorch requires, else for CUDA 13 and of the API's version. ValueError without a
    library, or for a version that makes no sense; OSError for a file that cannot be read or
    written."""
    place = _tutti_nccl.folder()
    libraries = [os.path.join(place or "", name) for name in ("libtutti.so.0", "libnccl.so.2")]
    if place is None or not all(map(os.path.exists, libraries)):
        raise ValueError("libtutti.so.0 and libnccl.so.2 were not found together in " +
                         ", ".join(_tutti_nccl.folders()))
    torchs = wanted_by_torch()
    cuda = cuda or (torchs[0] if torchs else 13)
    version = version or (torchs[1] if torchs and torchs[0] == cuda else _api_version(libraries[1]))
    if not re.fullmatch(r"\d+(\.\d+)*", version):
        raise ValueError(f"{version} is no version; it would be one like 2.30.7")
    tag, _ = _wheel.platform_tag(libraries)
    metadata = [("Summary", f"Tutti {__version__} in the place of NVIDIA's NCCL; not by NVIDIA"),
                ("License", "Apache-2.0"), ("Requires-Python", ">=3"),
                ("Classifier", "Private :: Do Not Upload")]  # which public indexes refuse
    headers = os.path.join(os.path.dirname(place), "include")
    with _wheel.WheelWriter(folder, f"nvidia-nccl-cu{cuda}", f"{version}+tutti{__version__}", tag,
                            metadata) as wheel:
        for path in libraries:
            wheel.add_file(f"nvidia/nccl/lib/{os.path.basename(path)}", path)
        for part, _, files in sorted(os.walk(headers)):
            for file in sorted(files):
                source = os.path.join(part, file)
                wheel.add_file(f"nvidia/nccl/include/{os.path.relpath(source, headers)}", source)
        return wheel.path
