# SPDX-License-Identifier: Apache-2.0
"""Horovod's exceptions."""

from tutti.exceptions import HorovodInternalError, HostsUpdatedInterrupt


def get_version_mismatch_message(name, version, installed_version):
    """Returns a sentence about a library that is installed in an unexpected version."""
    return f"{name} is expected in version {version}, and installed in version {installed_version}"


class HorovodVersionMismatchError(ImportError):
    """A library is installed in an unexpected version."""

    def __init__(self, name, version, installed_version):
        super().__init__(get_version_mismatch_message(name, version, installed_version))
        self.name, self.version, self.installed_version = name, version, installed_version


__all__ = ["HorovodInternalError", "HorovodVersionMismatchError", "HostsUpdatedInterrupt",
           "get_version_mismatch_message"]
