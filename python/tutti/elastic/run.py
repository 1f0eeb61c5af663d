# SPDX-License-Identifier: Apache-2.0
"""The loop around an elastic training function."""

from __future__ import annotations

import functools
import os
from typing import Any, Callable

from tutti import _basics, _elastic
from tutti.elastic.state import State
from tutti.exceptions import HorovodInternalError, HostsUpdatedInterrupt


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps func(state, ...): synchronises the state, calls func, and when the ranks change or an
    operation fails begins anew with the ranks that there are then.

    After a HorovodInternalError the state goes back to the last commit; after a
    HostsUpdatedInterrupt it stays as it is. Either way the job is shut down and initialised again,
    the state's reset callbacks run, and func is called again with the same arguments.

    Under `tutti run --min-np` ranks that died are missing from then on, and newcomers take part; so
    it is under Horovod's own elastic launcher, where newcomers wait for the next failure.
    Under other launchers all ranks must still be there; where one is gone the RuntimeError says so,
    after the time that ranks have to meet, and so it does when the job began anew
    HOROVOD_ELASTIC_RESET_LIMIT times (100 without it). An elastic launcher has --reset-limit.
    """
    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Any:
        limit = int(os.environ.get("HOROVOD_ELASTIC_RESET_LIMIT", "100"))
        resets, skip_sync = 0, False
        reason: Exception
        _basics.job().init()
        while True:
            try:
                if not skip_sync:
                    state.sync()
                return func(state, *args, **kwargs)
            except HorovodInternalError as error:
                # Shut down first, so that nothing that is still pending is waited for.
                _basics.job().shutdown()
                state.restore()
                state.restored()
                reason, skip_sync = error, False
            except HostsUpdatedInterrupt as interrupt:
                state.kept()
                # Newcomers have no state yet, so no rank may skip this.
                reason, skip_sync = interrupt, interrupt.skip_sync and not _elastic.ranks_may_change()
            resets += 1
            if resets > limit and not _elastic.ranks_may_change():
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
        raise RuntimeError(f"the job could not begin anew: {error}; ranks that are gone can be done "
                           "without under tutti run --min-np") from reason
    state.on_reset()
