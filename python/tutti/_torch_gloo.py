# SPDX-License-Identifier: Apache-2.0
"""Has groups whose backend is "gloo" work on Tutti, for programs that ask for Gloo by name.

torch.distributed makes such a group's backend by calling the class ProcessGroupGloo, and then looks
whether it got one. Here a class takes that name in torch.distributed.distributed_c10d which makes
Tutti's backend in C++ instead, and counts both as its own. The group keeps the name "gloo" for
everything that asks for it (get_backend, monitored_barrier). Where a rank cannot have the backend in
C++, all ranks of the group take Gloo, and one of them warns.
"""

from __future__ import annotations

import types
import warnings
from datetime import timedelta
from typing import Any, Optional

import torch.distributed.distributed_c10d as c10d
from torch._C._distributed_c10d import Backend


def _ours(store: Any, rank: int, size: int, timeout: Optional[timedelta],
          enable_reconfigure: bool = False) -> Any:
    """Returns Tutti's backend, on all ranks of the group together, or None on all of them. A group
    whose members change is Tutti's alone, because its ranks do not meet here."""
    from tutti.torch import _native
    own = c10d.PrefixStore("tutti", store)
    if enable_reconfigure:
        return _native.create_reconfigurable(
            own, rank, size, c10d.default_pg_timeout if timeout is None else timeout)
    if not _native.agreed(own, rank, size):
        if rank == 0:
            warnings.warn('TUTTI_TORCH_GLOO=1 has no effect on a group: the tutti backend in C++ is '
                          'missing on a rank, and Gloo itself is taken')
        return None
    return _native.create(own, rank, size, c10d.default_pg_timeout if timeout is None else timeout)


def take_its_place() -> None:
    """Has Tutti serve groups of Gloo from now on. Nothing happens in a PyTorch without Gloo."""
    gloo: Any = getattr(c10d, "ProcessGroupGloo", None)
    if gloo is None or getattr(gloo, "_is_tutti", False):
        return

    class Kind(type):
        """Counts backends of both kinds as instances."""

        def __instancecheck__(cls, backend: Any) -> bool:
            return isinstance(backend, gloo) or (
                isinstance(backend, Backend) and backend.name() == "tutti")

        def __getattr__(cls, name: str) -> Any:
            return getattr(gloo, name)

    class ProcessGroupGloo(metaclass=Kind):
        """Makes what a group with the backend "gloo" works on."""

        _is_tutti = True

        def __new__(cls, store: Any, rank: int, size: int, *options: Any, **named: Any) -> Any:
            if options:  # They are Gloo's own, which Tutti does not know.
                return gloo(store, rank, size, *options, **named)
            return _ours(store, rank, size, **named) or gloo(store, rank, size, **named)

    if not hasattr(Backend, "options"):
        # PyTorch notes there a group's name and ranks, for Gloo; Tutti's group reads neither.
        Backend.options = property(lambda _: types.SimpleNamespace())
    c10d.ProcessGroupGloo = ProcessGroupGloo
