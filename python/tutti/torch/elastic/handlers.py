# SPDX-License-Identifier: Apache-2.0
"""How a TorchState keeps a value of a type: Horovod's handlers, for programs that have their own.

    set_handler_registry([(MyType, MyHandler), *get_handler_registry()])

A handler is made of the value; save, restore and sync do with it what the state's own do. Those of
models, optimizers and samplers are here to be derived from; where they stand in the registry as they
are, the state itself keeps such values.
"""

from __future__ import annotations

import copy
from typing import Any, List, Tuple, Type

import torch

from tutti.torch import functions
from tutti.torch.elastic.sampler import ElasticSampler


class StateHandler:
    """The interface. `root_rank` is the rank whose value goes on, set before sync."""

    root_rank = 0

    def __init__(self, value: Any) -> None:
        self.value = value

    def save(self) -> None:
        """Remembers the value."""
        raise NotImplementedError("a StateHandler needs save")

    def restore(self) -> None:
        """Goes back to what was remembered."""
        raise NotImplementedError("a StateHandler needs restore")

    def sync(self) -> None:
        """Gives all ranks the value of `root_rank`."""
        raise NotImplementedError("a StateHandler needs sync")

    def set_value(self, value: Any) -> None:
        """Another value takes the place of this one."""
        self.value = value
        self.save()


class _StateDictHandler(StateHandler):
    """Of what has state_dict and load_state_dict."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.save()

    def save(self) -> None:
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        self.value.load_state_dict(copy.deepcopy(self._saved))


class ModelStateHandler(_StateDictHandler):
    """Of a torch.nn.Module."""

    def sync(self) -> None:
        functions.broadcast_parameters(self.value.state_dict(), self.root_rank)
        self.save()


class OptimizerStateHandler(_StateDictHandler):
    """Of a torch.optim.Optimizer."""

    def sync(self) -> None:
        functions.broadcast_optimizer_state(self.value, self.root_rank)
        self.save()


class SamplerStateHandler(_StateDictHandler):
    """Of an ElasticSampler: what any rank has processed is processed."""

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
    """Pairs of a type and the handler of its values; the first that fits counts."""
    return _registry


def set_handler_registry(registry: Registry) -> None:
    """For states made from now on."""
    global _registry
    _registry = registry


def special_handler(value: Any) -> Any:
    """A handler of the program's own for the value; None where the state keeps it by itself."""
    for kind, handler in _registry:
        if isinstance(value, kind):
            return None if (kind, handler) in _BUILT_IN else handler(value)
    return None
