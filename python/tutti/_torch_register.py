# SPDX-License-Identifier: Apache-2.0
"""Makes the backend `tutti` known to torch.distributed."""

from __future__ import annotations

from typing import Any, Callable


def register(create: Callable[..., Any]) -> None:
    """Makes the backend known, if it is not: for host memory, and for GPUs where PyTorch has CUDA."""
    import torch
    import torch.distributed as dist
    if not dist.is_available() or "TUTTI" in dist.Backend._plugins:
        return
    devices = ["cpu", "cuda"] if torch.version.cuda else ["cpu"]
    try:
        dist.Backend.register_backend("tutti", create, devices=devices)
    except TypeError:  # Before PyTorch 2.0 backends were for any device.
        dist.Backend.register_backend("tutti", create)
