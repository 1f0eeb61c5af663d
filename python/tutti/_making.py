# SPDX-License-Identifier: Apache-2.0
"""Makes coordinators. Threads: any."""

from __future__ import annotations

import ctypes
import threading
from typing import Any, Callable, List

from tutti import _elastic, _features, _library

# The time between two questions whether a generation that does not begin was given up.
_LOOK_S = 0.5


def create(options: _library.CoordinatorOptions) -> ctypes.c_void_p:
    """Creates a coordinator; blocks until all ranks have come."""
    _features.offer_nccl()
    pointer = ctypes.c_void_p()
    if _library.load().tuttiCoordinatorCreate(ctypes.byref(pointer), ctypes.byref(options)) != \
            _library.SUCCESS:
        raise ValueError(_library.coordinator_error())
    return pointer


def create_unless(given_up: Callable[[], bool], options: _library.CoordinatorOptions
                  ) -> ctypes.c_void_p:
    """Calls create on a thread of its own, because Ctrl-C must be heard meanwhile, and raises
    GenerationBroken soon after `given_up()` returns True: the wait for a rank that died before it
    came would last until the library's limit for initialising. The thread ends by itself at the
    limit."""
    outcome: List[Any] = []
    abandoned = False
    changed = threading.Condition()

    def attempt() -> None:
        try:
            made: Any = create(options)
        except ValueError as error:
            made = error
        with changed:
            outcome.append(made)
            changed.notify_all()
            if not abandoned:
                return
        if not isinstance(made, ValueError):
            _library.load().tuttiCoordinatorDestroy(made)

    threading.Thread(target=attempt, name="tutti-create", daemon=True).start()
    with changed:
        try:
            while not changed.wait_for(lambda: bool(outcome), _LOOK_S):
                if given_up():
                    raise _elastic.GenerationBroken("a worker ended before all had met")
        except BaseException:
            abandoned = True
            raise
    if isinstance(outcome[0], ValueError):
        raise outcome[0]
    return outcome[0]
