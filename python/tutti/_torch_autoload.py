# SPDX-License-Identifier: Apache-2.0
"""Has `import torch` make the backend `tutti` known, for init_process_group("tutti"), and puts the
backend in the place of "gloo" where TUTTI_TORCH_GLOO=1 asks for the replacement.

PyTorch (2.5 and later) calls load() at the end of its own import, by the entry point
torch.backends. load() raises no exception, because an exception would break `import torch`.
"""

from __future__ import annotations

import os
from typing import Any


def _create(*arguments: Any) -> Any:
    from tutti.torch import distributed
    return distributed.create(*arguments)


def register() -> None:
    """Makes the backend known; its modules are imported when the first group is made. PyTorch (2.14 and
    later) calls register() when the name is first used, by the entry point torch.distributed.backends,
    and also where TORCH_DEVICE_BACKEND_AUTOLOAD=0 switches load() off."""
    from tutti import _torch_register
    _torch_register.register(_create)


def load() -> None:
    """Makes the backend known, and puts it in Gloo's place where this was asked for."""
    try:
        register()
        if os.environ.get("TUTTI_TORCH_GLOO") == "1":
            from tutti import _torch_gloo
            _torch_gloo.take_its_place()
    except Exception:
        pass  # init_process_group("tutti") will say that the backend is missing.
