# SPDX-License-Identifier: Apache-2.0
"""tutti.elastic's states with PyTorch's models, optimizers and samplers. One thread."""

from __future__ import annotations

import copy
from typing import Any, Dict, List, Optional

import torch

from tutti import _basics, elastic
from tutti.torch import functions, mpi_ops
from tutti.torch.elastic.handlers import (ModelStateHandler, OptimizerStateHandler,
                                          SamplerStateHandler, StateHandler, get_handler_registry,
                                          set_handler_registry, special_handler)
from tutti.torch.elastic.sampler import ElasticSampler


# Horovod has these names in this module.
__all__ = ["ElasticSampler", "ModelStateHandler", "ObjectState", "OptimizerStateHandler",
           "SamplerStateHandler", "StateHandler", "TorchState", "get_handler_registry",
           "set_handler_registry"]


class ObjectState(elastic.ObjectState):
    """Keeps plain values and tensors as attributes: ObjectState(epoch=0, batch=0).epoch."""

    def _broadcast_object(self, obj: Any, root: int, name: str) -> Any:
        return functions.broadcast_object(obj, root, name)

    def _allgather_object(self, obj: Any, name: str) -> List[Any]:
        return functions.allgather_object(obj, name)


class TorchState(ObjectState):
    """Keeps a model, an optimizer, samplers (as keyword arguments), and plain values.

    commit shares what the ranks' ElasticSamplers have processed, so that nothing is lost when a
    rank
    dies: the model that was committed has seen exactly the samples that the
    sampler calls processed. sync gives all ranks the model, the optimizer and the samplers of the
    rank that is furthest. Values of types for which set_handler_registry named a handler are kept
    by it. """

    def __init__(self, model: Optional[torch.nn.Module] = None,
                 optimizer: Optional[torch.optim.Optimizer] = None, **values: Any) -> None:
        values.update(model=model, optimizer=optimizer)
        made = {name: special_handler(value) for name, value in values.items()}
        self._handlers: Dict[str, StateHandler] = {
            name: handler for name, handler in made.items() if handler is not None}
        for name in self._handlers:
            self.__dict__[name] = values.pop(name)
        self._handled: Dict[str, Any] = {name: value for name, value in values.items()
                                         if hasattr(value, "state_dict")}
        self._saved_states: Dict[str, Any] = {}
        super().__init__(**{name: value for name, value in values.items()
                            if name not in self._handled})
        self.__dict__.update(self._handled)
        self.save()

    def __setattr__(self, name: str, value: Any) -> None:
        """A model, an optimizer and their like may be replaced; the new one is saved as it is."""
        handled, saved = self.__dict__.get("_handled", {}), self.__dict__.get("_saved", {})
        if name in self.__dict__.get("_handlers", {}):
            self._handlers[name].set_value(value)
        elif (name in handled or name in saved) and hasattr(value, "state_dict"):
            saved.pop(name, None)
            handled[name] = value
            self._saved_states[name] = copy.deepcopy(value.state_dict())
        elif name in handled:  # It is a plain value from now on.
            del handled[name], self._saved_states[name]
            saved[name] = copy.deepcopy(value)
        super().__setattr__(name, value)

    def _samplers(self) -> Dict[str, ElasticSampler]:
        return {name: value for name, value in sorted(self._handled.items())
                if isinstance(value, ElasticSampler)}

    def _begin_exchange(self) -> Any:
        if not _basics.job().is_initialized():
            return []
        return [mpi_ops.allgather_async(sampler.unshared(), f"elastic.{name}.processed")
                for name, sampler in self._samplers().items()]

    def _end_exchange(self, begun: Any, changed: bool) -> bool:
        # All are received before any is used, because a failure must leave everything as it was.
        shared = [mpi_ops.synchronize(handle) for handle in begun]
        for sampler, indices in zip(self._samplers().values(), shared):
            sampler.take_shared(indices)
        return changed

    def save(self) -> None:
        self._saved_states = {name: copy.deepcopy(value.state_dict())
                              for name, value in self._handled.items()}
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        for name, value in self._handled.items():
            value.load_state_dict(copy.deepcopy(self._saved_states[name]))
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        standings = self._allgather_object(self._standing(), "elastic.standing")
        root = standings.index(max(standings))
        for name, value in sorted(self._handled.items()):
            if isinstance(value, ElasticSampler):
                self._sync_sampler(name, value, standings)
            elif isinstance(value, torch.nn.Module):
                functions.broadcast_parameters(value.state_dict(), root)
            elif isinstance(value, torch.optim.Optimizer):
                functions.broadcast_optimizer_state(value, root)
            else:
                value.load_state_dict(
                    functions.broadcast_object(value.state_dict(), root, f"elastic.{name}"))
        self._sync_handlers_and_objects(root)
        self.save()

    def _sync_handlers_and_objects(self, root: int) -> None:
        """Lets handlers save what they synchronise. Where a failure stops that, they keep what they
        had saved before, as the rest of the state does."""
        before = {name: dict(vars(handler)) for name, handler in self._handlers.items()}
        try:
            for _, handler in sorted(self._handlers.items()):
                handler.root_rank = root
                handler.sync()
            self._sync_objects(root)
        except BaseException:
            for name, handler in self._handlers.items():
                vars(handler).update(before[name])
            raise

    def reset(self) -> None:
        for sampler in self._samplers().values():
            sampler.reset()
        for value in self._handled.values():
            # Reductions of the job that ended are forgotten.
            getattr(value, "_forget", lambda: None)()

    def _sync_sampler(self, name: str, sampler: ElasticSampler, standings: List[int]) -> None:
        """Drops what ranks behind the furthest have processed since, which is not in the model that
        goes on."""
        states = self._allgather_object(sampler.state_dict(), f"elastic.{name}")
        furthest = [state for state, standing in zip(states, standings)
                    if standing == max(standings)]
        processed = set().union(*[state["processed_indices"] for state in furthest])
        sampler.load_state_dict({"epoch": furthest[0]["epoch"], "processed_indices": processed})
