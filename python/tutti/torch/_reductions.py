# SPDX-License-Identifier: Apache-2.0
"""Says how torch.distributed's reductions are done with those that the library has.

The library reduces most types with sum, product, maximum, minimum and average. What it lacks is
made of that: 16-bit integers are reduced as 32-bit ones, sums of complex numbers as sums of their
parts. Bitwise operators are applied here, to the values that were gathered from all ranks.

A step is a list of calls, which the library runs as one group, or a Python function. Steps run one
after another on the communicator's stream. A call is the name of a function of the library and its
arguments without communicator and stream.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple, Union

import torch
import torch.distributed as dist

from tutti.communicator import _NCCL_TYPES
from tutti.torch._adapter import ELEMENT_TYPES

Call = Tuple[Any, ...]
Step = Union[List[Call], Callable[[], None]]
Combine = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

UINT8 = 1  # ncclDataType_t
_SUM, _PRODUCT, _MAX, _MIN, _AVERAGE = range(5)  # ncclRedOp_t
_OPERATORS = {"SUM": _SUM, "PRODUCT": _PRODUCT, "MAX": _MAX, "MIN": _MIN, "AVG": _AVERAGE}
_BITWISE = {"BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor}
# With bytes that are 0 or 1, "or" is the largest and "and" the smallest.
_BOOL_OPERATORS = {"SUM": _MAX, "MAX": _MAX, "BOR": _MAX, "PRODUCT": _MIN, "MIN": _MIN,
                   "BAND": _MIN}
# PyTorch's bitwise functions do not know the unsigned types but uint8.
_SIGNED = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Up to this size in total, all values are gathered on every rank, which takes one round instead of
# two.
_GATHER_ALL_BYTES = 64 << 10


class Reduction(NamedTuple):
    """How values of one type are reduced with one operator."""
    type: int = 0  # ncclDataType_t
    operator: int = 0  # ncclRedOp_t
    # The type that values are converted to before, and from after.
    through: Optional[torch.dtype] = None
    # Combines the values of two ranks, where the library does not.
    combine: Optional[Combine] = None


def _name(op: Any) -> str:
    names = [*_OPERATORS, *_BITWISE]
    return next((name for name in names if op == getattr(dist.ReduceOp, name)), str(op))


def _choose(dtype: torch.dtype, op: Any) -> Optional[Reduction]:
    name, number = _name(op), ELEMENT_TYPES.get(dtype, -1)
    if dtype == torch.bool and name in _BOOL_OPERATORS:
        return Reduction(UINT8, _BOOL_OPERATORS[name])
    if name in _BITWISE:
        whole = not dtype.is_floating_point and not dtype.is_complex
        return Reduction(combine=_BITWISE[name]) if whole else None
    if dtype == torch.bool or name not in _OPERATORS:
        return None
    if dtype.is_complex and name not in ("SUM", "AVG"):
        return None
    if dtype.is_complex:
        part = {torch.complex32: torch.float16, torch.complex64: torch.float32}.get(
            dtype, torch.float64)
        return Reduction(_NCCL_TYPES[ELEMENT_TYPES[part]], _OPERATORS[name])
    if number in _NCCL_TYPES:
        return Reduction(_NCCL_TYPES[number], _OPERATORS[name])
    if number in (ELEMENT_TYPES.get(getattr(torch, wide, None), -2)
                  for wide in ("int16", "uint16")):
        return Reduction(_NCCL_TYPES[ELEMENT_TYPES[torch.int32]], _OPERATORS[name], torch.int32)
    return None


def reduction_of(tensor: torch.Tensor, op: Any) -> Reduction:
    """Returns how tensors of this type are reduced with this operator. ValueError where they are
    not."""
    reduction = _choose(tensor.dtype, op)
    if reduction is None:
        raise ValueError(f"the tutti backend does not reduce {tensor.dtype} with {_name(op)}")
    return reduction


def _count(tensor: torch.Tensor) -> int:
    """Returns how many values the library sees: a complex number is two."""
    return tensor.numel() * (2 if tensor.is_complex() else 1)


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def all_reduce(source: torch.Tensor, target: torch.Tensor, op: Any, size: int) -> List[Step]:
    """Returns the steps that reduce `source` into `target` on all of `size` ranks. The two may be
    the same tensor; else they are of one shape and type."""
    reduction = reduction_of(source, op)
    if reduction.combine is not None:
        return _combined_all_reduce(source, target, reduction.combine, size)
    return _through(reduction, source, target, "ncclAllReduce",
                    (_count(source), reduction.type, reduction.operator))


def reduce(source: torch.Tensor, target: torch.Tensor, op: Any, root: int, size: int
           ) -> List[Step]:
    """Returns the steps that reduce `source` into `target` on the root. Elsewhere `target` is a
    tensor of the same shape that may be written to."""
    reduction = reduction_of(source, op)
    if reduction.combine is not None:
        return _combined_all_reduce(source, target, reduction.combine, size)
    return _through(reduction, source, target, "ncclReduce",
                    (_count(source), reduction.type, reduction.operator, root))


def reduce_scatter(source: torch.Tensor, target: torch.Tensor, op: Any, size: int) -> List[Step]:
    """Returns the steps that reduce `source` and leave each rank its part in `target`."""
    reduction = reduction_of(source, op)
    if reduction.combine is not None:
        rows = torch.empty((size, target.numel()), dtype=source.dtype)
        return [_all_to_all(source, rows), lambda: _fold(rows, reduction.combine, target)]
    return _through(reduction, source, target, "ncclReduceScatter",
                    (_count(target), reduction.type, reduction.operator))


def together(operations: Sequence[List[Step]]) -> List[Step]:
    """Returns the steps of several operations. Calls that nothing stands between become one
    group."""
    joined: List[Step] = []
    for step in itertools.chain.from_iterable(operations):
        last = joined[-1] if joined else None
        if isinstance(last, list) and isinstance(step, list):
            joined[-1] = last + step
        else:
            joined.append(step)
    return joined


def _through(reduction: Reduction, source: torch.Tensor, target: torch.Tensor,
             function: str, rest: Tuple[int, ...]) -> List[Step]:
    """Returns the steps of one call of the library, with the conversions around it."""
    if reduction.through is None:
        return [[(function, source.data_ptr(), target.data_ptr(), *rest)]]
    wide = torch.empty(source.shape, dtype=reduction.through)
    result = wide if target.shape == source.shape else torch.empty(target.shape, dtype=wide.dtype)
    return [lambda: _copy(wide, source),
            [(function, wide.data_ptr(), result.data_ptr(), *rest)],
            lambda: _copy(target, result)]


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    with torch.no_grad():
        target.copy_(source)


def _fold(rows: torch.Tensor, combine: Optional[Combine], target: torch.Tensor) -> None:
    """Combines the rows and stores the result in `target`."""
    assert combine is not None
    if rows.dtype == torch.bool:
        folded = functools.reduce(combine, rows.unbind())
    else:
        signed = rows.view(_SIGNED[rows.element_size()])
        folded = functools.reduce(combine, signed.unbind()).view(rows.dtype)
    _copy(target.view(-1), folded)


def _all_to_all(source: torch.Tensor, rows: torch.Tensor) -> List[Call]:
    return [("ncclAlltoAll", source.data_ptr(), rows.data_ptr(), _bytes(rows[0]), UINT8)]


def _combined_all_reduce(source: torch.Tensor, target: torch.Tensor, combine: Combine, size: int
                         ) -> List[Step]:
    kind, count = source.dtype, source.numel()
    if _bytes(source) * size <= _GATHER_ALL_BYTES:
        rows = torch.empty((size, count), dtype=kind)
        return [[("ncclAllGather", source.data_ptr(), rows.data_ptr(), _bytes(source), UINT8)],
                lambda: _fold(rows, combine, target)]
    # Every rank combines its part of the values. Parts are of one size; what exceeds the tensor is
    # not looked at.
    part = (count + size - 1) // size
    sent, rows = (torch.empty((size, part), dtype=kind) for _ in range(2))
    mine, result = torch.empty(part, dtype=kind), sent
    return [lambda: _copy(sent.view(-1)[:count], source.reshape(-1)), _all_to_all(sent, rows),
            lambda: _fold(rows, combine, mine),
            [("ncclAllGather", mine.data_ptr(), result.data_ptr(), _bytes(mine), UINT8)],
            lambda: _copy(target.view(-1), result.view(-1)[:count])]
