# SPDX-License-Identifier: Apache-2.0
"""Sends models, optimizers and objects from one rank to all. Objects are pickled on the way, and
ranks must therefore trust one another."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from typing import Any, List, Optional, Union

import torch

from tutti import _basics, _objects
from tutti._basics import ProcessSet, global_process_set
from tutti.torch import mpi_ops
from tutti.torch._state import load_in_place


def broadcast_parameters(params: Union[Mapping, Iterable[Any]], root_rank: int,
                         process_set: ProcessSet = global_process_set) -> None:
    """Overwrites the tensors of `model.state_dict()`, `model.named_parameters()` or
    `model.parameters()` with the tensors of `root_rank`. Other values are left alone."""
    if isinstance(params, Mapping):
        pairs: List[Any] = sorted(params.items())
    elif isinstance(params, Iterable) and not isinstance(params, (str, torch.Tensor)):
        pairs = [pair if isinstance(pair, tuple) and len(pair) == 2 else (str(i), pair)
                 for i, pair in enumerate(params)]
    else:
        raise ValueError(f"params must be a dictionary, pairs of name and tensor, or tensors, not "
                         f"a {type(params).__name__}")
    copies = []
    for name, tensor in pairs:
        if not isinstance(tensor, torch.Tensor):
            continue
        data = tensor.detach()
        flat = data.contiguous()
        handle = mpi_ops.broadcast_async_(flat, root_rank, f"parameters.{name}", process_set)
        copies.append((handle, data, flat))
    for handle, data, flat in copies:
        mpi_ops.synchronize(handle)
        if flat is not data and flat.data_ptr() != data.data_ptr():
            data.copy_(flat)


class _Place:
    """Stands for a tensor in a skeleton that travels ahead of the tensors."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape, self.dtype = tuple(tensor.shape), tensor.dtype
        self.place = tensor.device.type  # The number of the GPU is each rank's own.


def _take_out(value: Any, tensors: List[torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return _Place(value)
    if isinstance(value, dict):
        return {key: _take_out(part, tensors) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_take_out(part, tensors) for part in value)
    return value


def _put_in(value: Any, tensors: List[torch.Tensor]) -> Any:
    if isinstance(value, _Place):
        tensors.append(torch.empty(value.shape, dtype=value.dtype, device=value.place))
        return tensors[-1]
    if isinstance(value, dict):
        return {key: _put_in(part, tensors) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_put_in(part, tensors) for part in value)
    return value


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int,
                              model: Optional[torch.nn.Module] = None,
                              process_set: ProcessSet = global_process_set) -> None:
    """Gives all ranks the optimizer state of `root_rank`, hyperparameters included, whatever they
    had. The optimizer keeps its groups and its state as objects, and a scheduler made on the
    optimizer, or on a wrapped optimizer, therefore still changes them. An optimizer that has not
    stepped yet gets gradients of zeros where gradients are missing, like from Horovod, which steps
    with them; no step is done here. ValueError for LBFGS, whose state is no plain data. `model` is
    Horovod's, not needed."""
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("the state of torch.optim.LBFGS cannot be broadcast")
    if not optimizer.state:
        for p in (p for group in optimizer.param_groups for p in group["params"]):
            if p.requires_grad and p.grad is None:
                zeros = torch.zeros_like(p)
                p.grad = zeros.to_sparse() if isinstance(optimizer, torch.optim.SparseAdam) else zeros
    is_root = _basics.job().rank() == root_rank
    tensors: List[torch.Tensor] = []
    skeleton = _take_out(optimizer.state_dict(), tensors) if is_root else None
    skeleton = broadcast_object(skeleton, root_rank, "optimizer_state", process_set)
    state = None
    if not is_root:
        state = _put_in(skeleton, tensors)
    broadcast_parameters([(f"optimizer.{i}", tensor) for i, tensor in enumerate(tensors)],
                         root_rank, process_set)
    if state is not None:
        load_in_place(optimizer, lambda: optimizer.load_state_dict(state))


# Tensors of the package's own, here and elsewhere, are on the host, whatever the default device is.
def _number(value: int) -> torch.Tensor:
    return torch.tensor([value], device="cpu")


def _as_tensor(data: bytearray) -> torch.Tensor:
    return torch.frombuffer(data, dtype=torch.uint8)


def _as_bytes(tensor: torch.Tensor) -> bytes:
    return ctypes.string_at(tensor.data_ptr(), tensor.numel())


def broadcast_object(obj: Any, root_rank: int = 0, name: Optional[str] = None,
                     process_set: ProcessSet = global_process_set) -> Any:
    """Returns `root_rank`'s object on every rank; the other ranks' objects are ignored. ValueError
    on every rank, with the same sentence, for an object that cannot be pickled."""
    name = name or "object"

    def move(mine: Optional[bytearray]) -> Any:
        count = mpi_ops.broadcast_(_number(len(mine or b"")), root_rank, f"{name}.size", process_set)
        data = _as_tensor(bytearray(int(count)) if mine is None else mine)
        mpi_ops.broadcast_(data, root_rank, f"{name}.bytes", process_set)
        return _as_bytes(data) if mine is None else mine
    return _objects.broadcast(obj, _basics.job().rank(), root_rank, move)


def allgather_object(obj: Any, name: Optional[str] = None,
                     process_set: ProcessSet = global_process_set) -> List[Any]:
    """Returns the objects of all ranks, in order of rank. ValueError on every rank, with the same
    sentence, for an object that cannot be pickled."""
    name = name or "object"

    def move(mine: bytearray) -> List[Any]:
        counts = mpi_ops.allgather(_number(len(mine)), f"{name}.sizes", process_set)
        joined = mpi_ops.allgather(_as_tensor(mine), f"{name}.bytes", process_set)
        return [_as_bytes(part) for part in torch.split(joined, counts.tolist())]
    return _objects.allgather(obj, _basics.job().rank(), move)
