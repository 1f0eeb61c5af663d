# SPDX-License-Identifier: Apache-2.0
"""Runs a function on ranks of its own, from a program that is none:

    results = tutti.run(train, args=(0.1,), np=4)

The function and what it is given travel in files of a new folder of this user's, by cloudpickle
where that is installed (functions of notebooks, lambdas), else by pickle; nothing of that comes
from a network.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from multiprocessing import spawn
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from tutti import _program
from tutti._objects import pickler

# What a new process must know to import what this one did, as multiprocessing tells its own.
_PREPARATION = ("sys_path", "sys_argv", "dir", "orig_dir", "init_main_from_name",
                "init_main_from_path")


def _check_hosts(hosts: Optional[str]) -> None:
    for host in (hosts or "").split(","):
        if host.split(":")[0] not in ("", "localhost", "127.0.0.1"):
            raise ValueError(f"run starts ranks of this machine only, not of {host}: use mpirun, "
                             "srun or torchrun, or `tutti run --host-discovery-script`")


def run(func: Callable[..., Any], args: Sequence[Any] = (),
        kwargs: Optional[Mapping[str, Any]] = None, np: int = 1, hosts: Optional[str] = None,
        env: Optional[Dict[str, str]] = None, executable: Optional[str] = None,
        **horovods: Any) -> List[Any]:
    """func(*args, **kwargs) on `np` new processes of this machine, ranks of one job: their results,
    by rank. The function calls init itself.

    RuntimeError where a rank fails; the others are ended then. ValueError for hosts other than this
    one. `horovods`: further arguments of horovod.run (verbose, use_gloo, ...), without effect.
    """
    _check_hosts(hosts)
    if np < 1:
        raise ValueError(f"np is {np}, and must be 1 or more")
    with tempfile.TemporaryDirectory(prefix="tutti-run-") as folder:
        known = spawn.get_preparation_data("tutti")
        with open(os.path.join(folder, "preparation"), "wb") as file:
            pickle.dump({key: known[key] for key in _PREPARATION if key in known}, file)
        with open(os.path.join(folder, "call"), "wb") as file:
            pickler().dump((func, tuple(args), dict(kwargs or {})), file)
        ended = subprocess.run(
            [_program.require(), "run", "-n", str(np), executable or sys.executable, "-m",
             "tutti.runner", folder], env=dict(os.environ, **(env or {})), check=False)
        if ended.returncode != 0:
            raise RuntimeError(f"a rank failed: `tutti run` ended with {ended.returncode}")
        results = []
        for rank in range(np):
            with open(os.path.join(folder, f"result.{rank}"), "rb") as file:
                results.append(pickle.load(file))
        return results


def _work(folder: str) -> None:
    """One rank of `run`."""
    from tutti import _launch
    with open(os.path.join(folder, "preparation"), "rb") as file:
        spawn.prepare(pickle.load(file))
    with open(os.path.join(folder, "call"), "rb") as file:
        func, args, kwargs = pickle.load(file)
    result = func(*args, **kwargs)
    with open(os.path.join(folder, f"result.{_launch.read().rank}"), "wb") as file:
        pickler().dump(result, file)


if __name__ == "__main__":
    _work(sys.argv[1])
