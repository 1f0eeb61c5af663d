# SPDX-License-Identifier: Apache-2.0
"""Checks arguments of users, and raises a ValueError with a sentence for wrong ones."""

from __future__ import annotations

import operator
import warnings
from typing import Any, Optional

# Reduction operators, by Horovod's numbers.
Average, Sum, Adasum, Min, Max, Product = range(6)


def whole_number(value: Any, what: str) -> int:
    """Returns `value` as an int. ValueError for anything that is no whole number, floats
    included."""
    try:
        return operator.index(value)
    except TypeError:
        raise ValueError(f"{what} must be a whole number, not {value!r}") from None


def check_factor(factor: Any, what: str) -> float:
    """Raises ValueError for anything but a number."""
    try:
        return float(factor)
    except (TypeError, ValueError):
        raise ValueError(f"{what} must be a number, not {factor!r}") from None


def check_op(op: Optional[int], average: Optional[bool] = None) -> int:
    """Returns the operator meant by `op` and Horovod's old `average` together."""
    if average is not None:
        if op is not None:
            raise ValueError("give either op or average, not both; average is the older name")
        warnings.warn("average is deprecated; use op=Average or op=Sum", DeprecationWarning,
                      stacklevel=4)
        return Average if average else Sum
    if op is None:
        return Average
    if isinstance(op, bool) or op not in range(6):
        raise ValueError(f"there is no reduction operator {op!r}; there are Average, Sum, Adasum, "
                         "Min, Max and Product")
    return int(op)
