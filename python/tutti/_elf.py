# SPDX-License-Identifier: Apache-2.0
"""Reads what a library or program asks of the loader: 64-bit ELF files, little-endian."""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass, field
from typing import Dict, Iterator, List, Optional, Tuple

MACHINES = {62: "x86_64", 183: "aarch64"}

_LOAD, _DYNAMIC, _INTERPRETER = 1, 2, 3
_NEEDED, _STRINGS, _SONAME, _RPATH, _RUNPATH = 1, 5, 14, 15, 29
_VERSION_NEEDS, _NUM_VERSION_NEEDS = 0x6ffffffe, 0x6fffffff


@dataclass
class Elf:
    """needed: the names of libraries, in order. rpath, runpath: where they are looked for.
    versions: by library, the versions of its symbols that are needed, such as GLIBC_2.28."""
    machine: str = ""
    interpreter: str = ""
    soname: str = ""
    needed: List[str] = field(default_factory=list)
    rpath: List[str] = field(default_factory=list)
    runpath: List[str] = field(default_factory=list)
    versions: Dict[str, List[str]] = field(default_factory=dict)

    def newest(self, kind: str) -> Tuple[int, ...]:
        """Returns the newest version of a kind (GLIBC, GLIBCXX, CXXABI, GCC) that is needed, as
        numbers: (2, 28); () where none is."""
        found = [tuple(int(part) for part in version[len(kind) + 1:].split("."))
                 for versions in self.versions.values() for version in versions
                 if version.startswith(kind + "_") and version[len(kind) + 1:][0].isdigit()]
        return max(found, default=())


class _Reader:
    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.loads: List[Tuple[int, int, int]] = []  # address, offset, bytes in the file

    def unpack(self, form: str, offset: int) -> Tuple[int, ...]:
        return struct.unpack_from("<" + form, self.data, offset)

    def offset(self, address: int) -> int:
        for start, offset, size in self.loads:
            if start <= address < start + size:
                return address - start + offset
        raise ValueError(f"address {address:#x} is in no part of the file")

    def text(self, offset: int) -> str:
        end = self.data.find(b"\0", offset)
        if end < 0:
            raise ValueError("a text has no end")
        return self.data[offset:end].decode(errors="replace")

    def entries(self, offset: int, size: int) -> Iterator[Tuple[int, int]]:
        for at in range(offset, offset + size, 16):
            tag, value = self.unpack("qQ", at)
            if tag == 0:
                return
            yield tag, value


def read(path: str) -> Optional[Elf]:
    """Returns what the file says, or None where it is no ELF file that this can read. OSError as
    open()."""
    with open(path, "rb") as file:
        try:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _parse(_Reader(data)) if data[:6] == b"\x7fELF\x02\x01" else None
        except (ValueError, struct.error):  # ValueError: an empty file, too
            return None


def _parse(reader: _Reader) -> Elf:
    result = Elf(machine=MACHINES.get(reader.unpack("H", 18)[0], "other"))
    (headers,), (size, count) = reader.unpack("Q", 32), reader.unpack("HH", 54)
    dynamic: List[Tuple[int, int]] = []
    for at in range(headers, headers + size * count, size):
        kind, _, offset, address, _, bytes_in_file = reader.unpack("IIQQQQ", at)
        if kind == _LOAD:
            reader.loads.append((address, offset, bytes_in_file))
        elif kind == _DYNAMIC:
            dynamic = list(reader.entries(offset, bytes_in_file))
        elif kind == _INTERPRETER:
            result.interpreter = reader.text(offset)
    tags = dict(dynamic)
    if _STRINGS not in tags:
        return result
    strings = reader.offset(tags[_STRINGS])
    for tag, value in dynamic:
        if tag == _NEEDED:
            result.needed.append(reader.text(strings + value))
        elif tag == _SONAME:
            result.soname = reader.text(strings + value)
        elif tag in (_RPATH, _RUNPATH):
            paths = reader.text(strings + value).split(":")
            setattr(result, "rpath" if tag == _RPATH else "runpath", paths)
    if _VERSION_NEEDS in tags:
        at = reader.offset(tags[_VERSION_NEEDS])
        for _ in range(tags.get(_NUM_VERSION_NEEDS, 0)):
            _, num, file_name, first, following = reader.unpack("HHIII", at)
            names, entry = [], at + first
            for _ in range(num):
                _, _, _, name, next_entry = reader.unpack("IHHII", entry)
                names.append(reader.text(strings + name))
                entry += next_entry
            result.versions.setdefault(reader.text(strings + file_name), []).extend(names)
            at += following
    return result
