# SPDX-License-Identifier: Apache-2.0
"""torch.distributed's reductions: by the library where it reduces a type with an operator, else by
PyTorch, of the values that were gathered from all ranks."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist

from tutti.communicator import _NCCL_TYPES
from tutti.torch._adapter import ELEMENT_TYPES
from tutti.torch._worker import UINT8, Worker, bytes_of

_OPERATORS = ("SUM", "PRODUCT", "MAX", "MIN", "AVG")  # in the order of ncclRedOp_t
# Averages are sums that are divided in the end.
_PAIRWISE = {"SUM": torch.add, "PRODUCT": torch.mul, "MAX": torch.maximum, "MIN": torch.minimum,
             "AVG": torch.add, "BAND": torch.bitwise_and, "BOR": torch.bitwise_or,
             "BXOR": torch.bitwise_xor}


def _name(op: Any) -> str:
    return next((name for name in (*_PAIRWISE, "PREMUL_SUM")
                 if op == getattr(dist.ReduceOp, name, None)), str(op))


def has_factor(op: Any) -> bool:
    """Returns whether the factor of PREMUL_SUM is known. PyTorch shows the factor in the state for
    pickle only, and before 2.0 nowhere."""
    state = op.__getstate__() if hasattr(op, "__getstate__") else None
    return isinstance(state, tuple) and len(state) == 2


def _multiply(values: torch.Tensor, op: Any) -> None:
    factor = op.__getstate__()[1]
    # PyTorch does not multiply floating-point numbers of 8 bits.
    wide = values.to(torch.float32) if values.element_size() == 1 else values
    values.copy_(wide * (factor.to(wide.dtype) if isinstance(factor, torch.Tensor) else factor))


def check(tensor: torch.Tensor, op: Any) -> None:
    """Raises ValueError where tensors of this type are not reduced with this operator."""
    name, dtype = _name(op), tensor.dtype
    if dtype.is_complex:
        reduces = name in ("SUM", "AVG", "PREMUL_SUM")
    elif dtype == torch.bool:
        reduces = name in _PAIRWISE and name != "AVG"
    else:
        reduces = dtype in ELEMENT_TYPES and name in (
            (*_OPERATORS, "PREMUL_SUM") if dtype.is_floating_point else _PAIRWISE)
    if name == "PREMUL_SUM" and not has_factor(op):
        raise ValueError("this PyTorch does not tell the factor of PREMUL_SUM; from 2.0 on it does")
    if not reduces:
        raise ValueError(f"the tutti backend does not reduce {dtype} with {name}")


def all_reduce(worker: Worker, tensor: torch.Tensor, op: Any, size: int) -> None:
    """Reduces a contiguous tensor of each of the `size` ranks, in place. REQUIRES: check passed."""
    name = _name(op)
    # A complex number is reduced as its two parts.
    values = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor
    number = ELEMENT_TYPES[values.dtype]
    if name == "PREMUL_SUM":
        _multiply(values, op)
        name = "SUM"
    if name in _OPERATORS and number in _NCCL_TYPES:
        worker.call("ncclAllReduce", values.data_ptr(), values.data_ptr(), values.numel(),
                    _NCCL_TYPES[number], _OPERATORS.index(name))
        return
    rows = torch.empty((size, *values.shape), dtype=values.dtype)
    worker.call("ncclAllGather", values.data_ptr(), rows.data_ptr(), bytes_of(values), UINT8)
    # Only whole numbers and truth values come here: PyTorch has all operators for 64-bit integers,
    # and a conversion back keeps the low bits.
    total = functools.reduce(_PAIRWISE[name], rows.to(torch.int64).unbind())
    values.copy_(torch.div(total, size, rounding_mode="trunc") if name == "AVG" else total)
