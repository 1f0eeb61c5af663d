# SPDX-License-Identifier: Apache-2.0
"""Tutti under Horovod's name, so that `import horovod.torch as hvd` stays as it is. Not to be
installed beside Horovod."""

from tutti.runner import run

# The version of Horovod whose behaviour this is; scripts choose by it what they may use.
__version__ = "0.28.1"

__all__ = ["__version__", "run"]
