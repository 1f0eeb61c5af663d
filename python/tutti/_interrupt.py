# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C while the main thread waits inside the library.

Python runs signal handlers on the main thread only, between two of its own instructions, and there
are none while the library waits for other ranks. So a thread of ours learns of the signal (Python
writes its number to a descriptor at once) and ends what is waited for.
"""

from __future__ import annotations

import signal
import socket
import threading
from typing import Callable, Optional


class Interrupter:
    """Calls `on_interrupt`, on a thread of its own, when SIGINT arrives that would raise
    KeyboardInterrupt. Without effect off the main thread, and where the program has another use for
    signal.set_wakeup_fd (asyncio has)."""

    def __init__(self, on_interrupt: Callable[[], None]) -> None:
        self._on_interrupt = on_interrupt
        self._sender: Optional[socket.socket] = None
        if threading.current_thread() is not threading.main_thread():
            return
        receiver, sender = socket.socketpair()
        sender.setblocking(False)
        before = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
        if before != -1:
            signal.set_wakeup_fd(before)
            receiver.close()
            sender.close()
            return
        self._sender = sender
        self._thread = threading.Thread(target=self._watch, args=(receiver,),
                                        name="tutti-interrupt", daemon=True)
        self._thread.start()

    def _watch(self, receiver: socket.socket) -> None:
        with receiver:
            while True:
                signals = receiver.recv(64)
                if not signals:
                    return
                if signal.SIGINT in signals and \
                        signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                    self._on_interrupt()

    def close(self) -> None:
        """Gives the descriptor back, where that can be done."""
        sender, self._sender = self._sender, None
        if sender is None:
            return
        if threading.current_thread() is threading.main_thread():
            before = signal.set_wakeup_fd(-1)
            if before not in (-1, sender.fileno()):
                signal.set_wakeup_fd(before)
        sender.close()
        if threading.current_thread() is not self._thread:
            self._thread.join()
