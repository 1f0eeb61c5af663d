# SPDX-License-Identifier: Apache-2.0
"""DistributedOptimizer: the user's optimizer, whose gradients are those of all ranks.

As soon as a gradient is there its allreduce begins, while the rest of backward goes on; step()
waits for all of them. Threads: hooks run on whatever thread runs backward; everything else belongs
to the caller's.
"""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple, Type

import torch

from tutti import _basics
from tutti._basics import Adasum, Average, ProcessSet, global_process_set
from tutti.torch import mpi_ops
from tutti.torch._reducer import Groups, Passes, Reducer, Settings, checked_passes
from tutti.torch._state import load_in_place
from tutti.torch.compression import Compression


class _Mixin:
    """The additions of both kinds to the user's class, before which the mixin stands in the base
    classes."""

    _settings: Settings
    _passes: Passes

    def _forget(self) -> None:
        """Forgets the begun reductions, because their job or state is gone."""
        self._passes.reset()

    def set_backward_passes_per_step(self, passes: int) -> None:
        """How many backward passes add up before step()."""
        self._passes.reset(checked_passes(passes))

    @property
    def backward_passes_per_step(self) -> int:
        """How many backward passes add up before step()."""
        return self._passes.passes

    @backward_passes_per_step.setter
    def backward_passes_per_step(self, passes: int) -> None:
        self.set_backward_passes_per_step(passes)

    @property
    def op(self) -> int:
        """Returns how gradients are combined: Average, Sum, Adasum, ..."""
        return self._settings.op

    @property
    def gradient_predivide_factor(self) -> float:
        """Returns the divisor of gradients before the sum."""
        return self._settings.predivide

    @property
    def sparse_as_dense(self) -> bool:
        """Returns whether sparse gradients are reduced as dense ones."""
        return self._settings.sparse_as_dense

    @property
    def _parameter_names(self) -> Dict[torch.Tensor, str]:
        """Returns the names of the parameters, under Horovod's name for scripts."""
        return self._settings.names

    @property
    def process_set(self) -> ProcessSet:
        """Returns the process set whose gradients are combined."""
        return self._settings.process_set

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        if self._passes.have_begun():
            raise AssertionError("zero_grad() was called after backward() but before step() or "
                                 "synchronize(), while gradients are being reduced")
        super().zero_grad(*args, **kwargs)  # type: ignore[misc]

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        load = super().load_state_dict  # type: ignore[misc]
        load_in_place(self, lambda: load(*args, **kwargs))

    def add_param_group(self, group: Any) -> None:
        super().add_param_group(group)  # type: ignore[misc]
        groups = self.param_groups  # type: ignore[attr-defined]
        try:
            self._passes.add(self._settings.add(groups[-1]["params"]))
        except ValueError:
            groups.pop()
            raise
        self._take_over(groups[-1:])

    def _take_over(self, groups: List[Any]) -> None:
        """Returns all parameters, including those that are not reduced here, because an earlier
        optimizer might reduce them."""
        for group in groups:
            for p in group["params"]:
                self._passes.take_over(p)


def _followed_by(closure: Callable[[], Any], action: Callable[[], None]) -> Callable[[], Any]:
    """Returns the closure of a step with a call behind it."""
    def whole() -> Any:
        loss = closure()
        action()
        return loss
    return whole


class _Distributed(_Mixin):
    """Steps with the gradients of all ranks."""

    _reducer: Reducer
    _synchronized = False
    _should_synchronize = True

    def _begin(self, settings: Settings) -> None:
        self._settings, self._reducer = settings, Reducer(settings)
        self._passes = self._reducer.passes

    def _forget(self) -> None:
        self._reducer.reset()
        self._synchronized = False

    def synchronize(self) -> None:
        """Waits until all gradients are reduced. step() does so, unless skip_synchronize says not
        to; of use where gradients are looked at, or clipped, before step()."""
        self._reducer.finish()
        self._synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Makes step() not synchronize again, for use after synchronize()."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """Does the step of the user's optimizer. `closure` computes the gradients, which are
        reduced after each call of the closure."""
        whole = closure
        if closure is not None and self._should_synchronize:
            whole = _followed_by(closure, self._reducer.finish)
        elif self._should_synchronize:
            if self._synchronized:
                # Scripts look for Horovod's words, the first of the sentence.
                warnings.warn("optimizer.step() called without optimizer.skip_synchronize() after "
                              "optimizer.synchronize() reduces the gradients a second time; put "
                              "`with optimizer.skip_synchronize():` around step()")
            self.synchronize()
        self._synchronized = False
        return super().step(whole)  # type: ignore[misc]

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        # Reductions under way belong to the state that is replaced.
        if self._passes.have_begun() and _basics.job().is_initialized():
            self._reducer.finish()
        self._forget()
        super().load_state_dict(*args, **kwargs)


class _DistributedAdasum(_Mixin):
    """With op=Adasum ranks step by themselves, and the changes of their parameters are combined."""

    def _begin(self, settings: Settings) -> None:
        self._settings = settings
        self._passes = Passes(settings.passes, settings.parameters)

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """Does the step of the user's optimizer, and combines it with the steps of the others."""
        parameters = self._settings.parameters
        before = [p.detach().clone(memory_format=torch.contiguous_format) for p in parameters]
        whole = None if closure is None else _followed_by(closure, self._passes.reset)
        self._passes.reset()
        loss = super().step(whole)  # type: ignore[misc]
        if parameters:
            self._combine(parameters, before)
        return loss

    def _combine(self, parameters: List[torch.Tensor], before: List[torch.Tensor]) -> None:
        settings = self._settings
        deltas = [(p.detach() - b).contiguous() for p, b in zip(parameters, before)]
        names = ["delta." + settings.names[p] for p in parameters]
        combined = mpi_ops.synchronize(mpi_ops.begin_allreduce(
            deltas, names[0], Adasum, settings.process_set, members=names,
            compression=settings.compression, in_place=True))
        for p, b, delta in zip(parameters, before, combined):
            p.detach().copy_(b + delta)

    def synchronize(self) -> None:
        """Does nothing, because step() does all of the work."""

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Raises AssertionError, because with Adasum there are no reduced gradients before
        step()."""
        raise AssertionError("skip_synchronize does not go with op=Adasum")
        yield


def _subclass(mixin: Type[Any], base: Type[Any]) -> Type[Any]:
    return type(base.__name__, (mixin, base), {"__module__": base.__module__})


def DistributedOptimizer(optimizer: torch.optim.Optimizer,
                         named_parameters: Optional[Iterable[Tuple[str, torch.Tensor]]] = None,
                         compression: Any = Compression.none, backward_passes_per_step: int = 1,
                         op: int = Average, gradient_predivide_factor: float = 1.0,
                         num_groups: int = 0, groups: Groups = None,
                         sparse_as_dense: bool = False,
                         process_set: ProcessSet = global_process_set) -> torch.optim.Optimizer:
    """Returns an optimizer of a subclass of `optimizer`'s class, with its parameters and its state,
    that steps with the gradients of all ranks of `process_set`. A rank outside the set, and one
    that is alone, steps by itself.

    named_parameters: model.named_parameters(), so that reductions have names; all ranks alike.
    backward_passes_per_step: how many backward passes add up before step(); an AssertionError when
    there are more, and from zero_grad() between the first of them and step().
    gradient_predivide_factor: with op=Average, divides by this before the sum, by the rest after.
    groups: gradients that are reduced together: lists of parameters, or the number of such groups
    (num_groups is its older name, and does not count beside it).
    op=Adasum: ranks step by themselves and the steps are combined.

    It takes over the parameters that it shares with a DistributedOptimizer that was made before,
    whose step() raises ValueError as long as this one exists. Once it is deleted, backward is as
    without it.

    A parameter that backward brings no gradient to on this rank adds zeros. Sparse gradients: in
    its first step a rank cannot know that such a one would have been sparse; each must come once on
    every rank before it may be left out, or sparse_as_dense=True, which sends them as dense ones
    (they are sparse again at the step).

    ValueError for names that are missing or doubled and for settings that do not go together.
    """
    settings = Settings(optimizer, named_parameters, compression, backward_passes_per_step, op,
                        gradient_predivide_factor, num_groups, groups, sparse_as_dense,
                        process_set)
    mixin = _DistributedAdasum if op == Adasum else _Distributed
    cls = _subclass(mixin, type(optimizer))
    made = object.__new__(cls)
    # A scheduler may have replaced `step` on the object; this class's step must be called.
    made.__dict__.update({key: value for key, value in optimizer.__dict__.items()
                          if key != "step"})
    made._begin(settings)
    made._take_over(made.param_groups)
    return made
