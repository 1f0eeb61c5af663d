# SPDX-License-Identifier: Apache-2.0
"""Compressors, which make gradients smaller while they travel. A compressor of your own has the two
static methods; those here also name a compression of the library (`wire`), which saves two
copies."""

from __future__ import annotations

from typing import Any, Optional, Tuple

import torch


class Compressor:
    """compress(tensor) returns (tensor to send, context); decompress(tensor, context) undoes it."""

    # The tuttiCompression_t that does the same inside the library; None where only the methods can.
    wire: Optional[int] = None

    @staticmethod
    def compress(tensor: torch.Tensor) -> Tuple[torch.Tensor, Any]:
        raise NotImplementedError("a compressor needs compress")

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        raise NotImplementedError("a compressor needs decompress")


class NoneCompressor(Compressor):
    """Sends tensors as they are."""
    wire = 0

    @staticmethod
    def compress(tensor: torch.Tensor) -> Tuple[torch.Tensor, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor


class _Narrowing(Compressor):
    """Sends float32 and float64 as `dtype`."""
    dtype: torch.dtype

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> Tuple[torch.Tensor, Any]:
        return (tensor.to(cls.dtype) if tensor.is_floating_point() else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor.to(ctx)


class FP16Compressor(_Narrowing):
    """Sends float32 and float64 as float16."""
    wire, dtype = 1, torch.float16


class BF16Compressor(_Narrowing):
    """Sends float32 and float64 as bfloat16."""
    wire, dtype = 2, torch.bfloat16


class Compression:
    """The compressors to choose from."""
    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
