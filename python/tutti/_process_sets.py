# SPDX-License-Identifier: Apache-2.0
"""Process sets as users hold them."""

from __future__ import annotations

from typing import Any, Iterable, List, Optional, Union

from tutti import _identity
from tutti._arguments import whole_number


class ProcessSet:
    """A set of ranks with operations of its own, which wait for no other set's.

    The user makes one from global ranks, or from a communicator of mpi4py, and gives it to `init`
    or `add_process_set`, after which it can be used. `ranks` is ascending; that of a communicator's
    set is None until then. """

    process_set_id: Optional[int] = None
    mpi_comm: Any = None

    def __init__(self, ranks: Union[Iterable[int], Any]) -> None:
        self.ranks: Optional[List[int]] = None
        if hasattr(ranks, "Get_rank"):
            self.mpi_comm = ranks
            return
        if not isinstance(ranks, Iterable):
            raise ValueError(f"a process set is made of ranks, or of a communicator of mpi4py, not of "
                             f"{ranks!r}")
        numbers = [whole_number(rank, "a rank of a process set") for rank in ranks]
        self.ranks = sorted(set(numbers))
        if len(self.ranks) != len(numbers):
            raise ValueError(f"a process set names a rank twice: {numbers}")

    def _known(self) -> int:
        if self.process_set_id is None:
            raise ValueError(f"{self} has not been added; use add_process_set or give it to init")
        return self.process_set_id

    def size(self) -> Optional[int]:
        """Returns how many ranks it has; None before it was added."""
        return None if self.process_set_id is None else len(self.ranks or ())

    def rank(self) -> Optional[int]:
        """Returns this process's place in the set; None before it was added. ValueError where this
        process is not in it."""
        if self.process_set_id is None:
            return None
        if not self.included():
            raise ValueError(f"rank {_identity.rank()} is not in {self}")
        return (self.ranks or []).index(_identity.rank())

    def included(self) -> Optional[bool]:
        """Returns whether this process is in the set, added or not; None where its ranks are not
        known yet, which is so for a communicator's set and for that of all ranks."""
        return None if self.ranks is None else _identity.rank() in self.ranks

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"


class _GlobalProcessSet(ProcessSet):
    """The set of all ranks. It exists before init, when its ranks are not known yet."""
    process_set_id = 0

    def __init__(self) -> None:
        self.ranks = None


global_process_set = _GlobalProcessSet()


def check_process_set(process_set: Any) -> ProcessSet:
    """Returns the set. ValueError for what is no process set, or was not added."""
    if not isinstance(process_set, ProcessSet):
        raise ValueError(f"process_set={process_set!r} is no ProcessSet; see add_process_set")
    process_set._known()
    return process_set
