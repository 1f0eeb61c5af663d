# SPDX-License-Identifier: Apache-2.0
"""Tutti under Horovod's name, so that `import horovod.torch as hvd` stays as it is. Not to be
installed beside Horovod."""

from tutti import __version__
from tutti.runner import run

__all__ = ["__version__", "run"]
