# SPDX-License-Identifier: Apache-2.0
"""Horovod's handlers, by which a program of its own says how a TorchState keeps values of a type.

    set_handler_registry([(MyType, MyHandler), *get_handler_registry()])

A handler is constructed with the value; its save, restore and sync do what the state's own do. The
handlers of models, optimizers and samplers are there to be derived from; where they stand in the
registry unchanged, the state itself keeps such values.
"""

from __future__ import annotations

import copy
from typing import Any, List, Tuple, Type

import torch

from tutti.torch import functions
from tutti.torch.elastic.sampler import ElasticSampler


class StateHandler:
    """The interface of handlers. `root_rank` is the rank whose value goes on, set before sync."""

    root_rank = 0

    def __init__(self, value: Any) -> None:
        self.value = value

    def save(self) -> None:
        """Remembers the value."""
        raise NotImplementedError("a StateHandler needs save")

    def restore(self) -> None:
        """Sets the value back to the remembered value."""
        raise NotImplementedError("a StateHandler needs restore")

    def sync(self) -> None:
        """Gives all ranks the value of `root_rank`."""
        raise NotImplementedError("a StateHandler needs sync")

    def set_value(self, value: Any) -> None:
        """Replaces the value."""
        self.value = value
        self.save()


class _StateDictHandler(StateHandler):
    """Handles objects with state_dict and load_state_dict."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.save()

    def save(self) -> None:
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        self.value.load_state_dict(copy.deepcopy(self._saved))


class ModelStateHandler(_StateDictHandler):
    """Handles a torch.nn.Module."""

    def sync(self) -> None:
        functions.broadcast_parameters(self.value.state_dict(), self.root_rank)
        self.save()


class OptimizerStateHandler(_StateDictHandler):
    """Handles a torch.optim.Optimizer."""

    def sync(self) -> None:
        functions.broadcast_optimizer_state(self.value, self.root_rank)
        self.save()


class SamplerStateHandler(_StateDictHandler):
    """Handles an ElasticSampler: samples that any rank has processed count as processed."""

    def sync(self) -> None:
        states = functions.allgather_object(self.value.state_dict(), "elastic.sampler")
        processed = set().union(*[state["processed_indices"] for state in states])
        self.value.load_state_dict({"epoch": states[self.root_rank]["epoch"],
                                    "processed_indices": processed})
        self.save()


Registry = List[Tuple[type, Type[StateHandler]]]
_BUILT_IN: Registry = [(torch.nn.Module, ModelStateHandler),
                       (torch.optim.Optimizer, OptimizerStateHandler),
                       (ElasticSampler, SamplerStateHandler)]
_registry: Registry = list(_BUILT_IN)


def get_handler_registry() -> Registry:
    """Returns pairs of a type and the handler of its values; the first that fits counts."""
    return _registry


def set_handler_registry(registry: Registry) -> None:
    """Sets the pairs for states that are made from now on."""
    global _registry
    _registry = registry


def special_handler(value: Any) -> Any:
    """Returns the program's own handler for the value; None for a value that the state keeps by
    itself."""
    for kind, handler in _registry:
        if isinstance(value, kind):
            return None if (kind, handler) in _BUILT_IN else handler(value)
    return None
