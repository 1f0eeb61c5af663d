# SPDX-License-Identifier: Apache-2.0
"""This process as a worker of an elastic job: the worker asks the launcher for a place among the
ranks, and learns of hosts that come or go. docs/elastic.md has the keys and their meaning.

All data from the store is text, split into words and numbers; nothing is unpickled or run. Threads:
Launcher's functions from one thread at a time; one thread of its own waits for notices.
"""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import sys
import threading
from dataclasses import dataclass
from typing import Any, List, Optional, Tuple

from tutti import _horovod_launcher, _library

# The launcher listens before it starts workers; a network may need a moment.
_CONNECT_S = 60.0
# The time between two looks whether an awaited worker has died.
_LOOK_S = 0.5
# The longest wait that the library allows, for waits that only news should end.
_LONG_S = 3600.0


class LauncherLost(RuntimeError):
    """The launcher does not answer any more: no further generation will come."""


class GenerationBroken(RuntimeError):
    """A worker of this generation ended before all had met."""


class _Store:
    """One connection to the store."""

    def __init__(self, addresses: str, key: str) -> None:
        self._library = _library.load()
        self._handle = ctypes.c_void_p()
        self._buffer = ctypes.create_string_buffer(_library.ELASTIC_MAX_VALUE_BYTES)
        self._check(self._library.tuttiElasticConnect(
            ctypes.byref(self._handle), addresses.encode(), key.encode(), _CONNECT_S))

    def _check(self, result: int) -> None:
        if result != _library.SUCCESS:
            raise LauncherLost(
                (self._library.tuttiElasticLastError() or b"").decode(errors="replace"))

    def set(self, key: str, value: str) -> None:
        data = value.encode()
        self._check(self._library.tuttiElasticSet(self._handle, key.encode(), data, len(data)))

    def get(self, key: str, newer_than: int, wait_s: float) -> Tuple[int, str]:
        """Returns version and value; version 0 where nothing newer came within the time."""
        size, version = ctypes.c_size_t(), ctypes.c_uint64()
        self._check(self._library.tuttiElasticGet(
            self._handle, key.encode(), newer_than, wait_s, self._buffer, len(self._buffer),
            ctypes.byref(size), ctypes.byref(version)))
        return version.value, self._buffer.raw[:size.value].decode()

    def interrupt(self) -> None:
        self._library.tuttiElasticInterrupt(self._handle)

    def close(self) -> None:
        handle, self._handle = self._handle, ctypes.c_void_p()
        self._library.tuttiElasticClose(handle)


@dataclass
class Generation:
    """A numbering of workers as ranks."""
    number: int
    notice: int  # the number of the last notice in the generation
    workers: List[int]  # by rank
    hosts: List[str]  # by rank
    dismissed: List[int]


def parse_generation(text: str) -> Generation:
    """Reads a generation from its text in the store. ValueError for any other text."""
    first, *lines = text.splitlines() or [""]
    number, notice = (int(word) for word in first.split())
    made = Generation(number, notice, [], [], [])
    for line in lines:
        word, rest = line.split()
        if word == "dismissed":
            made.dismissed.append(int(rest))
        else:
            made.workers.append(int(word))
            made.hosts.append(rest)
    return made


class Launcher:
    """The launcher as this worker sees it."""

    def __init__(self) -> None:
        addresses, key = os.environ["TUTTI_ELASTIC_ADDR"], os.environ.get("TUTTI_COMM_KEY", "")
        self.worker = int(os.environ["TUTTI_ELASTIC_WORKER"])
        self.generation = Generation(0, 0, [], [], [])
        self.noticed = 0
        self._store = _Store(addresses, key)
        self._version = 0  # the version of the key `generation` at the last read
        self._notices = _Store(addresses, key)
        self._closing = False
        self._watcher = threading.Thread(target=self._watch, name="tutti-notices", daemon=True)
        self._watcher.start()

    def _watch(self) -> None:
        version = 0
        try:
            while not self._closing:
                came, text = self._notices.get("notice", version, _LONG_S)
                if came:
                    version, self.noticed = came, int(text)
        except LauncherLost:
            if self._closing:
                return
            # Without the launcher nothing would end this process, or give the process a place
            # again.
            print(f"tutti: worker {self.worker}: the launcher is gone, ending", file=sys.stderr)
            os.kill(os.getpid(), signal.SIGTERM)

    def join(self) -> Generation:
        """Leaves the present generation, if any, and waits for the next with this worker. Ends the
        process where the launcher has no place for the worker any more."""
        self._store.set(f"ready/{self.worker}", str(self.generation.number))
        while True:
            version, text = self._store.get("generation", self._version, _LONG_S)
            if not version:
                continue
            self._version = version
            made = parse_generation(text)
            if self.worker in made.dismissed:
                print(f"tutti: worker {self.worker} on {os.environ.get('HOROVOD_HOSTNAME', '')} is "
                      "not needed any more, ending", file=sys.stderr)
                sys.exit(0)
            if self.worker in made.workers:
                self.generation = made
                return made

    def share(self, unique_id: Optional[bytes]) -> bytes:
        """Returns rank 0's unique id, which only rank 0 passes. GenerationBroken when a worker of
        this generation died before all had the id."""
        number, version = self.generation.number, 0
        if unique_id is not None:
            self._store.set("id", f"{number} {unique_id.hex()}")
            return unique_id
        while True:
            came, text = self._store.get("id", version, _LOOK_S)
            if came:
                version = came
                made, digits = text.split()
                if int(made) == number:
                    return bytes.fromhex(digits)
            if self.is_broken():
                raise GenerationBroken(f"a worker of generation {number} ended before all had met")

    def is_broken(self) -> bool:
        """Returns whether a worker of this generation has ended."""
        found, text = self._store.get("broken", 0, 0.0)
        return bool(found) and int(text) >= self.generation.number

    def rank(self) -> int:
        """Returns this worker's rank in the generation."""
        return self.generation.workers.index(self.worker)

    def close(self) -> None:
        """Ends both connections. To be called at the end of the process only."""
        self._closing = True
        self._notices.interrupt()
        self._watcher.join()
        self._notices.close()
        self._store.close()


def tell_environment(rank: int, size: int, place: Any) -> None:
    """Sets Horovod's variables for the rank of this process, for scripts that look there. The
    launcher cannot set them, because the next generation has other numbers."""
    values = {"RANK": rank, "SIZE": size, "LOCAL_RANK": place.local_rank,
              "LOCAL_SIZE": place.local_size, "CROSS_RANK": place.cross_rank,
              "CROSS_SIZE": place.cross_size}
    os.environ.update({f"HOROVOD_{name}": str(value) for name, value in values.items()})


def is_elastic() -> bool:
    """Returns whether an elastic launcher started this process."""
    return bool(os.environ.get("TUTTI_ELASTIC_ADDR"))


def ranks_may_change() -> bool:
    """Returns whether a launcher, this package's or Horovod's, goes on with other ranks after a
    failure."""
    return is_elastic() or _horovod_launcher.is_there()


@functools.lru_cache(maxsize=None)
def launcher() -> Launcher:
    """Returns the launcher of this process's job, and connects to it at the first call."""
    return Launcher()


def forget() -> None:
    """Forgets the launcher, in the child of a fork, because an end of the parent's connections here
    would end them in the parent."""
    launcher.cache_clear()
