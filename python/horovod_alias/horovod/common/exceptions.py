# SPDX-License-Identifier: Apache-2.0
"""Horovod's exceptions."""

from tutti.exceptions import HorovodInternalError, HostsUpdatedInterrupt

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt"]
