# SPDX-License-Identifier: Apache-2.0
"""A barrier that names the missing ranks."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any, List

_LONGEST_PAUSE_S = 0.05
_PASSED = "passed"  # An empty value is not for every store.


def _await(store: Any, key: str, until: float) -> bool:
    """Returns whether the counter was raised before the time. Looks again and again, because a get
    that waits would keep other threads of this process from the store."""
    pause_s = 0.0005
    while store.add(key, 0) == 0:
        if time.monotonic() >= until:
            return False
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)
    return True


def monitored_barrier(store: Any, rank: int, size: int, timeout: timedelta, wait_all_ranks: bool
                      ) -> None:
    """Blocks until all ranks have called with this store, which serves one barrier. RuntimeError at
    the end of the timeout, which begins with the call: on rank 0 the error names the first missing
    rank, with wait_all_ranks all missing ranks; on the other ranks the error is rank 0's, or says
    that rank 0 did not come."""
    seconds = timeout.total_seconds()
    until = time.monotonic() + seconds
    if rank != 0:
        store.add(f"came/{rank}", 1)
        if not _await(store, "outcome", until):
            raise RuntimeError(f"rank 0 did not let rank {rank} pass monitored_barrier in "
                               f"{seconds:g} s: it, or a rank that it waits for, did not come")
        error = store.get("error").decode()
        if error != _PASSED:
            error = (f"Rank {rank} successfully reached monitoredBarrier, but received errors while "
                     f"waiting for send/recv from rank 0: {error}")
    else:
        error = _come(store, size, until, seconds, wait_all_ranks)
        store.set("error", error or _PASSED)
        store.add("outcome", 1)
    if error and error != _PASSED:
        raise RuntimeError(error)


def _come(store: Any, size: int, until: float, seconds: float, wait_all_ranks: bool) -> str:
    """Waits for all other ranks, and returns the error text, or ""."""
    if until <= time.monotonic():
        return "Rank 0 timed out in monitoredBarrier: it was given no time"
    missing: List[str] = []
    for other in range(1, size):
        if not _await(store, f"came/{other}", until):
            missing.append(str(other))
            if not wait_all_ranks:
                break
    if not missing:
        return ""
    # The first words are Gloo's, because programs look for them.
    return (f"{'Ranks' if wait_all_ranks else 'Rank'} {', '.join(missing)} failed to pass "
            f"monitoredBarrier: did not come, of {size} ranks, in {seconds:g} s")
