# SPDX-License-Identifier: Apache-2.0
"""Compressors, which make gradients smaller while they travel. A compressor of your own has the two
static methods; those here name a compression of the library instead (`wire`)."""

from __future__ import annotations

from typing import Any, Optional, Tuple


class Compressor:
    """compress(tensor) returns (tensor to send, context); decompress(tensor, context) undoes it."""

    # The tuttiCompression_t that does the same inside the library; None where only the methods can.
    wire: Optional[int] = None

    @staticmethod
    def compress(tensor: Any) -> Tuple[Any, Any]:
        raise NotImplementedError("a compressor needs compress")

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        raise NotImplementedError("a compressor needs decompress")


class NoneCompressor(Compressor):
    """Sends tensors as they are."""
    wire = 0


class FP16Compressor(Compressor):
    """Sends float32 and float64 as float16."""
    wire = 1


class BF16Compressor(Compressor):
    """Sends float32 and float64 as bfloat16."""
    wire = 2


class Compression:
    """What `compression=` may be."""
    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
