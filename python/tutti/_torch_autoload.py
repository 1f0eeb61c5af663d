# SPDX-License-Identifier: Apache-2.0
"""Has `import torch` make the backend `tutti` known, so that init_process_group("tutti") is all, and
puts it in the place of "gloo" where TUTTI_TORCH_GLOO=1 asks for that.

PyTorch (2.5 and later) calls load() at the end of its own import, by the entry point
torch.backends. An exception there would break `import torch`, so there is none.
"""

from __future__ import annotations

import os
from typing import Any


def _create(store: Any, rank: int, size: int, timeout: Any) -> Any:
    from tutti.torch import distributed
    return distributed.create(store, rank, size, timeout)


def load() -> None:
    """Registers the backend; what it is made of is imported when the first group is made."""
    try:
        from tutti import _torch_register
        _torch_register.register(_create)
        if os.environ.get("TUTTI_TORCH_GLOO") == "1":
            from tutti import _torch_gloo
            _torch_gloo.take_its_place()
    except Exception:
        pass  # init_process_group("tutti") will say that there is no such backend.
