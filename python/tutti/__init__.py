# SPDX-License-Identifier: Apache-2.0
"""Tutti: collectives between the ranks of a job.

tutti.torch   Horovod's API for PyTorch: `import tutti.torch as hvd`
tutti.numpy   the same for NumPy arrays, and whatever NumPy can see without a copy
tutti.run     runs a function on ranks of its own
tutti.Communicator   the collectives themselves, without names and negotiation

`tutti run -n 4 python3 train.py` starts ranks on this machine; see docs/python.md.
"""

from __future__ import annotations

from typing import Any

from tutti._basics import ProcessSet, global_process_set
from tutti._version import __version__
from tutti.exceptions import HorovodInternalError, HostsUpdatedInterrupt, TuttiError

__all__ = ["Communicator", "HorovodInternalError", "HostsUpdatedInterrupt", "ProcessSet",
           "TuttiError", "__version__", "global_process_set", "run"]


def __getattr__(name: str) -> Any:
    # Imported when asked for, so that `import tutti` needs no NumPy.
    if name == "Communicator":
        from tutti.communicator import Communicator
        return Communicator
    if name == "run":
        from tutti.runner import run
        return run
    raise AttributeError(f"module 'tutti' has no attribute {name!r}")
