# SPDX-License-Identifier: Apache-2.0
"""The loop around an elastic training function."""

from __future__ import annotations

import functools
import os
from typing import Any, Callable

from tutti import _basics
from tutti.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from tutti.torch.elastic.state import State


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps func(state, ...): synchronises the state, calls func, and after a failure begins anew.

    HorovodInternalError: back to the last commit. HostsUpdatedInterrupt: on with the state as it
    is. Either way the job is shut down and initialised again by all ranks, the state's reset
    callbacks run, and func is called again; at most HOROVOD_ELASTIC_RESET_LIMIT times (100 without
    it), so that a fault that stays ends the job.

    All ranks must still be there. Where one is gone the RuntimeError says so, after the time that
    ranks have to meet.
    """
    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Any:
        limit = int(os.environ.get("HOROVOD_ELASTIC_RESET_LIMIT", "100"))
        resets, skip_sync = 0, False
        while True:
            try:
                if not skip_sync:
                    state.sync()
                return func(state, *args, **kwargs)
            except HorovodInternalError as error:
                state.restore()
                reason, skip_sync = error, False
            except HostsUpdatedInterrupt as interrupt:
                reason, skip_sync = interrupt, interrupt.skip_sync
            resets += 1
            if resets > limit:
                raise RuntimeError(f"the job began anew {limit} times, which is the limit "
                                   f"(HOROVOD_ELASTIC_RESET_LIMIT)") from reason
            _begin_anew(state, reason)
    return wrapper


def _begin_anew(state: State, reason: Exception) -> None:
    job = _basics.job()
    job.shutdown()
    try:
        job.init()
    except ValueError as error:
        raise RuntimeError("the job could not begin anew; jobs whose ranks come and go are not "
                           f"there yet: {error}") from reason
    state.on_reset()
