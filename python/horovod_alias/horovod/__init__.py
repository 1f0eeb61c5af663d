# SPDX-License-Identifier: Apache-2.0
"""Tutti under Horovod's name, for programs with `import horovod.torch as hvd`. Not to be installed
beside Horovod."""

try:
    from tutti.runner import run
except ModuleNotFoundError as _error:
    if _error.name != "tutti":
        raise
    raise ModuleNotFoundError("this horovod is only a name for the package tutti-collectives, which "
                              "is not installed: pip install ./python of Tutti's sources",
                              name="tutti") from None

# The version of Horovod whose behaviour is imitated; scripts choose their calls by the version.
__version__ = "0.28.1"

__all__ = ["__version__", "run"]
