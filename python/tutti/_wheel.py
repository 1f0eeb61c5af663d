# SPDX-License-Identifier: Apache-2.0
"""Writes wheels: the build of this package does, and `tutti wheel --as-nccl`."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import time
import zipfile
from typing import Iterable, List, Optional, Sequence, Tuple

from tutti import _elf

# What every glibc system has, as the manylinux rules (PEP 600) count it; for libstdc++, whose
# version is a matter of its own, NEWEST_CXX says up to what.
SYSTEM_LIBRARIES = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1",
                    "libgcc_s.so.1", "libstdc++.so.6", "ld-linux-x86-64.so.2",
                    "ld-linux-aarch64.so.1")
OLDEST_GLIBC = (2, 17)  # The first that manylinux names stand for on all machines.
# Files of this beginning are loaded only where PyTorch has loaded these libraries (_torch_compile.py).
TORCH_BACKEND = "tutti_c10d-"
TORCH_LIBRARIES = ("libtorch_cpu.so", "libc10.so")
NEWEST_CXX = {"GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11), "GCC": (7, 0, 0)}  # manylinux_2_28's


def platform_tag(paths: Iterable[str]) -> Tuple[str, List[str]]:
    """Returns the tag of a wheel that holds these files, and why it is no manylinux one, a
    sentence a cause: "manylinux_2_28_x86_64" and [], or "linux_x86_64" and sentences. Files that
    are not ELF do not count; without any that is, the tag is "any"."""
    paths = list(paths)
    found = {path: elf for path in paths for elf in (_elf.read(path),) if elf is not None}
    if not found:
        return "any", []
    inside = {os.path.basename(path) for path in found}
    newest: Tuple[int, ...] = OLDEST_GLIBC
    wrong = []
    for path, elf in found.items():
        name = os.path.basename(path)
        newest = max(newest, elf.newest("GLIBC")[:2])
        present = (*SYSTEM_LIBRARIES, *(TORCH_LIBRARIES if name.startswith(TORCH_BACKEND) else ()))
        unknown = [one for one in elf.needed if one not in present and one not in inside]
        if unknown:
            wrong.append(f"{name} needs {', '.join(unknown)}")
        for kind, bound in NEWEST_CXX.items():
            if elf.newest(kind) > bound:
                wrong.append(f"{name} needs {kind}_{'.'.join(map(str, elf.newest(kind)))}")
    machine = next(iter(found.values())).machine
    if wrong:
        return f"linux_{machine}", wrong
    return f"manylinux_{newest[0]}_{newest[1]}_{machine}", []


def _digest(data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
    return "sha256=" + digest.decode()


class WheelWriter:
    """A wheel that is being written; `with` ends it. The same contents give the same bytes: entries
    have the time SOURCE_DATE_EPOCH, else 1980.

    name and version are the distribution's; `tag` is that of the platform, and Python is any 3."""

    def __init__(self, folder: str, name: str, version: str, tag: str,
                 metadata: Sequence[Tuple[str, str]], entry_points: str = "") -> None:
        plain = name.replace("-", "_")
        self.filename = f"{plain}-{version}-py3-none-{tag}.whl"
        self.path = os.path.join(folder, self.filename)
        self._info = f"{plain}-{version}.dist-info"
        self._tag = tag
        self._metadata = [("Metadata-Version", "2.1"), ("Name", name), ("Version", version),
                          *metadata]
        self._entry_points = entry_points
        self._record: List[Tuple[str, str, str]] = []
        epoch = int(os.environ.get("SOURCE_DATE_EPOCH", "315532800"))
        self._time = max(time.gmtime(epoch)[:6], (1980, 1, 1, 0, 0, 0))
        os.makedirs(folder, exist_ok=True)
        self._zip = zipfile.ZipFile(self.path, "w", zipfile.ZIP_DEFLATED)

    def add(self, name: str, data: bytes, executable: bool = False) -> None:
        """Adds a file; `name` is its path in the folder where packages are installed."""
        entry = zipfile.ZipInfo(name, self._time)
        entry.compress_type = zipfile.ZIP_DEFLATED
        entry.external_attr = (0o100755 if executable else 0o100644) << 16
        self._zip.writestr(entry, data)
        self._record.append((name, _digest(data), str(len(data))))

    def add_file(self, name: str, source: str) -> None:
        """Adds a copy of a file, executable where it is."""
        with open(source, "rb") as file:
            self.add(name, file.read(), os.access(source, os.X_OK))

    def __enter__(self) -> WheelWriter:
        return self

    def __exit__(self, kind: Optional[type], *_: object) -> None:
        if kind is None:
            self._finish()
        self._zip.close()
        if kind is not None:
            os.unlink(self.path)

    def _finish(self) -> None:
        lines = "".join(f"{key}: {value}\n" for key, value in self._metadata)
        self.add(f"{self._info}/METADATA", lines.encode())
        pure = "true" if self._tag == "any" else "false"
        self.add(f"{self._info}/WHEEL", (f"Wheel-Version: 1.0\nGenerator: tutti\nRoot-Is-Purelib: {pure}\n"
                                         f"Tag: py3-none-{self._tag}\n").encode())
        if self._entry_points:
            self.add(f"{self._info}/entry_points.txt", self._entry_points.encode())
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(
            [*self._record, (f"{self._info}/RECORD", "", "")])
        self.add(f"{self._info}/RECORD", text.getvalue().encode())
