# SPDX-License-Identifier: Apache-2.0
"""Threads, as scripts and tests for Horovod start them."""

import contextlib
import threading


def in_thread(target, args=(), name=None, daemon=True, silent=False):
    """Starts target(*args) on a thread and returns it. `silent` drops what it raises. ValueError
    for `args` that are no tuple."""
    if not isinstance(args, tuple):
        raise ValueError(f"args must be a tuple, such as ({args!r},), not a {type(args).__name__}")

    def run():
        with contextlib.suppress(BaseException) if silent else contextlib.nullcontext():
            target(*args)
    thread = threading.Thread(target=run, name=name, daemon=daemon)
    thread.start()
    return thread
