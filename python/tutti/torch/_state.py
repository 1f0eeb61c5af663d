# SPDX-License-Identifier: Apache-2.0
"""Loads optimizer states without making new objects. Objects that refer to an optimizer's groups or
state, such as a learning rate scheduler made before the optimizer was wrapped, thus keep referring
to the groups and state in use."""

from __future__ import annotations

from typing import Any, Callable

import torch


def load_in_place(optimizer: torch.optim.Optimizer, load: Callable[[], None]) -> None:
    """Runs `load`, which is a load_state_dict of `optimizer`, and writes the loaded values into the
    earlier groups and state."""
    groups, state = optimizer.param_groups, optimizer.state
    load()
    brought: Any = optimizer.param_groups, optimizer.state
    if brought[0] is not groups:
        for old, new in zip(groups, brought[0]):
            old.update(new)
        optimizer.param_groups = groups
    if brought[1] is not state:
        state.clear()
        state.update(brought[1])
        optimizer.state = state
