# SPDX-License-Identifier: Apache-2.0
"""Broadcasts of variables, and of objects."""

from __future__ import annotations

from typing import Any, Iterable, List, Optional

import tutti.numpy as on_arrays
from tutti._basics import ProcessSet, global_process_set
from tutti.tensorflow import mpi_ops


def broadcast_variables(variables: Iterable[Any], root_rank: int,
                        process_set: ProcessSet = global_process_set,
                        inplace: bool = False) -> None:
    """Assigns the root's values to the variables, of TensorFlow or Keras. `inplace` is Horovod's
    and not needed."""
    mpi_ops.broadcast_(list(variables), root_rank, process_set=process_set)


def broadcast_object(obj: Any, root_rank: int = 0, session: Any = None, name: Optional[str] = None,
                     process_set: ProcessSet = global_process_set) -> Any:
    """Does tutti.numpy.broadcast_object. There are no sessions."""
    return on_arrays.broadcast_object(obj, root_rank, name, process_set)


def allgather_object(obj: Any, session: Any = None, name: Optional[str] = None,
                     process_set: ProcessSet = global_process_set) -> List[Any]:
    """Does tutti.numpy.allgather_object. There are no sessions."""
    return on_arrays.allgather_object(obj, name, process_set)
