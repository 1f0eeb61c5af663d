# SPDX-License-Identifier: Apache-2.0
"""Horovod's callbacks for Keras' fit."""

from __future__ import annotations

from typing import Any, Dict, Optional, Set

import keras
import numpy as np

import tutti.numpy as on_arrays
from tutti.tensorflow.functions import broadcast_variables


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Gives all ranks the root's weights and optimizer state after the first batch, by which all of
    them are there."""

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self.root_rank = root_rank
        self._done = False
        self._local: Set[int] = set()

    def register_local_var(self, variable: Any) -> None:
        """Leaves a variable to this rank."""
        self._local.add(id(variable))

    def on_train_batch_end(self, batch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        if self._done:
            return
        self._done = True
        variables = {id(variable): variable for variable in
                     (*self.model.variables, *self.model.optimizer.variables)}
        broadcast_variables([variable for number, variable in variables.items()
                             if number not in self._local], self.root_rank)


class MetricAverageCallback(keras.callbacks.Callback):
    """Averages the metrics of an epoch over the ranks, before other callbacks that come later in
    the list see them."""

    def __init__(self, device: str = "") -> None:
        super().__init__()

    def on_epoch_end(self, epoch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        if not logs:
            return
        names = sorted(logs)
        means = on_arrays.allreduce(np.array([float(logs[name]) for name in names]))
        logs.update(zip(names, means.tolist()))
