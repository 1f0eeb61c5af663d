# SPDX-License-Identifier: Apache-2.0
"""Arrays in a GPU's memory as tutti.Communicator sees them, by CUDA's array interface, which CuPy
and Numba have: shape, type, address and stream stand there. The library of the arrays need not be
known, and is asked only where a result has to be made."""

from __future__ import annotations

import sys
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from tutti._numpy_adapter import ELEMENT_TYPES

# These travel as pairs of numbers.
_COMPLEX: Dict[str, np.dtype] = {"complex64": np.dtype("float32"),
                                 "complex128": np.dtype("float64")}
_GPU_MEMORY = (2, 13)  # DLPack's kinds of devices: CUDA's memory, managed or not


class _Pairs:
    """A complex array as one of real numbers, with a last dimension of 2."""

    def __init__(self, array: Any) -> None:
        interface = array.__cuda_array_interface__
        self.dtype = _COMPLEX[array.dtype.name]
        self.__cuda_array_interface__ = dict(interface, shape=(*interface["shape"], 2),
                                             typestr=self.dtype.str)


class CudaArrayAdapter:
    """What tutti.Communicator asks of arrays of one kind."""

    def check(self, array: Any, in_place: bool) -> Any:
        interface = array.__cuda_array_interface__
        if array.dtype.name not in ELEMENT_TYPES and array.dtype.name not in _COMPLEX or \
                not array.dtype.isnative:
            raise ValueError(f"arrays of {array.dtype} cannot be sent")
        if interface.get("mask") is not None:
            raise ValueError("an array with a mask cannot be sent")
        strides = interface.get("strides")
        if strides is not None and not _is_contiguous(interface["shape"], strides,
                                                      array.dtype.itemsize):
            raise ValueError("the array must be contiguous (C order)")
        if in_place and interface["data"][1]:
            raise ValueError("the array is read-only, and cannot be written")
        return array

    def as_real(self, array: Any) -> Optional[_Pairs]:
        return _Pairs(array) if array.dtype.name in _COMPLEX else None

    def type(self, array: Any) -> int:
        return ELEMENT_TYPES[array.dtype.name]

    def shape(self, array: Any) -> Tuple[int, ...]:
        return tuple(array.__cuda_array_interface__["shape"])

    def address(self, array: Any) -> int:
        return int(array.__cuda_array_interface__["data"][0])

    def empty(self, shape: Tuple[int, ...], like: Any) -> Any:
        return self.check(_library_of(like).empty(shape, dtype=like.dtype), True)

    def int64s(self, numbers: Sequence[int], like: Any) -> Any:
        return _library_of(like).asarray(list(numbers), dtype=np.int64)

    def device(self, array: Any) -> Optional[int]:
        """Returns the number of the CUDA device, -1 for memory of the host, and None where the
        array does not say."""
        if not hasattr(array, "__dlpack_device__"):
            return None
        kind, number = (int(part) for part in array.__dlpack_device__())
        return number if kind in _GPU_MEMORY else -1

    def current_stream(self, array: Any) -> int:
        # 1 and 2 stand for the two default streams there as they do for the driver.
        return array.__cuda_array_interface__.get("stream") or 0

    def splits(self, splits: Any) -> List[int]:
        numbers = splits.tolist() if hasattr(splits, "tolist") else splits
        return [int(number) for number in np.asarray(numbers, dtype=np.int64)]

    def make_splits(self, splits: Sequence[int], like: Any) -> np.ndarray:
        return np.array(splits, np.int32)


def _is_contiguous(shape: Sequence[int], strides: Sequence[int], width: int) -> bool:
    if 0 in shape:
        return True
    for size, stride in zip(reversed(shape), reversed(strides)):
        if size != 1 and stride != width:
            return False
        width *= size
    return True


def _library_of(array: Any) -> Any:
    """Returns the module that makes arrays of this kind."""
    library = array.__array_namespace__() if hasattr(array, "__array_namespace__") else \
        sys.modules.get(type(array).__module__.partition(".")[0])
    if not hasattr(library, "empty") or not hasattr(library, "asarray"):
        raise ValueError(f"the library of {type(array).__module__}.{type(array).__name__} has no "
                         "`empty` to make a result with: give `out`")
    return library
