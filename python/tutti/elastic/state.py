# SPDX-License-Identifier: Apache-2.0
"""What of a training run is kept: committed on every rank, restored after a failure, synchronised
from the rank that is furthest. One thread."""

from __future__ import annotations

import copy
from typing import Any, Callable, Dict, List

from tutti import _basics, _elastic
from tutti.exceptions import HostsUpdatedInterrupt


class State:
    """The interface. commit() remembers, restore() goes back, sync() makes all ranks as the one
    that is furthest, which has committed most often.

    A failure can reach one rank before a commit and another behind it. Both restore what they have;
    it is the later commit that goes on, on all ranks.
    """

    def __init__(self) -> None:
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
        if not _elastic.is_elastic():
            return self._end_exchange(begun, False)
        launcher = _elastic.launcher()
        latest = self._largest(launcher.noticed, "elastic.notice")
        return self._end_exchange(begun, latest > launcher.generation.notice)

    def _begin_exchange(self) -> Any:
        """For subclasses that have more to tell: begins operations."""

    def _end_exchange(self, begun: Any, changed: bool) -> bool:
        """Waits for what _begin_exchange began."""
        return changed

    def _largest(self, number: int, name: str) -> int:
        """The largest of the ranks' numbers. (Which array library carries it is up to subclasses;
        imported late, so that one without the other will do.)"""
        from tutti import numpy as hvd
        return int(hvd.allreduce([number], name=name, op=_basics.Max)[0])

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

    def __init__(self, **values: Any) -> None:
        super().__init__()
        self._saved: Dict[str, Any] = dict(values)
        for name, value in values.items():
            setattr(self, name, value)
        ObjectState.save(self)

    def save(self) -> None:
        self._saved = {name: copy.deepcopy(getattr(self, name)) for name in self._saved}

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
        ObjectState.save(self)
        self._saved, self._commits = self._broadcast_object((self._saved, self._commits), root,
                                                            "elastic.objects")
        ObjectState.restore(self)
        self._kept = False

    def _broadcast_object(self, obj: Any, root: int, name: str) -> Any:
        from tutti import numpy as hvd
        return hvd.broadcast_object(obj, root, name)

    def _allgather_object(self, obj: Any, name: str) -> List[Any]:
        from tutti import numpy as hvd
        return hvd.allgather_object(obj, name)
