# SPDX-License-Identifier: Apache-2.0
"""The place of this process among the ranks that a launcher started, and the way of rank 0's unique
id to the others. The functions are thin calls of the library; include/tutti/launch.h lists the
variables of the environment and says how ranks prove themselves to one another.

Threads: any, one at a time for each Launch.
"""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass
from typing import Any, List, Optional, Sequence

from tutti import _library

_MACHINE_BYTES = 4096


@dataclass(frozen=True)
class Place:
    """A rank's place in the job, on which all ranks agree."""
    machine: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


@dataclass(frozen=True)
class Meeting:
    """The common knowledge of all ranks after they have met: the unique id, and each rank's
    place."""
    unique_id: bytes
    places: List[Place]


def _check(result: int) -> None:
    if result != _library.SUCCESS:
        raise ValueError((_library.load().tuttiLaunchLastError() or b"").decode(errors="replace"))


class Launch:
    """This process among those of its job. Made by read and part."""

    def __init__(self, handle: ctypes.c_void_p) -> None:
        self._library, self._handle = _library.load(), handle
        info = _library.LaunchInfo(size=ctypes.sizeof(_library.LaunchInfo))
        _check(self._library.tuttiLaunchDescribe(handle, ctypes.byref(info)))
        self.rank, self.size = info.rank, info.nranks
        self.timeout_s: float = info.timeout_s
        self.launcher = info.launcher.decode()
        self.rendezvous = info.rendezvous.decode()

    def __del__(self) -> None:
        self._library.tuttiLaunchClose(self._handle)

    def part(self, ranks: Sequence[int]) -> "Launch":
        """Returns a job of the named ranks alone, numbered in the given order. Every one of them
        must begin the job, and the others must not. ValueError for ranks that cannot form a job."""
        numbers = [int(rank) for rank in ranks]
        made = ctypes.c_void_p()
        _check(self._library.tuttiLaunchPart(self._handle, (ctypes.c_int * len(numbers))(*numbers),
                                             len(numbers), ctypes.byref(made)))
        return Launch(made)

    def meet(self, unique_id: bytes, timeout_s: float = 0.0) -> Meeting:
        """Blocks until all ranks have come, for `timeout_s` seconds, or as long as the environment
        says by default. `unique_id` counts on rank 0 only. ConnectionError, in a sentence, when
        that does not happen in time. Ctrl-C ends the wait."""
        received = ctypes.create_string_buffer(_library.LAUNCH_MAX_VALUE_BYTES)
        count = ctypes.c_size_t()
        outcome: List[Optional[str]] = []

        def attempt() -> None:
            result = self._library.tuttiLaunchMeet(
                self._handle, unique_id, len(unique_id), received, len(received),
                ctypes.byref(count), timeout_s)
            # The library keeps the sentence for the calling thread.
            outcome.append(None if result == _library.SUCCESS else
                           (self._library.tuttiLaunchLastError() or b"").decode(errors="replace"))

        _interruptibly(attempt, self._interrupt)
        if outcome[0] is not None:
            raise ConnectionError(outcome[0])
        places = (_library.LaunchPlace * self.size)()
        _check(self._library.tuttiLaunchPlaces(self._handle, places, self.size))
        return Meeting(received.raw[:count.value], [_place(place) for place in places])

    def _interrupt(self) -> None:
        self._library.tuttiLaunchInterrupt(self._handle)


def _interruptibly(function: Any, interrupt: Any) -> None:
    """Calls `function` on a thread of its own, because Python can then raise the exceptions of
    signals here meanwhile; `interrupt` must make `function` return."""
    # Thread.join would not do, because join takes a thread for ended once join was interrupted.
    done = threading.Event()

    def run() -> None:
        try:
            function()
        finally:
            done.set()

    threading.Thread(target=run, name="tutti-meet", daemon=True).start()
    try:
        done.wait()
    except BaseException:
        interrupt()
        done.wait()
        raise


def _place(place: _library.LaunchPlace) -> Place:
    return Place(place.machine, place.local_rank, place.local_size, place.cross_rank,
                 place.cross_size)


def read() -> Launch:
    """Reads the launcher's variables; a single rank without a launcher. ValueError, in a sentence,
    for values that make no sense."""
    handle = ctypes.c_void_p()
    _check(_library.load().tuttiLaunchRead(ctypes.byref(handle), 0))
    return Launch(handle)


def machine() -> str:
    """Returns a name of this machine that no further machine has."""
    name = ctypes.create_string_buffer(_MACHINE_BYTES)
    _check(_library.load().tuttiLaunchMachine(name, len(name)))
    return name.value.decode(errors="surrogateescape")


def count_places(machines: Sequence[str]) -> List[Place]:
    """Returns the places of ranks on machines of these names, counted machine by machine."""
    names = [name.encode(errors="surrogateescape") for name in machines]
    places = (_library.LaunchPlace * len(names))()
    _check(_library.load().tuttiLaunchCountPlaces((ctypes.c_char_p * len(names))(*names), places,
                                                  len(names)))
    return [_place(place) for place in places]
