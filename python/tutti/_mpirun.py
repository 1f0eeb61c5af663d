# SPDX-License-Identifier: Apache-2.0
"""Makes the command line of an mpirun, for jobs started by MPI. The ranks of such a job negotiate
and move tensors of the host by MPI, unless HOROVOD_CONTROLLER and HOROVOD_CPU_OPERATIONS say
otherwise."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from typing import Dict, List, Optional, Tuple

from tutti import _library

# The text of `mpirun --version`, and the plugin for the MPI.
_KINDS = (("Open MPI", "openmpi"), ("OpenRTE", "openmpi"), ("HYDRA", "mpich"), ("MPICH", "mpich"))
# Debian installs both under names of their own, and one of them as mpirun.
_PROGRAMS = ("mpirun", "mpirun.openmpi", "mpirun.mpich")
# The places of a surrounding job, which mpirun's ranks would take for their own.
_PLACES = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
    "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE",
    "HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE", "HOROVOD_HOSTNAME", "HOROVOD_ELASTIC",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT", "TUTTI_ADDR",
    "TUTTI_ELASTIC_ADDR", "TUTTI_ELASTIC_WORKER", "TUTTI_STORE_ADDR")
# Ranks of other hosts get the variables with these beginnings.
_TRAVELLING = ("TUTTI_", "HOROVOD_", "NCCL_", "PYTHON", "OMP_", "MKL_", "PATH", "LD_LIBRARY_PATH")


def _find() -> Tuple[str, str]:
    """Returns the path of an mpirun, and the name of the plugin for its MPI. ValueError without an
    mpirun whose MPI has a plugin."""
    seen = []
    for name in _PROGRAMS:
        path = shutil.which(name)
        if path is None:
            continue
        said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
        kind = next((plugin for mark, plugin in _KINDS if mark in said), None)
        if kind is not None and _library.has_plugin(kind):
            return path, kind
        seen.append(path)
    raise ValueError("there is no mpirun of an MPI for which libtutti has a plugin" +
                     (f"; looked at {', '.join(seen)}" if seen else ""))


def environment(variables: Dict[str, str]) -> Dict[str, str]:
    """Returns the environment for mpirun and its ranks."""
    made = {name: value for name, value in variables.items() if name not in _PLACES}
    made.setdefault("HOROVOD_CONTROLLER", "mpi")
    made.setdefault("HOROVOD_CPU_OPERATIONS", "mpi")
    return made


def command(ranks: int, words: List[str], variables: Dict[str, str], hosts: Optional[str] = None,
            further: str = "", output: Optional[str] = None, tag: bool = False) -> List[str]:
    """Returns the words that start `ranks` ranks of the program `words` by mpirun.

    variables: what `environment` returned. hosts: host:slots,... (default: this host). further:
    more of mpirun's own options, as for a shell. output: a folder, or a pattern of MPICH's, for what
    ranks write. tag: whether each line begins with the rank that wrote it."""
    path, kind = _find()
    made = [path, "-np", str(ranks)]
    if kind == "openmpi":
        made += ["--allow-run-as-root"] if os.geteuid() == 0 else []
        made += ["--tag-output"] if tag else []
        made += ["-H", hosts or f"localhost:{ranks}"]
        made += [] if "-bind-to" in further else ["--bind-to", "none"]
        made += ["--output-filename", output] if output else []
        for name in sorted(variables):
            made += ["-x", name] if name.startswith(_TRAVELLING) else []
    else:
        made += ["-l"] if tag else []
        made += ["-hosts", hosts] if hosts else []
        made += ["-outfile-pattern", output] if output else []
    return [*made, *shlex.split(further), *words]
