# SPDX-License-Identifier: Apache-2.0
"""Reduces gradients between two steps of an optimizer: counts backward passes, and begins
allreduces at the last of them.

Threads: hooks run on whatever thread runs backward; everything else belongs to the caller's.
"""

from __future__ import annotations

import warnings
import weakref
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Set, Tuple, Union

import torch

from tutti import _basics, _elastic
from tutti._basics import Average, ProcessSet
from tutti.torch import mpi_ops

Groups = Union[None, int, Sequence[Sequence[torch.Tensor]]]


class Settings:
    """The checked arguments of DistributedOptimizer. ValueError, in a sentence, for wrong
    arguments."""

    def __init__(self, optimizer: torch.optim.Optimizer,
                 named_parameters: Optional[Iterable[Tuple[str, torch.Tensor]]], compression: Any,
                 passes: int, op: int, predivide: float, num_groups: int, groups: Groups,
                 sparse_as_dense: bool, process_set: ProcessSet) -> None:
        if not (hasattr(compression, "compress") and hasattr(compression, "decompress")):
            raise ValueError(f"compression={compression!r} is no compressor such as "
                             "Compression.fp16")
        if isinstance(predivide, bool) or not isinstance(predivide, (int, float)) or predivide <= 0:
            raise ValueError(f"gradient_predivide_factor={predivide!r} is no number above 0")
        self.op = _basics.check_op(op)
        if predivide != 1.0 and op != Average:
            raise ValueError("gradient_predivide_factor works with op=Average only")
        _basics.check_process_set(process_set)
        self.compression, self.passes = compression, checked_passes(passes)
        self.predivide, self.sparse_as_dense = float(predivide), sparse_as_dense
        self.process_set = process_set
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._named = named_parameters is not None
        self.names = _names(parameters, named_parameters)
        self.groups = _groups(parameters, num_groups, groups)
        # Only parameters with gradients get hooks, and none in a job of a single rank.
        self.parameters = [p for p in parameters if p.requires_grad]
        if not self.takes_part():
            self.parameters, self.groups = [], []

    def takes_part(self) -> bool:
        """Returns whether gradients are reduced. They are not on a rank outside the set, which
        steps by itself, nor by a single rank, unless others may come."""
        if self.process_set.included() is False:
            return False
        job = _basics.job()
        return not job.is_initialized() or job.size() > 1 or _elastic.ranks_may_change()

    def add(self, parameters: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        """Adds later parameters, and returns those that need hooks. ValueError for parameters
        without names among parameters with names."""
        missing = [p for p in parameters if p not in self.names]
        if missing and self._named:
            raise ValueError(f"named_parameters lacks {len(missing)} of the {len(parameters)} "
                             "parameters that are added")
        for p in missing:
            self.names[p] = f"gradient.{len(self.names)}"
        wanted = [p for p in parameters if p.requires_grad] if self.takes_part() else []
        self.parameters += wanted
        return wanted


def checked_passes(passes: int) -> int:
    """Raises ValueError for anything but a number of backward passes."""
    if isinstance(passes, bool) or not isinstance(passes, int) or passes <= 0:
        raise ValueError(f"backward_passes_per_step must be a whole number above 0, not {passes!r}")
    return passes


def _names(parameters: List[torch.Tensor],
           named: Optional[Iterable[Tuple[str, torch.Tensor]]]) -> Dict[torch.Tensor, str]:
    pairs = list(named) if named is not None else []
    if not pairs:
        # noname.N would not do, because operations without a name have such names.
        return {p: f"gradient.{i}" for i, p in enumerate(parameters)}
    if any(not isinstance(pair, tuple) or len(pair) != 2 for pair in pairs):
        raise ValueError("named_parameters must be pairs of name and parameter, as "
                         "model.named_parameters() gives them")
    seen: Set[str] = set()
    twice: Set[str] = set()
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
    """Returns lists of parameters whose gradients are reduced together."""
    if num_groups:
        warnings.warn("num_groups is deprecated; use groups", DeprecationWarning, stacklevel=4)
    if groups is None:
        groups = num_groups
    if isinstance(groups, int) and not isinstance(groups, bool):
        if groups < 0:
            raise ValueError(f"groups={groups} (or num_groups) must not be negative")
        wanted = [p for p in parameters if p.requires_grad]
        if groups == 0 or not wanted:
            return []
        # As many lists as were asked for, if the number of parameters allows; the first are the
        # longer.
        count = min(groups, len(wanted))
        bounds = [i * (len(wanted) // count) + min(i, len(wanted) % count) for i in range(count + 1)]
        return [wanted[begin:end] for begin, end in zip(bounds, bounds[1:])]
    if not isinstance(groups, (list, tuple)) or \
            any(not isinstance(group, (list, tuple)) for group in groups):
        raise ValueError("groups must be a number of groups, or a list of lists of parameters")
    known, flat = set(parameters), [p for group in groups for p in group]
    if len(set(flat)) != len(flat) or not set(flat) <= known:
        raise ValueError("a parameter stands in two groups, or is not the optimizer's")
    made = [[p for p in group if p.requires_grad] for group in groups]
    return [group for group in made if group]


# The Passes that count a parameter's passes, by the parameter's id; they keep it alive.
_holders: "weakref.WeakValueDictionary[int, Passes]" = weakref.WeakValueDictionary()


class Passes:
    """Counts the backward passes of parameters, and calls on_last, a method, with a parameter after
    its last pass.

    At most one object counts a parameter. A later object takes the parameter over, since two would
    ask for the same reductions. The hooks go with the last reference to the object, which does not
    keep its owner alive."""

    def __init__(self, passes: int, parameters: Iterable[torch.Tensor],
                 on_last: Optional[Callable[[torch.Tensor], None]] = None) -> None:
        self.passes = passes
        self._on_last = None if on_last is None else weakref.WeakMethod(on_last)
        self._left: Dict[torch.Tensor, int] = {}
        # What removes a hook, and the objects that the hooks are attached to.
        self._hooks: Dict[torch.Tensor, Tuple[Any, Any]] = {}
        self._taker: Callable[[], Optional[Passes]] = lambda: None
        self.add(parameters)

    def __del__(self) -> None:
        for handle, _ in self._hooks.values():
            handle.remove()

    def add(self, parameters: Iterable[torch.Tensor]) -> None:
        """Counts the passes of these parameters as well."""
        for p in parameters:
            self.take_over(p)
            _holders[id(p)] = self
            self._left[p] = self.passes
            self._hooks[p] = self._hook(p)

    def take_over(self, p: torch.Tensor) -> None:
        """Makes any earlier object stop counting the parameter."""
        before = _holders.get(id(p))
        if before is not None and before is not self:
            del _holders[id(p)], before._left[p]
            before._hooks.pop(p)[0].remove()
            before._taker = weakref.ref(self)

    def check_kept(self) -> None:
        """Raises ValueError where another object took some of the parameters over and still
        exists."""
        if self._taker() is not None:
            raise ValueError("a DistributedOptimizer that was made later has taken over parameters "
                             "of this one, and reduces their gradients; delete it, or step with it")

    def reset(self, passes: Optional[int] = None) -> None:
        """Begins to count anew, up to another number of passes where one is given."""
        self.passes = self.passes if passes is None else passes
        self._left = {p: self.passes for p in self._left}

    def have_begun(self) -> bool:
        """Returns whether a gradient came since the last step."""
        return any(left != self.passes for left in self._left.values())

    def _hook(self, p: torch.Tensor) -> Tuple[Any, Any]:
        me = weakref.ref(self)

        def on_gradient(p: torch.Tensor) -> None:
            passes = me()
            if passes is not None:
                passes._on_gradient(p)
        if hasattr(p, "register_post_accumulate_grad_hook"):
            return p.register_post_accumulate_grad_hook(on_gradient), None
        # Before PyTorch 2.1 the hook is on the node that accumulates the gradient. It is kept.
        accumulate = p.expand_as(p).grad_fn.next_functions[0][0]
        return accumulate.register_hook(lambda *unused: on_gradient(p)), accumulate

    def _on_gradient(self, p: torch.Tensor) -> None:
        if p not in self._left:
            return  # Another object took the parameter over while backward ran.
        if self._left[p] <= 0:
            raise AssertionError(
                "Gradients were computed more than backward_passes_per_step times before step() "
                "or synchronize(); raise backward_passes_per_step to accumulate them")
        self._left[p] -= 1
        on_last = self._on_last and self._on_last()
        if self._left[p] == 0 and on_last:
            on_last(p)


class Reducer:
    """The allreduces of one optimizer's gradients between two steps."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._group_of = {p: i for i, group in enumerate(settings.groups) for p in group}
        # The number of sparse dimensions of each gradient that was sparse. The number is never
        # forgotten: after a backward without the gradient a sparse gradient must be sent, as on the
        # other ranks.
        self._sparse_dims: Dict[torch.Tensor, int] = {}
        self._begun: Set[torch.Tensor] = set()
        self._ready: Dict[int, List[torch.Tensor]] = {}  # gradients of groups that are not begun yet
        self._waits: List[Callable[[], None]] = []
        self.passes = Passes(settings.passes, settings.parameters, self._begin)
        self.reset()

    def reset(self) -> None:
        """Forgets the reductions that were begun."""
        self._begun, self._waits = set(), []
        self._ready = {i: [] for i in range(len(self.settings.groups))}
        self.passes.reset()

    def _begin(self, p: torch.Tensor) -> None:
        """Begins p's allreduce, or notes that p is ready where its group is not complete."""
        self._begun.add(p)
        group = self._group_of.get(p)
        if group is None:
            self._begin_one(p)
            return
        self._ready[group].append(p)
        if len(self._ready[group]) == len(self.settings.groups[group]):
            self._begin_group(group)

    def _gradient(self, p: torch.Tensor) -> torch.Tensor:
        """Returns the tensor to send for p: zeros of the same kind where no backward brought a
        gradient."""
        if p.grad is None and p not in self._sparse_dims:
            p.grad = torch.zeros_like(p)
        # A sparse gradient that was set to zero may have forgotten its dimensions.
        if p.grad is None or p.grad.is_sparse and p.grad._nnz() == 0 and p in self._sparse_dims:
            dims = self._sparse_dims[p]
            p.grad = torch.sparse_coo_tensor(torch.empty((dims, 0), dtype=torch.int64,
                                                         device=p.device),
                                             p.detach().new_empty((0, *p.shape[dims:])), p.shape,
                                             device=p.device)
        if p.grad.is_sparse:
            self._sparse_dims[p] = p.grad.sparse_dim()
            return p.grad.to_dense() if self.settings.sparse_as_dense else p.grad
        return p.grad.contiguous()

    def _reduce(self, gradients: List[torch.Tensor], names: List[str]) -> int:
        s = self.settings
        # The division by the number of ranks is split in two where that keeps small numbers from
        # vanishing: before the sum by the factor, after it by the rest.
        return mpi_ops.begin_allreduce(
            gradients, names[0], s.op, s.process_set, members=names if len(names) > 1 else None,
            compression=s.compression, prescale=1.0 / s.predivide, postscale=s.predivide,
            in_place=True)

    def _begin_one(self, p: torch.Tensor) -> None:
        gradient, name = self._gradient(p), self.settings.names[p]
        if gradient.is_sparse:
            wait = mpi_ops.sparse_allreduce_async(gradient, name, self.settings.op,
                                                  self.settings.process_set)
            self._waits.append(lambda: setattr(p, "grad", wait()))
            return
        handle = self._reduce([gradient], [name])
        self._waits.append(lambda: _store(p, mpi_ops.synchronize(handle)))

    def _begin_group(self, group: int) -> None:
        members = self.settings.groups[group]
        gradients = [self._gradient(p) for p in members]
        if len(members) == 1 or any(gradient.is_sparse for gradient in gradients):
            for p in members:
                self._begin_one(p)
            return
        handle = self._reduce(gradients, [self.settings.names[p] for p in members])

        def wait() -> None:
            for p, gradient in zip(members, mpi_ops.synchronize(handle)):
                _store(p, gradient)
        self._waits.append(wait)

    def finish(self) -> None:
        """Begins the reductions for which no backward brought a gradient, with zeros, and waits for
        all. The first failure is raised when all others have ended."""
        errors: List[Exception] = []

        def attempt(part: Callable[[], None]) -> None:
            try:
                part()
            except Exception as error:
                errors.append(error)
        try:
            attempt(self.passes.check_kept)
            if not errors:
                attempt(self._begin_rest)
            for wait in self._waits:
                attempt(wait)
        finally:
            self.reset()
        if errors:
            raise errors[0]

    def _begin_rest(self) -> None:
        for p in self.settings.parameters:
            if p not in self._begun:
                self._begin(p)


def _store(p: torch.Tensor, gradient: torch.Tensor) -> None:
    if p.grad.is_sparse:  # The gradient was sent as a dense tensor, and optimizers may want a sparse one.
        p.grad = gradient.to_sparse(p.grad.sparse_dim())
    elif p.grad is not gradient and p.grad.data_ptr() != gradient.data_ptr():
        p.grad.copy_(gradient)
