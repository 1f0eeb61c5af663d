# SPDX-License-Identifier: Apache-2.0
"""Tells a thread that another thread uses its group: the ranks have no common order of the calls that
two threads make at the same time, and calls of equal size would pair up crosswise."""

from __future__ import annotations

import functools
import threading
from dataclasses import dataclass
from typing import Any, Callable, Optional


@dataclass
class _Waiting:
    """A call whose thread waits for its end at once. work: None until the call has begun."""
    thread: int
    title: str
    work: Any = None

    def is_over(self) -> bool:
        return self.work is not None and self.work.is_completed()


class OneThread:
    """The call of a group whose thread waits, as CallMark in _c10d/ordered.cc. Any thread may use the
    object."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # Guards the member below.
        self._waiting: Optional[_Waiting] = None

    def begin(self, title: str, waits: bool) -> Optional[_Waiting]:
        """Returns the mark of a call that waits, which the caller ends by forget() where the call
        fails. RuntimeError while another thread waits in a call."""
        me = threading.get_ident()
        with self._lock:
            other = self._waiting
            if other is not None and other.thread != me and not other.is_over():
                raise RuntimeError(
                    f"two threads of this process use one group: a thread waits in {other.title} "
                    f"while another thread calls {title}. The ranks have no common order of such "
                    "calls; give each thread a group of its own (torch.distributed.new_group)")
            if not waits:
                return None
            self._waiting = _Waiting(me, title)
            return self._waiting

    def forget(self, mark: Optional[_Waiting]) -> None:
        with self._lock:
            if self._waiting is mark:
                self._waiting = None


def collective(title: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Returns a decorator for the methods of a group that torch.distributed calls on all ranks. The
    group has a OneThread as `one_thread`. A method's last argument says whether the caller waits;
    older versions of PyTorch do not tell."""
    def decorate(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(group: Any, *arguments: Any, **named: Any) -> Any:
            options = named.get("opts", arguments[-1] if arguments else None)
            mark = group.one_thread.begin(title, not getattr(options, "asyncOp", True))
            try:
                work = method(group, *arguments, **named)
            except BaseException:
                group.one_thread.forget(mark)
                raise
            if mark is not None:
                mark.work = work
            return work
        return call
    return decorate
