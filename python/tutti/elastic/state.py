# SPDX-License-Identifier: Apache-2.0
"""The kept state of a training run: committed on every rank, restored after a failure, synchronised
from the furthest rank. A state belongs to one thread."""

from __future__ import annotations

import copy
from typing import Any, Callable, Dict, List, Optional

from tutti import _basics, _elastic
from tutti.exceptions import HostsUpdatedInterrupt


class _Notices:
    """The queue of notices that a state of Horovod's has, for programs that ask whether notices
    wait for the next commit."""

    def __init__(self, state: "State") -> None:
        self._state = state

    def empty(self) -> bool:
        """Returns whether this rank has seen nothing that ends the generation."""
        return not self._state._sees_notice()


class State:
    """The interface of states. commit() remembers the state, restore() goes back to it, and sync()
    gives all ranks the state of the one that is furthest, which has committed most often.

    A failure can reach one rank before a commit and another behind it. Both restore what they have,
    and the later commit goes on, on all ranks.

    bcast_object and get_rank are Horovod's and not needed. Subclasses written for Horovod find
    them, or the job's own functions, as _bcast_object(obj, root_rank=0, name=None) and _rank(). """

    def __init__(self, bcast_object: Optional[Callable[..., Any]] = None,
                 get_rank: Optional[Callable[[], int]] = None) -> None:
        self._bcast_object = bcast_object or self._broadcast_from
        self._rank = get_rank or _basics.job().rank
        self._told = False  # whether on_hosts_updated was called
        self._host_messages = _Notices(self)
        self._reset_callbacks: List[Callable[[], None]] = []
        self._commits = 0
        self._kept = False  # whether the state went on without a return to the last commit

    def register_reset_callbacks(self, callbacks: List[Callable[[], None]]) -> None:
        """Adds functions that are called after the job began anew, before training goes on."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Called when the job has begun anew."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: Any, update_res: Any = None) -> None:
        """Makes the next commit or check_host_updates raise HostsUpdatedInterrupt on all ranks,
        when any of them was told. Notices of Tutti's own launcher need no call. Threads: any."""
        self._told = True

    def commit(self) -> None:
        """Remembers the present state, in memory, and raises HostsUpdatedInterrupt on all ranks
        when ranks want to come or go. All ranks call."""
        changed = self._exchange()
        self.save()
        self._commits += 1
        if changed:
            raise HostsUpdatedInterrupt()

    def check_host_updates(self) -> None:
        """Raises HostsUpdatedInterrupt on all ranks when ranks want to come or go. All ranks
        call."""
        if self._exchange():
            raise HostsUpdatedInterrupt()

    def _exchange(self) -> bool:
        """Returns the ranks' common finding at a commit: whether any rank has seen a notice of the
        launcher that this generation does not take account of."""
        begun = self._begin_exchange()
        told, job = self._sees_notice(), _basics.job()
        if job.is_initialized() and job.size() > 1:
            told = max(job.tell_all([int(told)], "elastic.notice")) > 0
        if told:
            self._told = False
        return self._end_exchange(begun, told)

    def _sees_notice(self) -> bool:
        if self._told or not _elastic.is_elastic():
            return self._told
        launcher = _elastic.launcher()
        return launcher.noticed > launcher.generation.notice

    def _begin_exchange(self) -> Any:
        """Begins operations of subclasses that have more to tell."""

    def _end_exchange(self, begun: Any, changed: bool) -> bool:
        """Waits for the operations of _begin_exchange."""
        return changed

    def _broadcast_from(self, obj: Any, root_rank: int = 0, name: Optional[str] = None) -> Any:
        return self._broadcast_object(obj, root_rank, name or "elastic.object")

    def _broadcast_object(self, obj: Any, root: int, name: str) -> Any:
        from tutti import numpy as hvd
        return hvd.broadcast_object(obj, root, name)

    def kept(self) -> None:
        """Called when the job is about to begin anew with the present state."""
        self._kept = True

    def restored(self) -> None:
        """Called when the job is about to begin anew with the committed state."""
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
        """Called when the job begins anew, for subclasses."""


class ObjectState(State):
    """Keeps plain values and arrays as attributes: ObjectState(epoch=0, batch=0).epoch. They are
    pickled when they are synchronised, and ranks must therefore trust one another."""

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
        """Returns the rank whose state goes on, the same on all ranks."""
        standings = self._allgather_object(self._standing(), "elastic.standing")
        return standings.index(max(standings))

    def _sync_objects(self, root: int) -> None:
        # The committed state stays until everything has arrived, because the rest of the state goes
        # back to the commit when a rank dies meanwhile.
        self._saved, self._commits = self._broadcast_object((self._values(), self._commits), root,
                                                            "elastic.objects")
        ObjectState.restore(self)
        self._kept = False

    def _allgather_object(self, obj: Any, name: str) -> List[Any]:
        from tutti import numpy as hvd
        return hvd.allgather_object(obj, name)
