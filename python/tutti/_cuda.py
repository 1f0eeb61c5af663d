# SPDX-License-Identifier: Apache-2.0
"""The few functions of CUDA's driver that the package needs itself."""

from __future__ import annotations

import ctypes

from tutti.exceptions import TuttiError

_UNHANDLED = 1  # ncclUnhandledCudaError


def wait_for_default_stream(device: int) -> None:
    """Returns when the default stream of a device is empty. TuttiError where the driver says
    no."""
    driver = ctypes.CDLL("libcuda.so.1")
    context = ctypes.c_void_p()

    def call(name: str, *arguments: object) -> None:
        result = getattr(driver, name)(*arguments)
        if result != 0:
            raise TuttiError(_UNHANDLED, f"{name} on CUDA device {device} returned {result}")

    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    try:
        call("cuCtxPushCurrent_v2", context)
        try:
            call("cuStreamSynchronize", None)
        finally:
            call("cuCtxPopCurrent_v2", ctypes.byref(context))
    finally:
        call("cuDevicePrimaryCtxRelease_v2", device)
