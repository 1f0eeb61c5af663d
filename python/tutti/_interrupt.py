# SPDX-License-Identifier: Apache-2.0
"""Handles Ctrl-C while the main thread waits inside the library.

Python runs signal handlers on the main thread only, between two of its own instructions, and no
instruction runs while the library waits for other ranks. Therefore a thread of the package learns
of the signal, whose number Python writes to a descriptor at once, and ends the wait.
"""

from __future__ import annotations

import signal
import socket
import threading
from typing import Callable, Optional


class Interrupter:
    """Calls `on_interrupt`, on a thread of its own, when a SIGINT that would raise
    KeyboardInterrupt arrives between install and release. Has no effect where the program has
    another use for signal.set_wakeup_fd (asyncio has)."""

    def __init__(self, on_interrupt: Callable[[], None]) -> None:
        self._on_interrupt = on_interrupt
        self._receiver: Optional[socket.socket] = None
        self._sender: Optional[socket.socket] = None
        self._thread: Optional[threading.Thread] = None

    def install(self) -> None:
        """Installs the handler. Does nothing after a first call, or off the main thread, which
        alone may install."""
        if self._sender is not None or not _is_main():
            return
        receiver, sender = socket.socketpair()
        sender.setblocking(False)
        before = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
        if before != -1:
            signal.set_wakeup_fd(before)
            receiver.close()
            sender.close()
            return
        self._receiver, self._sender = receiver, sender
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

    def release(self) -> None:
        """Gives the descriptor back. Off the main thread the handler stays installed, because
        Python would go on writing to the descriptor, which may be another file by then."""
        if self._sender is None or not _is_main():
            return
        sender, thread = self._sender, self._thread
        self._receiver = self._sender = self._thread = None
        _take_back(sender)
        # close alone is not enough, because a child that was forked may hold the descriptor as well.
        sender.shutdown(socket.SHUT_RDWR)
        sender.close()
        if thread is not None:
            thread.join()

    def forget(self) -> None:
        """Uninstalls the handler in the child of a fork, whose signals are not the parent's."""
        receiver, sender = self._receiver, self._sender
        self._receiver = self._sender = self._thread = None
        if receiver is None or sender is None:
            return
        _take_back(sender)
        receiver.close()
        sender.close()


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


def _take_back(sender: socket.socket) -> None:
    before = signal.set_wakeup_fd(-1)
    if before not in (-1, sender.fileno()):
        signal.set_wakeup_fd(before)
