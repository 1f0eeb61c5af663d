# SPDX-License-Identifier: Apache-2.0
"""The end of a job's ranks: the rank whose process holds the store goes last.

Under most launchers rank 0's process serves the TCPStore through which ranks meet, and PyTorch
closes the store with the process. Other ranks may still need the store: two ranks meet there when
the first message passes between them, a new group meets there, and monitored_barrier tells its
outcome there.
"""

from __future__ import annotations

import os
import sys
import time
import weakref
from typing import Any

import torch.distributed as dist

_COUNTER = "left"
# How long rank 0 waits for ranks that do not end: enough for ranks that end together on a busy
# machine. A killed rank never says that the rank has left.
_LONGEST_S = 30.0
_LONGEST_PAUSE_S = 0.02


def _ends_with_rank_0(store: Any) -> bool:
    """Returns whether the store may be one that ends with the process of rank 0."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":  # torchrun itself serves the store.
        return False
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return isinstance(store, (dist.TCPStore, dist.PrefixStore))


def _leave(store: Any, rank: int, size: int, process: int) -> None:
    if os.getpid() != process:  # A child of fork is no rank.
        return
    # An uncaught exception ends this process, and the others must learn of the end at once.
    if rank == 0 and hasattr(sys, "last_type"):
        return
    try:
        if rank != 0:
            store.add(_COUNTER, 1)
            return
        until, pause_s = time.monotonic() + _LONGEST_S, 0.0005
        while store.add(_COUNTER, 0) < size - 1 and time.monotonic() < until:
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)
    except RuntimeError:
        pass  # The store has gone; this rank needs the store no more.


def at_end(group: Any, store: Any, rank: int, size: int) -> weakref.finalize:
    """Returns a function to call when this rank has ended the group, which must be the job's
    default group; at exit the function is called automatically. The function tells rank 0 of the
    end, and on rank 0 blocks until all other ranks have ended theirs, or for 30 s. For a store that
    does not end with rank 0 the function does nothing."""
    leaving = weakref.finalize(group, _leave, store, rank, size, os.getpid())
    if size == 1 or not _ends_with_rank_0(store):
        leaving.detach()
    return leaving
