# SPDX-License-Identifier: Apache-2.0
"""The command horovodrun."""

from tutti._horovodrun import main as run_commandline

__all__ = ["run_commandline"]
