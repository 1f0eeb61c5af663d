# SPDX-License-Identifier: Apache-2.0
"""Arrays of libraries that the package does not know come in, and results go out, by DLPack: without
a copy, where both sides can."""

from __future__ import annotations

import sys
from typing import Any, Callable


def home_of(array: Any) -> Callable[[Any], Any]:
    """What makes a result one of the library of `array`: that library's from_dlpack, or nothing where
    it has none or cannot take the result."""
    take = None
    if hasattr(array, "__array_namespace__"):
        take = getattr(array.__array_namespace__(), "from_dlpack", None)
    if take is None:
        module = sys.modules.get(type(array).__module__.partition(".")[0])
        take = getattr(module, "from_dlpack", None)
    return lambda result: result if take is None else _convert(take, result)


def _convert(take: Callable[[Any], Any], result: Any) -> Any:
    if isinstance(result, tuple):  # of alltoall, with the splits
        return (_convert(take, result[0]), *result[1:])
    try:
        return take(result)
    except (BufferError, RuntimeError, TypeError, ValueError):
        return result
