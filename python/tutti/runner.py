# SPDX-License-Identifier: Apache-2.0
"""Runs a function on new ranks, from a program that is not a rank itself:

    results = tutti.run(train, args=(0.1,), num_proc=4)

The function and its arguments travel in files of a new folder of this user's, by cloudpickle
where that is installed (functions of notebooks, lambdas), else by pickle; nothing of that comes
from a network.
"""

from __future__ import annotations

import os
import pickle
import re
import socket
import subprocess
import sys
import tempfile
import warnings
from multiprocessing import spawn
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from tutti import _elastic, _launch, _mpirun, _program
from tutti._horovodrun import read_hostfile
from tutti._objects import pickler

# The data that multiprocessing hands its processes, by which they import the modules of this
# process.
_PREPARATION = ("sys_path", "sys_argv", "dir", "orig_dir", "init_main_from_name",
                "init_main_from_path")


def _slots_here(hosts: str) -> int:
    """Returns the number of ranks that fit on the hosts, all of which must be this host."""
    slots = 0
    for field in filter(None, hosts.split(",")):
        host, _, number = field.partition(":")
        if host not in ("localhost", "127.0.0.1", socket.gethostname()):
            raise ValueError(f"run starts ranks of this machine only, not of {field}: use mpirun, "
                             "srun or torchrun, or `tutti run -H`")
        slots += int(number) if number.isdigit() else 1
    return slots


def _older(value: Any, default: Any, older: Any, name: str, instead: str) -> Any:
    if older is None:
        return value
    warnings.warn(f"{name} is deprecated; use {instead}", DeprecationWarning, stacklevel=3)
    return older if value == default else value


def run(func: Callable[..., Any], args: Sequence[Any] = (),
        kwargs: Optional[Mapping[str, Any]] = None, num_proc: int = 1,
        min_num_proc: Optional[int] = None, max_num_proc: Optional[int] = None,
        slots: Optional[int] = None, reset_limit: Optional[int] = None,
        cooldown_range: Optional[Tuple[float, float]] = None, hosts: Optional[str] = None,
        hostfile: Optional[str] = None, host_discovery_script: Optional[str] = None,
        start_timeout: Optional[float] = None, ssh_port: Optional[int] = None,
        ssh_identity_file: Optional[str] = None, disable_cache: Optional[bool] = None,
        output_filename: Optional[str] = None, verbose: Optional[int] = None,
        use_gloo: Optional[bool] = None, use_mpi: Optional[bool] = None,
        mpi_args: Optional[str] = None, network_interface: Optional[str] = None,
        network_interfaces: Optional[Sequence[str]] = None, executable: Optional[str] = None,
        np: Optional[int] = None, min_np: Optional[int] = None, max_np: Optional[int] = None,
        env: Optional[Dict[str, str]] = None) -> List[Any]:
    """Calls func(*args, **kwargs) on `num_proc` new processes of this machine, ranks of one job,
    and returns their results by rank. The function must call init itself.

    min_num_proc makes the job elastic, with as many ranks at least, and max_num_proc or slots (the
    most on this machine) at most; so does host_discovery_script, a program that writes the hosts to
    use now, of which this machine alone can be one. The results are those of the ranks that were
    there in the end. reset_limit and cooldown_range are --reset-limit and
    --blacklist-cooldown-range of `tutti run`, for such a job.
    hosts, hostfile: this machine alone, with enough slots. start_timeout: seconds for the ranks to
    meet. network_interfaces: the interfaces for data, as NCCL_SOCKET_IFNAME. env: further variables
    of the ranks. use_mpi: mpirun starts the ranks, which talk by MPI; mpi_args are further options
    of mpirun, and output_filename its folder for what ranks write.
    np, min_np, max_np and network_interface are older names. ssh_port, ssh_identity_file,
    disable_cache and use_gloo are Horovod's, and not needed.

    RuntimeError where a rank fails; the others are ended then. ValueError for what cannot be: other
    hosts, an elastic job of MPI, and mpi_args or output_filename without use_mpi.
    """
    num_proc = _older(num_proc, 1, np, "np", "num_proc")
    min_num_proc = _older(min_num_proc, None, min_np, "min_np", "min_num_proc")
    max_num_proc = _older(max_num_proc, None, max_np, "max_np", "max_num_proc")
    if network_interface is not None:
        network_interfaces = _older(network_interfaces, None, network_interface.split(","),
                                    "network_interface", "network_interfaces")
    if num_proc < 1:
        raise ValueError(f"num_proc is {num_proc}, and must be 1 or more")
    if use_gloo and use_mpi:
        raise ValueError("give either use_gloo or use_mpi, not both")
    if mpi_args and not use_mpi:
        raise ValueError("mpi_args are for use_mpi: without it no mpirun is started")
    if output_filename and not use_mpi:
        raise ValueError("output_filename: what ranks write goes to this program's output")
    hosts = _one_host(hosts, hostfile, host_discovery_script, num_proc)
    options = _elastic_options(num_proc, min_num_proc, max_num_proc, slots, reset_limit,
                               host_discovery_script)
    if options and use_mpi:
        raise ValueError("use_mpi: jobs of MPI are not elastic, because MPI ends a job that lost a "
                         "rank")
    if cooldown_range is not None:
        options += ["--blacklist-cooldown-range", *map(str, cooldown_range)]
    variables = _variables(env, start_timeout, network_interfaces)
    if use_mpi:
        variables = _mpirun.environment(variables)

    def start(words: List[str]) -> List[str]:
        if use_mpi:
            return _mpirun.command(num_proc, words, variables, hosts, mpi_args or "",
                                   output_filename)
        return [_program.require(), "run", "-n", str(num_proc), *options, *words]
    return _run_in_folder((func, tuple(args), dict(kwargs or {})), start, variables,
                          executable or sys.executable, bool(verbose))


def _variables(env: Optional[Dict[str, str]], start_timeout: Optional[float],
               interfaces: Optional[Sequence[str]]) -> Dict[str, str]:
    """Returns the environment of the ranks."""
    variables = dict(os.environ, **(env or {}))
    if start_timeout is not None:
        variables["TUTTI_INIT_TIMEOUT_S"] = str(start_timeout)
        # The variable would count instead of TUTTI_INIT_TIMEOUT_S.
        variables.pop("HOROVOD_GLOO_TIMEOUT_SECONDS", None)
    if interfaces:
        variables["NCCL_SOCKET_IFNAME"] = ",".join(interfaces)
        variables.setdefault("HOROVOD_GLOO_IFACE", interfaces[0])
    return variables


def _one_host(hosts: Optional[str], hostfile: Optional[str], script: Optional[str], ranks: int
              ) -> Optional[str]:
    """Returns the hosts that were named in either way, all of which must be this host."""
    if sum(given is not None for given in (hosts, hostfile, script)) > 1:
        raise ValueError("give one of hosts, hostfile and host_discovery_script, not both of two")
    if hostfile is not None:
        hosts = read_hostfile(hostfile)
    if hosts and _slots_here(hosts) < ranks:
        raise ValueError(f"num_proc is {ranks}, more than the slots of {hosts}")
    return hosts


def _elastic_options(ranks: int, least: Optional[int], most: Optional[int], slots: Optional[int],
                     reset_limit: Optional[int], script: Optional[str]) -> List[str]:
    """Returns the options that make `tutti run` start an elastic job: only with the least number of
    ranks or a script, as with Horovod."""
    if least is None and script is None:
        return []
    if slots is not None and script is None:
        most = min(slots, most or slots)
    if script is not None and most is None:
        most = 4096  # Without a limit, the number of ranks would be the limit.
    options: List[str] = []
    for option, value in (("--min-np", ranks if least is None else least), ("--max-np", most),
                          ("--slots", slots if script is not None else None),
                          ("--reset-limit", reset_limit), ("--host-discovery-script", script)):
        if value is not None:
            options += [option, str(value)]
    return options


def _run_in_folder(call: Any, start: Callable[[List[str]], List[str]], variables: Dict[str, str],
                   executable: str, verbose: bool) -> List[Any]:
    """Runs the words that `start` makes of the words of one rank, and returns the ranks' results.
    """
    with tempfile.TemporaryDirectory(prefix="tutti-run-") as folder:
        known = spawn.get_preparation_data("tutti")
        with open(os.path.join(folder, "preparation"), "wb") as file:
            pickle.dump({key: known[key] for key in _PREPARATION if key in known}, file)
        with open(os.path.join(folder, "call"), "wb") as file:
            pickler().dump(call, file)
        words = start([executable, "-m", "tutti.runner", folder])
        if verbose:
            print("tutti.run:", *words, file=sys.stderr, flush=True)
        ended = subprocess.run(words, env=variables, check=False)
        if ended.returncode != 0:
            # Scripts look for Horovod's words, the first of each sentence.
            by_mpi = os.path.basename(words[0]).startswith("mpirun")
            raise RuntimeError(
                f"mpirun failed with exit code {ended.returncode}: a rank failed" if by_mpi else
                "Horovod detected that one or more processes exited with non-zero status: a rank "
                f"failed, and `tutti run` ended with {ended.returncode}")
        results = {}
        for name in os.listdir(folder):
            found = re.fullmatch(r"result\.(\d+)", name)
            if found:
                with open(os.path.join(folder, name), "rb") as file:
                    results[int(found[1])] = pickle.load(file)
        return [results[rank] for rank in sorted(results)]


def _rank() -> int:
    if not _elastic.is_elastic():
        return _launch.read().rank
    launcher = _elastic.launcher()
    return launcher.rank() if launcher.generation.number else launcher.worker


def _work(folder: str) -> None:
    """Runs the function as one rank of `run`."""
    with open(os.path.join(folder, "preparation"), "rb") as file:
        spawn.prepare(pickle.load(file))
    with open(os.path.join(folder, "call"), "rb") as file:
        func, args, kwargs = pickle.load(file)
    result = func(*args, **kwargs)
    with open(os.path.join(folder, f"result.{_rank()}"), "wb") as file:
        pickler().dump(result, file)


if __name__ == "__main__":
    _work(sys.argv[1])
