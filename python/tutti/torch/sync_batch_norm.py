# SPDX-License-Identifier: Apache-2.0
"""Batch normalisation over the batches of all ranks."""

from __future__ import annotations

from typing import Optional

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from tutti._basics import ProcessSet, Sum, global_process_set
from tutti.torch import mpi_ops


class SyncBatchNorm(_BatchNorm):
    """A BatchNorm whose mean and variance are those of all ranks' batches together, which may
    differ in size. Input (N, C, ...), on the host or a GPU. All ranks run it in the same order.
    Gradients are those of the sum of all ranks' losses.

    There are two allreduces of C numbers forward and two backward: the mean first, then the squares
    around it, because the difference of large squares would lose the digits of a small variance.
    All layers with C channels, which come one after another, use the same names, so that the ranks
    need not negotiate each of them. """

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: Optional[float] = 0.1,
                 affine: bool = True, track_running_stats: bool = True,
                 process_set: ProcessSet = global_process_set) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self._process_set = process_set

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2 dimensions, not {input.dim()}")

    def _sum(self, tensor: torch.Tensor, what: str, channels: int) -> torch.Tensor:
        return mpi_ops.allreduce(tensor, name=f"sync_batch_norm.{channels}.{what}", op=Sum,
                                 process_set=self._process_set)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self._check_input_dim(input)
        if not self.training and self.track_running_stats:
            return super().forward(input)
        dtype = input.dtype
        if dtype in (torch.float16, torch.bfloat16):  # hold neither count nor sums
            input = input.float()
        dims = [0] + list(range(2, input.dim()))
        shape = [1, -1] + [1] * (input.dim() - 2)
        channels = input.shape[1]
        own_count = input.numel() // max(channels, 1)
        sums = torch.cat([input.sum(dims), input.new_tensor([float(own_count)])])
        total = self._sum(sums, "sum", channels)
        # The mean must stay differentiable through the sum; the count is no function of the input.
        count = total[-1].detach()
        mean = total[:-1] / count
        centred = input - mean.reshape(shape)
        variance = self._sum((centred * centred).sum(dims), "squares", channels) / count
        if self.track_running_stats:
            self._update(mean.detach(), variance.detach(), float(count))
        scaled = centred * torch.rsqrt(variance + self.eps).reshape(shape)
        if self.affine:
            scaled = scaled * self.weight.reshape(shape) + self.bias.reshape(shape)
        return scaled.to(dtype)

    @torch.no_grad()
    def _update(self, mean: torch.Tensor, variance: torch.Tensor, count: float) -> None:
        self.num_batches_tracked.add_(1)
        rate = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        unbiased = variance * (count / max(count - 1.0, 1.0))
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), rate)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), rate)
