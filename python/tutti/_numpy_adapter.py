# SPDX-License-Identifier: Apache-2.0
"""NumPy arrays as the coordinator and the communicators see them."""

from __future__ import annotations

import ctypes
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

from tutti._dlpack import home_of

# tuttiElementType_t by the name of the dtype. bfloat16 and the float8s are those of ml_dtypes.
ELEMENT_TYPES: Dict[str, int] = {
    "uint8": 0, "int8": 1, "uint16": 2, "int16": 3, "int32": 4, "int64": 5, "float16": 6,
    "float32": 7, "float64": 8, "bool": 9, "bfloat16": 10, "uint32": 11, "uint64": 12,
    "float8_e4m3fn": 13, "float8_e5m2": 14,
}
# These travel as pairs of numbers.
_COMPLEX: Dict[str, Any] = {"float32": np.complex64, "float64": np.complex128}
_COMPLEX_NAMES = ("complex64", "complex128")


# DLPack's kinds of devices whose memory the host reads: CPU, and pinned memory of CUDA and ROCm.
_HOST_DEVICES = (1, 3, 11)
_DEVICE_NAMES = {2: "a CUDA GPU", 8: "a Metal GPU", 10: "a ROCm GPU", 13: "a CUDA GPU (managed)",
                 14: "an Intel GPU"}


def _check_place(array: Any) -> None:
    """Raises ValueError for an array in memory that NumPy cannot see."""
    place = ""
    if hasattr(array, "__dlpack_device__"):
        kind, number = (int(part) for part in array.__dlpack_device__())
        if kind not in _HOST_DEVICES:
            place = f"{_DEVICE_NAMES.get(kind, f'a device of DLPack kind {kind}')}, number {number}"
    elif hasattr(array, "__cuda_array_interface__"):
        place = _DEVICE_NAMES[2]
    if place:
        raise ValueError(
            f"a {type(array).__name__} lies on {place}, and tutti.numpy works on the host's memory: "
            "copy it there (cupy.asnumpy(array), numpy.asarray(array) of JAX, tensor.cpu()), or let "
            "it stay on the GPU with tutti.torch, which takes it by torch.from_dlpack")


def as_array(array: Any) -> np.ndarray:
    """Returns a NumPy array of anything: of arrays and what has the array interface or DLPack (JAX,
    CuPy on the host, PyTorch) without a copy, of numbers and lists with one. ValueError for other
    objects and for arrays on a GPU."""
    if isinstance(array, np.ndarray):
        return array
    _check_place(array)
    if hasattr(array, "__dlpack__") and hasattr(np, "from_dlpack"):
        try:
            return np.from_dlpack(array)
        except (BufferError, RuntimeError, TypeError):
            pass  # DLPack cannot hand over every type and place; the array interface may.
    try:
        return np.asarray(array)
    except (TypeError, RuntimeError, ValueError) as error:
        raise ValueError(
            f"a {type(array).__module__}.{type(array).__name__} cannot be seen as a NumPy array: "
            f"{error} (tensors of PyTorch: use tutti.torch, or tensor.detach())") from error


class NumpyAdapter:
    """tutti._collectives.Adapter for numpy.ndarray."""

    def bring(self, array: Any, in_place: bool
              ) -> Tuple[np.ndarray, Optional[Callable[[Any], Any]]]:
        if isinstance(array, np.ndarray):
            return array, None
        if in_place:
            raise ValueError("only a numpy.ndarray can be changed in place")
        own = as_array(array)
        return own, home_of(array) if hasattr(array, "__dlpack__") and \
            not isinstance(array, np.generic) else None

    def as_real(self, array: np.ndarray) -> Optional[np.ndarray]:
        if array.dtype.kind != "c":
            return None
        return array.reshape(*array.shape, 1).view(array.real.dtype)

    def as_complex(self, array: np.ndarray) -> np.ndarray:
        return array.view(_COMPLEX[array.dtype.name]).reshape(array.shape[:-1])

    def check(self, array: np.ndarray, in_place: bool) -> np.ndarray:
        if array.dtype.name not in ELEMENT_TYPES and array.dtype.name not in _COMPLEX_NAMES or \
                not array.dtype.isnative:
            raise ValueError(f"arrays of {array.dtype} cannot be sent")
        if in_place and not (array.flags.c_contiguous and array.flags.writeable):
            raise ValueError("an array must be contiguous (C order) and writeable to be changed "
                             "in place")
        return array if array.flags.c_contiguous else np.ascontiguousarray(array)

    def type(self, array: np.ndarray) -> int:
        return ELEMENT_TYPES[array.dtype.name]

    def shape(self, array: np.ndarray) -> Tuple[int, ...]:
        return array.shape

    def address(self, array: np.ndarray) -> int:
        return array.ctypes.data

    def empty(self, shape: Tuple[int, ...], like: np.ndarray) -> np.ndarray:
        return np.empty(shape, like.dtype)

    def int64s(self, numbers: Sequence[int], like: np.ndarray) -> np.ndarray:
        return np.array(numbers, np.int64)

    def copy_in(self, array: np.ndarray, data: int) -> None:
        if array.nbytes:
            ctypes.memmove(array.ctypes.data, data, array.nbytes)

    def device(self, array: np.ndarray) -> int:
        return -1

    def current_stream(self, array: np.ndarray) -> int:
        return 0

    def splits(self, splits: Any) -> List[int]:
        numbers = np.asarray(splits)
        if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
            raise ValueError(f"splits must be a list of whole numbers, not {splits!r}")
        return [int(number) for number in numbers]

    def make_splits(self, splits: Sequence[int], like: np.ndarray) -> np.ndarray:
        return np.array(splits, np.int32)
