# SPDX-License-Identifier: Apache-2.0
"""horovod.runner.run, which runs a function on ranks of its own."""

from tutti.runner import run

__all__ = ["run"]
