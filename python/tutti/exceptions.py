# SPDX-License-Identifier: Apache-2.0
"""Exceptions for what fails while a job runs. A wrong call is a ValueError instead."""

from __future__ import annotations


class HorovodInternalError(RuntimeError):
    """An operation failed after it was asked for: the ranks disagree about it (the same sentence on
    all of them), a rank is lost, or the job was shut down."""


class HostsUpdatedInterrupt(RuntimeError):
    """The hosts of an elastic job have changed; what was computed is kept.

    skip_sync: the state is known to be the same on all ranks and need not be synchronised.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the hosts of the job have changed")
        self.skip_sync = skip_sync


class TuttiError(RuntimeError):
    """A tutti.Communicator's call failed. `result` is the ncclResult_t."""

    def __init__(self, result: int, sentence: str) -> None:
        super().__init__(sentence)
        self.result = result
