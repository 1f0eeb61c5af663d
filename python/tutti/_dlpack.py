# SPDX-License-Identifier: Apache-2.0
"""Exchanges arrays with libraries unknown to the package, by DLPack, which needs no copy where both
sides can do without."""

from __future__ import annotations

import sys
from typing import Any, Callable


def home_of(array: Any) -> Callable[[Any], Any]:
    """Returns a function that turns a result into an array of the library of `array`, by the
    library's from_dlpack. The function returns the result unchanged where from_dlpack is missing or
    fails."""
    take = None
    if hasattr(array, "__array_namespace__"):
        take = getattr(array.__array_namespace__(), "from_dlpack", None)
    if take is None:
        module = sys.modules.get(type(array).__module__.partition(".")[0])
        take = getattr(module, "from_dlpack", None)
    return lambda result: result if take is None else _convert(take, result)


def _convert(take: Callable[[Any], Any], result: Any) -> Any:
    if isinstance(result, tuple):  # alltoall's, with the splits
        return (_convert(take, result[0]), *result[1:])
    try:
        return take(result)
    except (BufferError, RuntimeError, TypeError, ValueError):
        return result
