# SPDX-License-Identifier: Apache-2.0
"""What of a training run is kept: committed on every rank, restored after a failure, synchronised
from the rank that is furthest. One thread."""

from __future__ import annotations

import copy
from typing import Any, Callable, Dict, List, Optional

from tutti import _basics, _elastic
from tutti.exceptions import HostsUpdatedInterrupt


class State:
    """The interface. commit() remembers, restore() goes back, sync() makes all ranks as the one
    that is furthest, which has committed most often.

    A failure can reach one rank before a commit and another behind it. Both restore what they have;
    it is the later commit that goes on, on all ranks.

    bcast_object, get_rank: Horovod's, and not needed; what a subclass of its kind finds under
    _bcast_object(obj, root_rank=0, name=None) and _rank() are these, or the job's own.
    """

    def __init__(self, bcast_object: Optional[Callable[..., Any]] = None,
                 get_rank: Optional[Callable[[], int]] = None) -> None:
        self._bcast_object = bcast_object or self._broadcast_from
        self._rank = get_rank or _basics.job().rank
        self._told = False  # by on_hosts_updated
        self._reset_callbacks: List[Callable[[], None]] = []
        self._commits = 0
        self._kept = False  # went on from the last commit, and was not set back to it

    def register_reset_callbacks(self, callbacks: List[Callable[[], None]]) -> None:
        """Functions that are called after the job began anew, before training goes on."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """The job began anew."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: Any, update_res: Any = None) -> None:
        """Makes the next commit or check_host_updates raise HostsUpdatedInterrupt on all ranks, when
        any of them was told. Notices of Tutti's own launcher need no call. Threads: any."""
        self._told = True

    def commit(self) -> None:
        """Remembers the state as it is, in memory, and raises HostsUpdatedInterrupt on all ranks
        when ranks want to come or go. All ranks call it."""
        changed = self._exchange()
        self.save()
        self._commits += 1
        if changed:
            raise HostsUpdatedInterrupt()

    def check_host_updates(self) -> None:
        """Raises HostsUpdatedInterrupt on all ranks when ranks want to come or go. All ranks call
        it."""
        if self._exchange():
            raise HostsUpdatedInterrupt()

    def _exchange(self) -> bool:
        """What the ranks tell one another at a commit: whether anyone has seen a notice of the
        launcher that this generation does not take account of."""
        begun = self._begin_exchange()
        told, job = self._told, _basics.job()
        if _elastic.is_elastic():
            launcher = _elastic.launcher()
            told = told or launcher.noticed > launcher.generation.notice
        if job.is_initialized() and job.size() > 1:
            told = max(job.tell_all([int(told)], "elastic.notice")) > 0
        if told:
            self._told = False
        return self._end_exchange(begun, told)

    def _begin_exchange(self) -> Any:
        """For subclasses that have more to tell: begins operations."""

    def _end_exchange(self, begun: Any, changed: bool) -> bool:
        """Waits for what _begin_exchange began."""
        return changed

    def _broadcast_from(self, obj: Any, root_rank: int = 0, name: Optional[str] = None) -> Any:
        return self._broadcast_object(obj, root_rank, name or "elastic.object")

    def _broadcast_object(self, obj: Any, root: int, name: str) -> Any:
        from tutti import numpy as hvd
        return hvd.broadcast_object(obj, root, name)

    def kept(self) -> None:
        """The job is about to begin anew, with the state as it is."""
        self._kept = True

    def restored(self) -> None:
        """The job is about to begin anew, with what was committed."""
        self._kept = False

    def _standing(self) -> int:
        return 2 * self._commits + int(self._kept)

    def save(self) -> None:
        raise NotImplementedError("a State needs save")

    def restore(self) -> None:
        raise NotImplementedError("a State needs restore")

    def sync(self) -> None:
        raise NotImplementedError("a State needs sync")

    def reset(self) -> None:
        """What a subclass has to do when the job begins anew."""


class ObjectState(State):
    """Plain values and arrays as attributes: ObjectState(epoch=0, batch=0).epoch. They are pickled
    when they are synchronised: only among ranks that trust one another."""

    def __init__(self, bcast_object: Optional[Callable[..., Any]] = None,
                 get_rank: Optional[Callable[[], int]] = None, **values: Any) -> None:
        super().__init__(bcast_object, get_rank)
        self._saved: Dict[str, Any] = dict(values)
        for name, value in values.items():
            setattr(self, name, value)
        ObjectState.save(self)

    def save(self) -> None:
        self._saved = self._values()

    def _values(self) -> Dict[str, Any]:
        return {name: copy.deepcopy(getattr(self, name)) for name in self._saved}

    def restore(self) -> None:
        for name, value in self._saved.items():
            setattr(self, name, copy.deepcopy(value))

    def sync(self) -> None:
        self._sync_objects(self._furthest())

    def _furthest(self) -> int:
        """The rank whose state goes on; the same on all ranks."""
        standings = self._allgather_object(self._standing(), "elastic.standing")
        return standings.index(max(standings))

    def _sync_objects(self, root: int) -> None:
        # What was committed stays until all is there: the rest of the state goes back to it where a
        # rank dies meanwhile.
        self._saved, self._commits = self._broadcast_object((self._values(), self._commits), root,
                                                            "elastic.objects")
        ObjectState.restore(self)
        self._kept = False

    def _allgather_object(self, obj: Any, name: str) -> List[Any]:
        from tutti import numpy as hvd
        return hvd.allgather_object(obj, name)
