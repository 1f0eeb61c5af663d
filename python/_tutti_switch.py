# SPDX-License-Identifier: Apache-2.0
"""Every Python of this environment imports this at its start (tutti_nccl.pth), so it is short, and
does nothing unless TUTTI_NCCL or `tutti enable nccl` asks for Tutti in the place of NCCL."""

import os

SWITCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tutti_nccl.conf")


def asked():
    """Returns whether Tutti is to take NCCL's place in this process; TUTTI_NCCL overrules the
    file, whose first word is on or off."""
    value = os.environ.get("TUTTI_NCCL")
    if value is not None:
        return value not in ("", "0")
    try:
        with open(SWITCH, "rb") as file:
            return file.read(2) == b"on"
    except OSError:
        return False


if asked():
    try:
        import _tutti_nccl
        _tutti_nccl.start()
    except Exception:
        pass  # Part of the package is gone; Python starts all the same.
