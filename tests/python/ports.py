"""Ports for the jobs that tests start."""

import socket


def hold(test):
    """A port where ranks may listen (with SO_REUSEADDR), which nobody who asks for any port gets until
    the test is over: not even while the ranks still import what they need."""
    held = socket.socket()
    test.addCleanup(held.close)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("", 0))
    return held.getsockname()[1]
