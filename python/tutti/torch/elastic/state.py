# SPDX-License-Identifier: Apache-2.0
"""What of a training run is kept: committed on every rank, restored after a failure, synchronised
from rank 0. One thread."""

from __future__ import annotations

import copy
from typing import Any, Callable, Dict, List, Optional

import torch

from tutti.torch import functions
from tutti.torch.elastic.sampler import ElasticSampler


class State:
    """The interface. commit() remembers, restore() goes back, sync() makes all ranks as rank 0."""

    def __init__(self) -> None:
        self._reset_callbacks: List[Callable[[], None]] = []

    def register_reset_callbacks(self, callbacks: List[Callable[[], None]]) -> None:
        """Functions that are called after the job began anew, before training goes on."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """The job began anew."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def commit(self) -> None:
        """Remembers the state as it is, in memory."""
        self.save()

    def save(self) -> None:
        raise NotImplementedError("a State needs save")

    def restore(self) -> None:
        raise NotImplementedError("a State needs restore")

    def sync(self) -> None:
        raise NotImplementedError("a State needs sync")

    def reset(self) -> None:
        """What a subclass has to do when the job begins anew."""


class ObjectState(State):
    """Plain values as attributes: ObjectState(epoch=0, batch=0).epoch."""

    def __init__(self, **values: Any) -> None:
        super().__init__()
        self._saved: Dict[str, Any] = dict(values)
        for name, value in values.items():
            setattr(self, name, value)
        ObjectState.save(self)

    def save(self) -> None:
        self._saved = {name: copy.deepcopy(getattr(self, name)) for name in self._saved}

    def restore(self) -> None:
        for name, value in self._saved.items():
            setattr(self, name, copy.deepcopy(value))

    def sync(self) -> None:
        ObjectState.save(self)
        self._saved = functions.broadcast_object(self._saved, 0, "elastic.objects")
        ObjectState.restore(self)


class TorchState(ObjectState):
    """A model, an optimizer, samplers (as keyword arguments), and plain values.

    sync gives all ranks rank 0's model and optimizer, and to every ElasticSampler what any rank has
    processed.
    """

    def __init__(self, model: Optional[torch.nn.Module] = None,
                 optimizer: Optional[torch.optim.Optimizer] = None, **values: Any) -> None:
        self._handled: Dict[str, Any] = {name: value for name, value in values.items()
                                         if hasattr(value, "state_dict")}
        if model is not None:
            self._handled["model"] = model
        if optimizer is not None:
            self._handled["optimizer"] = optimizer
        self._saved_states: Dict[str, Any] = {}
        super().__init__(**{name: value for name, value in values.items()
                            if name not in self._handled})
        for name, value in self._handled.items():
            setattr(self, name, value)
        self.save()

    def save(self) -> None:
        self._saved_states = {name: copy.deepcopy(value.state_dict())
                              for name, value in self._handled.items()}
        super().save()

    def restore(self) -> None:
        for name, value in self._handled.items():
            value.load_state_dict(copy.deepcopy(self._saved_states[name]))
        super().restore()

    def sync(self) -> None:
        for name, value in sorted(self._handled.items()):
            if isinstance(value, ElasticSampler):
                self._sync_sampler(name, value)
            elif isinstance(value, torch.nn.Module):
                functions.broadcast_parameters(value.state_dict(), 0)
            elif isinstance(value, torch.optim.Optimizer):
                functions.broadcast_optimizer_state(value, 0)
            else:
                value.load_state_dict(
                    functions.broadcast_object(value.state_dict(), 0, f"elastic.{name}"))
        super().sync()
        self.save()

    def reset(self) -> None:
        for value in self._handled.values():
            if isinstance(value, ElasticSampler):
                value.reset()

    def _sync_sampler(self, name: str, sampler: ElasticSampler) -> None:
        states = functions.allgather_object(sampler.state_dict(), f"elastic.{name}")
        processed = set().union(*[state["processed_indices"] for state in states])
        sampler.load_state_dict({"epoch": states[0]["epoch"], "processed_indices": processed})
