# SPDX-License-Identifier: Apache-2.0
"""The command `tutti`: the subcommands of this package, and all others by the `tutti` program
(`tutti run`, `tutti perf`, ...): the copy that came with the package, else one on PATH."""

from __future__ import annotations

import os
import shutil
import sys
from typing import NoReturn, Optional

# The subcommands of _commands, which is imported for them alone: `tutti run` starts sooner without.
OWN = ("enable", "disable", "env", "overlay", "audit", "prefix", "which", "wheel")


def _is_script(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(2) == b"#!"


def find() -> Optional[str]:
    """Returns the program's path, or None: TUTTI_PROGRAM alone where the variable is set, else the
    package's copy, else the first `tutti` on PATH that is not the package's own command."""
    named = os.environ.get("TUTTI_PROGRAM")
    if named:
        return named
    bundled = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "tutti")
    if os.access(bundled, os.X_OK):
        return bundled
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        found = shutil.which("tutti", path=folder)
        if found and not _is_script(found):
            return found
    return None


def require() -> str:
    """Returns the program's path. FileNotFoundError, in a sentence, where there is none."""
    path = find()
    if path is None:
        raise FileNotFoundError(
            "there is no `tutti` program: this package was made without one; build it (`make`) and "
            "set TUTTI_PROGRAM or PATH, or start the ranks with mpirun, srun or torchrun")
    return path


def ncclras() -> NoReturn:
    """The command `ncclras`, by the program of this name beside the `tutti` program."""
    try:
        os.execv(os.path.join(os.path.dirname(require()), "ncclras"), ["ncclras", *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"ncclras: {error}")


def main() -> NoReturn:
    """The command `tutti`, and `python -m tutti`."""
    if len(sys.argv) > 1 and sys.argv[1] in OWN:
        from tutti import _commands
        sys.exit(_commands.main(sys.argv[1:]))
    try:
        path = require()
        os.execv(path, ["tutti", *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"tutti: {error}")
