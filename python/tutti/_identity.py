# SPDX-License-Identifier: Apache-2.0
"""Which rank of the running job this process is.

The job (tutti._basics) keeps it up to date; process sets and others that the job is built on read
it here, so that they need not know the job.
"""

from __future__ import annotations

from typing import Optional

_rank: Optional[int] = None


def begin(rank: int) -> None:
    """Notes that a job has begun, in which this process has this rank."""
    global _rank
    _rank = rank


def end() -> None:
    """Notes that there is no job any more."""
    global _rank
    _rank = None


def rank() -> int:
    """Returns this process's number among all ranks. ValueError where no job runs."""
    if _rank is None:
        raise ValueError("Tutti has not been initialized; use hvd.init().")
    return _rank
