# SPDX-License-Identifier: Apache-2.0
"""Makes the backend `tutti` known to torch.distributed."""

from __future__ import annotations

from typing import Any, Callable


def register(create: Callable[..., Any]) -> None:
    """Makes the backend known, if it is not: for host memory, and for GPUs where PyTorch has CUDA.
    `create` makes a group's backend of the store, the rank, the number of ranks and the time-out, and
    where PyTorch has groups whose members change (2.14) of whether the group is one of them."""
    import torch
    import torch.distributed as dist
    if not dist.is_available() or "TUTTI" in dist.Backend._plugins:
        return
    devices = ["cpu", "cuda"] if torch.version.cuda else ["cpu"]
    try:
        if hasattr(torch._C._distributed_c10d, "ReconfigureOptions"):
            def extended(options: Any, _: Any) -> Any:
                return create(options.store, options.group_rank, options.group_size, options.timeout,
                              options.enable_reconfigure)
            dist.Backend.register_backend("tutti", extended, extended_api=True, devices=devices)
        else:
            dist.Backend.register_backend("tutti", create, devices=devices)
    except TypeError:  # Before PyTorch 2.0 backends were for any device.
        dist.Backend.register_backend("tutti", create)
