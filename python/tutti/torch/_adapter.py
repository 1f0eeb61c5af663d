# SPDX-License-Identifier: Apache-2.0
"""PyTorch tensors as the coordinator and the communicators see them."""

from __future__ import annotations

import ctypes
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch

from tutti._dlpack import home_of

# tuttiElementType_t by the name of the dtype; older PyTorch has fewer.
_NAMES = {"uint8": 0, "int8": 1, "uint16": 2, "int16": 3, "int32": 4, "int64": 5, "float16": 6,
          "float32": 7, "float64": 8, "bool": 9, "bfloat16": 10, "uint32": 11, "uint64": 12,
          "float8_e4m3fn": 13, "float8_e5m2": 14}
ELEMENT_TYPES: Dict[torch.dtype, int] = {
    getattr(torch, name): number for name, number in _NAMES.items() if hasattr(torch, name)}

_COMPLEX = (torch.complex32, torch.complex64, torch.complex128)  # travel as pairs


class _Memory:
    """Bytes in a GPU's memory, in the form of CUDA's array interface, which PyTorch reads."""

    def __init__(self, address: int, count: int) -> None:
        self.__cuda_array_interface__ = {"shape": (count,), "typestr": "|u1", "version": 2,
                                         "data": (address, False)}


def bring(tensor: Any) -> Tuple[torch.Tensor, Optional[Callable[[Any], Any]]]:
    """Returns a tensor as it is, and None. Of an array of another library, on a GPU or not, returns
    the tensor that DLPack makes of it without a copy, and a function that turns results into arrays
    of that library. ValueError for anything else."""
    if isinstance(tensor, torch.Tensor):
        return tensor, None
    if not hasattr(tensor, "__dlpack__"):
        raise ValueError(f"a {type(tensor).__name__} is no torch.Tensor")
    try:
        return torch.from_dlpack(tensor), home_of(tensor)
    except (AssertionError, BufferError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"a {type(tensor).__module__}.{type(tensor).__name__} cannot be seen as a "
                         f"torch.Tensor: {error}") from error


def require_tensors(tensors: Sequence[Any]) -> None:
    """Raises ValueError for what is no tensor."""
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"a {type(tensor).__name__} is no torch.Tensor")


class TorchAdapter:
    """tutti._collectives.Adapter for torch.Tensor in host memory, and with `gpus` on CUDA devices
    as well."""

    def __init__(self, gpus: bool = False) -> None:
        self._places = ("cpu", "cuda") if gpus else ("cpu",)

    def bring(self, tensor: Any, in_place: bool
              ) -> Tuple[torch.Tensor, Optional[Callable[[Any], Any]]]:
        return bring(tensor)

    def as_real(self, tensor: torch.Tensor) -> Optional[torch.Tensor]:
        return torch.view_as_real(tensor.detach()) if tensor.is_complex() else None

    def as_complex(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.view_as_complex(tensor)

    def check(self, tensor: torch.Tensor, in_place: bool) -> torch.Tensor:
        if tensor.device.type not in self._places:
            raise ValueError(f"the tensor lies on {tensor.device}; what can be sent lies on " +
                             " or ".join(self._places))
        if tensor.layout != torch.strided:
            raise ValueError(f"a tensor of layout {tensor.layout} cannot be sent; see "
                             "sparse_allreduce_async")
        if tensor.dtype not in ELEMENT_TYPES and tensor.dtype not in _COMPLEX:
            raise ValueError(f"tensors of {tensor.dtype} cannot be sent")
        if not tensor.is_contiguous():
            raise ValueError("the tensor must be contiguous; use tensor.contiguous()")
        if tensor.is_neg():  # a view whose memory has the opposite sign
            if in_place:
                raise ValueError("a negated view cannot be changed in place; use "
                                 "tensor.resolve_neg()")
            tensor = tensor.resolve_neg()
        if tensor.is_conj():  # a view whose memory has the conjugates
            if in_place:
                raise ValueError("a conjugated view cannot be changed in place; use "
                                 "tensor.resolve_conj()")
            return tensor.resolve_conj()
        return tensor

    def type(self, tensor: torch.Tensor) -> int:
        return ELEMENT_TYPES[tensor.dtype]

    def shape(self, tensor: torch.Tensor) -> Tuple[int, ...]:
        return tuple(tensor.shape)

    def address(self, tensor: torch.Tensor) -> int:
        return tensor.data_ptr()

    def empty(self, shape: Tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
        return torch.empty(shape, dtype=like.dtype, device=like.device)

    def int64s(self, numbers: Sequence[int], like: torch.Tensor) -> torch.Tensor:
        return torch.tensor(list(numbers), dtype=torch.int64, device=like.device)

    def copy_in(self, tensor: torch.Tensor, data: int) -> None:
        count = tensor.numel() * tensor.element_size()
        if count and tensor.is_cuda:
            source = torch.as_tensor(_Memory(data, count), device=tensor.device)
            tensor.view(-1).view(torch.uint8).copy_(source)
        elif count:
            ctypes.memmove(tensor.data_ptr(), data, count)

    def device(self, tensor: torch.Tensor) -> int:
        return tensor.device.index if tensor.is_cuda else -1

    def current_stream(self, tensor: torch.Tensor) -> int:
        return torch.cuda.current_stream(tensor.device).cuda_stream

    def splits(self, splits: Any) -> List[int]:
        try:
            numbers = torch.as_tensor(splits, device="cpu")
        except (TypeError, RuntimeError):
            raise ValueError(f"splits must be a list of whole numbers, not {splits!r}") from None
        if numbers.dim() != 1 or numbers.is_floating_point():
            raise ValueError(f"splits must be a list of whole numbers, not {splits!r}")
        return [int(number) for number in numbers.tolist()]

    def make_splits(self, splits: Sequence[int], like: torch.Tensor) -> torch.Tensor:
        return torch.tensor(list(splits), dtype=torch.int32, device="cpu")
