# SPDX-License-Identifier: Apache-2.0
"""The rank of this process in the running job.

The job (tutti._basics) keeps the rank up to date. Process sets and other parts of the job read the
rank here, and need not know the job.
"""

from __future__ import annotations

from typing import Optional

_rank: Optional[int] = None


def begin(rank: int) -> None:
    """Notes that a job has begun, with the rank of this process."""
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
