# SPDX-License-Identifier: Apache-2.0
"""DistributedOptimizer: the user's optimizer, whose gradients are those of all ranks.

As soon as a gradient is there its allreduce begins, while the rest of backward goes on; step()
waits for all of them. Threads: hooks run on whatever thread runs backward; everything else belongs
to the caller's.
"""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple, Type, Union

import torch

from tutti import _basics
from tutti._basics import Adasum, Average, ProcessSet, global_process_set
from tutti.torch import mpi_ops
from tutti.torch.compression import Compression

Groups = Optional[Sequence[Sequence[torch.Tensor]]]


class _Settings:
    """What DistributedOptimizer was given, checked."""

    def __init__(self, optimizer: torch.optim.Optimizer,
                 named_parameters: Optional[Iterable[Tuple[str, torch.Tensor]]], compression: Any,
                 passes: int, op: int, predivide: float, num_groups: int, groups: Groups,
                 sparse_as_dense: bool, process_set: ProcessSet) -> None:
        if predivide != 1.0 and op != Average:
            raise ValueError("gradient_predivide_factor works with op=Average only")
        if passes <= 0:
            raise ValueError("backward_passes_per_step must be above 0")
        if num_groups < 0:
            raise ValueError("num_groups must not be negative")
        self.compression, self.op, self.passes = compression, op, passes
        self.predivide, self.sparse_as_dense = predivide, sparse_as_dense
        self.process_set = process_set
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.names = _names(self.parameters, named_parameters)
        self.groups = _groups(self.parameters, num_groups, groups)


def _names(parameters: List[torch.Tensor],
           named: Optional[Iterable[Tuple[str, torch.Tensor]]]) -> Dict[torch.Tensor, str]:
    pairs = list(named) if named is not None else []
    if not pairs:
        return {p: f"noname.{i}" for i, p in enumerate(parameters)}
    if any(not isinstance(pair, tuple) or len(pair) != 2 for pair in pairs):
        raise ValueError("named_parameters must be pairs of name and parameter, as "
                         "model.named_parameters() gives them")
    seen, twice = set(), set()
    for name, _ in pairs:
        (twice if name in seen else seen).add(name)
    if twice:
        raise ValueError("named_parameters names these twice: " + ", ".join(sorted(twice)))
    names = {p: name for name, p in pairs}
    missing = sum(1 for p in parameters if p not in names)
    if missing:
        raise ValueError(f"named_parameters lacks {missing} of the optimizer's {len(parameters)} "
                         "parameters")
    return names


def _groups(parameters: List[torch.Tensor], num_groups: int, groups: Groups
            ) -> List[List[torch.Tensor]]:
    """Lists of parameters whose gradients are reduced together."""
    if groups is not None:
        if not isinstance(groups, (list, tuple)):
            raise ValueError("groups must be a list of lists of parameters")
        known, made = set(parameters), [[p for p in group] for group in groups]
        flat = [p for group in made for p in group]
        if len(set(flat)) != len(flat) or not set(flat) <= known:
            raise ValueError("a parameter stands in two groups, or is not the optimizer's")
        return [[p for p in group if p.requires_grad] for group in made]
    wanted = [p for p in parameters if p.requires_grad]
    if num_groups == 0 or not wanted:
        return []
    size = -(-len(wanted) // num_groups)
    return [wanted[i:i + size] for i in range(0, len(wanted), size)]


class _Reducer:
    """The allreduces of one optimizer's gradients between two steps."""

    def __init__(self, settings: _Settings) -> None:
        self.settings = settings
        self.handles: Dict[torch.Tensor, Any] = {}
        self.passes_left: Dict[torch.Tensor, int] = {}
        self.parameters = [p for p in settings.parameters if p.requires_grad]
        self._group_of = {p: i for i, group in enumerate(settings.groups) for p in group}
        self._ready: Dict[int, List[torch.Tensor]] = {}
        self._keep: List[Any] = []
        self.reset()
        for p in self.parameters:
            self._hook(p)

    def reset(self) -> None:
        self.handles.clear()
        self._ready = {i: [] for i in range(len(self.settings.groups))}
        self.passes_left = {p: self.settings.passes for p in self.parameters}

    def _hook(self, p: torch.Tensor) -> None:
        if hasattr(p, "register_post_accumulate_grad_hook"):
            self._keep.append(p.register_post_accumulate_grad_hook(self._on_gradient))
            return
        # Before PyTorch 2.1: the node that accumulates the gradient, kept alive for its hook.
        accumulate = p.expand_as(p).grad_fn.next_functions[0][0]  # type: ignore[union-attr]
        accumulate.register_hook(lambda *unused: self._on_gradient(p))
        self._keep.append(accumulate)

    def _on_gradient(self, p: torch.Tensor) -> None:
        if p in self.handles or self.passes_left[p] <= 0:
            raise AssertionError(
                "Gradients were computed more than backward_passes_per_step times before step() "
                "or synchronize(); raise backward_passes_per_step to accumulate them")
        self.passes_left[p] -= 1
        if self.passes_left[p] == 0:
            self.begin(p)

    def begin(self, p: torch.Tensor) -> None:
        """Begins p's allreduce, or notes that it is ready where its group is not yet."""
        group = self._group_of.get(p)
        if group is None:
            self.handles[p] = self._begin_one(p)
            return
        self.handles[p] = None
        self._ready[group].append(p)
        if len(self._ready[group]) == len(self.settings.groups[group]):
            self._begin_group(group)

    def _dense(self, p: torch.Tensor) -> torch.Tensor:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        if p.grad.is_sparse and self.settings.sparse_as_dense:
            p.grad = p.grad.to_dense()
        if not p.grad.is_sparse and not p.grad.is_contiguous():
            return p.grad.contiguous()
        return p.grad

    def _reduce(self, gradients: List[torch.Tensor], names: List[str], group: Optional[str]) -> int:
        s = self.settings
        # The division by the number of ranks is split in two where that keeps small numbers from
        # vanishing: before the sum by the factor, after it by the rest.
        return mpi_ops._enqueue(gradients, names, group, s.op, s.compression, 1.0 / s.predivide,
                                s.predivide, s.process_set, True)

    def _begin_one(self, p: torch.Tensor) -> Any:
        gradient, name = self._dense(p), self.settings.names[p]
        if gradient.is_sparse:
            wait = mpi_ops.sparse_allreduce_async(gradient, name, self.settings.op,
                                                  self.settings.process_set)
            return lambda: setattr(p, "grad", wait())
        handle = self._reduce([gradient], [_basics.job().name(_basics.ALLREDUCE, name)], None)
        return lambda: self._store(p, mpi_ops.synchronize(handle))

    def _begin_group(self, group: int) -> None:
        members = self.settings.groups[group]
        gradients = [self._dense(p) for p in members]
        if any(gradient.is_sparse for gradient in gradients):
            for p in members:
                self.handles[p] = self._begin_one(p)
            return
        job = _basics.job()
        names = [job.name(_basics.ALLREDUCE, self.settings.names[p]) for p in members]
        handle = self._reduce(gradients, names, job.name(_basics.ALLREDUCE, f"group.{group}"))

        def wait() -> None:
            for p, gradient in zip(members, mpi_ops.synchronize(handle)):
                self._store(p, gradient)
        for p in members:
            self.handles[p] = None
        self.handles[members[0]] = wait

    def _store(self, p: torch.Tensor, gradient: torch.Tensor) -> None:
        if p.grad is not gradient and p.grad.data_ptr() != gradient.data_ptr():
            p.grad.copy_(gradient)

    def finish(self) -> None:
        """Begins what no backward brought, with zeros, and waits for everything."""
        try:
            for p in self.parameters:
                if p not in self.handles:
                    self.begin(p)
            for wait in [wait for wait in self.handles.values() if wait is not None]:
                wait()
        finally:
            self.reset()


class _Distributed:
    """What DistributedOptimizer adds to the user's class; stands before it in the base classes."""

    _reducer: _Reducer
    _synchronized: bool
    _should_synchronize: bool

    def synchronize(self) -> None:
        """Waits until all gradients are reduced. step() does so, unless skip_synchronize says not
        to; of use where gradients are looked at, or clipped, before step()."""
        self._reducer.finish()
        self._synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """For step() after synchronize()."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def set_backward_passes_per_step(self, passes: int) -> None:
        """How many backward passes add up before gradients are reduced."""
        if passes <= 0:
            raise ValueError("backward_passes_per_step must be above 0")
        self._reducer.settings.passes = passes
        self._reducer.passes_left = {p: passes for p in self._reducer.parameters}

    def step(self, closure: Any = None) -> Any:
        if self._should_synchronize:
            if self._synchronized:
                warnings.warn("step() after synchronize() reduces the gradients a second time; use "
                              "`with optimizer.skip_synchronize():` around step()")
            self.synchronize()
        self._synchronized = False
        return super().step(closure)  # type: ignore[misc]

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        if self._reducer.handles:
            raise AssertionError("zero_grad() was called after backward() but before step() or "
                                 "synchronize(), while gradients are being reduced")
        super().zero_grad(*args, **kwargs)  # type: ignore[misc]

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        # Reductions under way belong to the state that goes.
        if self._reducer.handles and _basics.job().is_initialized():
            self._reducer.finish()
        self._reducer.reset()
        self._synchronized = False
        super().load_state_dict(*args, **kwargs)  # type: ignore[misc]


class _DistributedAdasum:
    """op=Adasum: ranks step by themselves, and what is combined is how far each went."""

    _settings: _Settings
    _calls = 0

    def step(self, closure: Any = None) -> Any:
        settings = self._settings
        parameters = [p for p in settings.parameters if p.requires_grad]
        self._calls += 1
        if closure is None and self._calls % settings.passes != 0:
            return None  # gradients go on adding up
        before = [p.detach().clone(memory_format=torch.contiguous_format) for p in parameters]
        loss = super().step(closure)  # type: ignore[misc]
        deltas = [(p.detach() - b).contiguous() for p, b in zip(parameters, before)]
        names = [_basics.job().name(_basics.ALLREDUCE, "delta." + settings.names[p])
                 for p in parameters]
        if deltas:
            combined = mpi_ops.synchronize(mpi_ops._enqueue(
                deltas, names, _basics.job().name(_basics.ALLREDUCE, "delta"), Adasum,
                settings.compression, 1.0, 1.0, settings.process_set, True))
            for p, b, delta in zip(parameters, before, combined):
                p.detach().copy_(b + delta)
        return loss

    def synchronize(self) -> None:
        """Nothing: step() does it all."""

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """ValueError: with Adasum gradients cannot be had before step()."""
        raise ValueError("skip_synchronize does not go with op=Adasum")
        yield

    def set_backward_passes_per_step(self, passes: int) -> None:
        """How many calls of step() make one step."""
        if passes <= 0:
            raise ValueError("backward_passes_per_step must be above 0")
        self._settings.passes = passes


def _subclass(mixin: Type[Any], base: Type[Any]) -> Type[Any]:
    return type(base.__name__, (mixin, base), {"__module__": base.__module__})


def DistributedOptimizer(optimizer: torch.optim.Optimizer,
                         named_parameters: Optional[Iterable[Tuple[str, torch.Tensor]]] = None,
                         compression: Any = Compression.none, backward_passes_per_step: int = 1,
                         op: int = Average, gradient_predivide_factor: float = 1.0,
                         num_groups: int = 0, groups: Union[None, Groups] = None,
                         sparse_as_dense: bool = False,
                         process_set: ProcessSet = global_process_set) -> torch.optim.Optimizer:
    """An optimizer of a subclass of `optimizer`'s class, with its parameters and its state, that
    steps with the gradients of all ranks of `process_set`.

    named_parameters: model.named_parameters(), so that reductions have names; all ranks alike.
    backward_passes_per_step: how many backward passes add up before gradients are reduced.
    gradient_predivide_factor: with op=Average, divides by this before the sum, by the rest after.
    num_groups, groups: gradients that are reduced together.
    op=Adasum: ranks step by themselves and the steps are combined.

    ValueError for names that are missing or doubled and for settings that do not go together.
    """
    settings = _Settings(optimizer, named_parameters, compression, backward_passes_per_step, op,
                         gradient_predivide_factor, num_groups, groups, sparse_as_dense,
                         process_set)
    mixin = _DistributedAdasum if op == Adasum else _Distributed
    cls = _subclass(mixin, type(optimizer))
    made = cls.__new__(cls)
    # A scheduler may have replaced the user's step by its own on the object; ours must be reached.
    made.__dict__.update({key: value for key, value in optimizer.__dict__.items()
                          if key != "step"})
    if op == Adasum:
        made._settings = settings
    else:
        made._reducer = _Reducer(settings)
        made._synchronized, made._should_synchronize = False, True
    return made
