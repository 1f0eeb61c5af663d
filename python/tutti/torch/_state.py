# SPDX-License-Identifier: Apache-2.0
"""Optimizer states that are loaded without new objects: whoever holds an optimizer's groups or its
state (a learning rate scheduler made before the optimizer was wrapped, the optimizer that was) goes
on holding what is in use."""

from __future__ import annotations

from typing import Any, Callable

import torch


def load_in_place(optimizer: torch.optim.Optimizer, load: Callable[[], None]) -> None:
    """Runs `load`, which is a load_state_dict of `optimizer`, and writes what it brought into the
    groups and the state that were there before."""
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
