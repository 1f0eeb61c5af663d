# SPDX-License-Identifier: Apache-2.0
"""The command `horovodrun`, carried out by `tutti run`, or with --mpi by mpirun: options about ranks
become options, options about the coordinator become its variables, and what cannot be done is
refused in a sentence.

    horovodrun -np 4 python3 train.py
    horovodrun -np 4 -H localhost:2,other:2 --timeline-filename trace.json python3 train.py
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shlex
import sys
from typing import Any, Dict, List, NoReturn, Optional, Sequence, Tuple

from tutti import _features, _mpirun, _program

VERSION = "0.28.1"  # the version of Horovod that has these options

# Option, its type or None for a flag, and the variable that it sets.
_VARIABLES: List[Tuple[str, Optional[type], str]] = [
    ("--cycle-time-ms", float, "HOROVOD_CYCLE_TIME"),
    ("--cache-capacity", int, "HOROVOD_CACHE_CAPACITY"),
    ("--hierarchical-allreduce", None, "HOROVOD_HIERARCHICAL_ALLREDUCE"),
    ("--hierarchical-allgather", None, "HOROVOD_HIERARCHICAL_ALLGATHER"),
    ("--autotune", None, "HOROVOD_AUTOTUNE"),
    ("--autotune-log-file", str, "HOROVOD_AUTOTUNE_LOG"),
    ("--autotune-warmup-samples", int, "HOROVOD_AUTOTUNE_WARMUP_SAMPLES"),
    ("--autotune-steps-per-sample", int, "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE"),
    ("--autotune-bayes-opt-max-samples", int, "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES"),
    ("--autotune-gaussian-process-noise", float, "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE"),
    ("--timeline-filename", str, "HOROVOD_TIMELINE"),
    ("--timeline-mark-cycles", None, "HOROVOD_TIMELINE_MARK_CYCLES"),
    ("--no-stall-check", None, "HOROVOD_STALL_CHECK_DISABLE"),
    ("--stall-check-warning-time-seconds", int, "HOROVOD_STALL_CHECK_TIME_SECONDS"),
    ("--stall-check-shutdown-time-seconds", int, "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"),
    ("--gloo-timeout-seconds", int, "HOROVOD_GLOO_TIMEOUT_SECONDS"),
    ("--start-timeout", int, "TUTTI_INIT_TIMEOUT_S"),
    ("--network-interfaces", str, "NCCL_SOCKET_IFNAME"),
    ("--network-interface", str, "NCCL_SOCKET_IFNAME"),
    ("--mpi-threads-disable", None, "HOROVOD_MPI_THREADS_DISABLE"),
    ("--num-nccl-streams", int, "HOROVOD_NUM_NCCL_STREAMS"),
    ("--thread-affinity", int, "HOROVOD_THREAD_AFFINITY"),
]
# Each of these flags has an opposite --no-..., which sets 0.
_SWITCHES = ("--hierarchical-allreduce", "--hierarchical-allgather", "--autotune",
             "--timeline-mark-cycles", "--mpi-threads-disable")
_LOG_LEVELS = {"TRACE": "TRACE", "DEBUG": "INFO", "INFO": "INFO", "WARNING": "WARN", "ERROR": "WARN",
               "FATAL": "WARN"}
_REFUSED = {
    "--jsrun": "it starts ranks by itself; start them by jsrun with an MPI library instead",
    "--config-file": "no configuration files are read; give the options themselves",
}
# These are for --mpi only.
_FOR_MPI = {
    "--mpi-args": "without --mpi no mpirun is started that would take them",
    "--binding-args": "without --mpi no mpirun is started that would take them; `tutti run --bind` "
                      "binds ranks",
    "--output-filename": "without --mpi output goes to this command's, each line with its rank in "
                         "front",
}
_WITHOUT_EFFECT = ("--disable-cache", "--tcp", "--prefix-output-with-timestamp", "--log-with-timestamp",
                   "--log-without-timestamp", "--stall-check")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="horovodrun", allow_abbrev=False,
        description="Starts the ranks of a job: Horovod's command, carried out by `tutti run`.")
    parser.add_argument("-v", "--version", action="version", version=VERSION)
    parser.add_argument("-cb", "--check-build", action="store_true",
                        help="show what there is, and end")
    parser.add_argument("-np", "--num-proc", dest="np", type=int, help="how many ranks")
    parser.add_argument("--verbose", action="store_true", help="show what is run")
    controller = parser.add_mutually_exclusive_group()
    controller.add_argument("--gloo", action="store_true",
                            help="start ranks without MPI, as is done anyway")
    controller.add_argument("--mpi", action="store_true",
                            help="start ranks by mpirun, and let them talk by MPI")
    hosts = parser.add_argument_group("hosts").add_mutually_exclusive_group()
    hosts.add_argument("-H", "--hosts", help="host:slots,...")
    hosts.add_argument("-hostfile", "--hostfile", help="a file with lines: host slots=N")
    hosts.add_argument("--host-discovery-script",
                       help="a program that writes the hosts to use now; makes the job elastic")
    ssh = parser.add_argument_group("ssh")
    ssh.add_argument("-p", "--ssh-port", type=int)
    ssh.add_argument("-i", "--ssh-identity-file")
    elastic = parser.add_argument_group("elastic jobs")
    elastic.add_argument("--min-np", "--min-num-proc", type=int, dest="min_np")
    elastic.add_argument("--max-np", "--max-num-proc", type=int, dest="max_np")
    elastic.add_argument("--slots-per-host", "--slots", type=int, dest="slots")
    elastic.add_argument("--elastic-timeout", type=int)
    elastic.add_argument("--reset-limit", type=int)
    elastic.add_argument("--blacklist-cooldown-range", type=int, nargs=2)
    elastic.add_argument("--end-failed-hosts", action="store_true",
                         help="a host on which a worker failed loses its other workers, too")
    variables = parser.add_argument_group("the coordinator")
    variables.add_argument("--fusion-threshold-mb", type=int, help="HOROVOD_FUSION_THRESHOLD")
    for option, kind, variable in _VARIABLES:
        how: Dict[str, Any] = {"type": kind} if kind else {"action": "store_const", "const": "1"}
        variables.add_argument(option, dest=option, help=variable, **how)
    for option in _SWITCHES:
        variables.add_argument(option.replace("--", "--no-", 1), dest=option, action="store_const",
                               const="0", help=argparse.SUPPRESS)
    variables.add_argument("--log-level", choices=sorted(_LOG_LEVELS), type=str.upper)
    for option in _FOR_MPI:
        parser.add_argument(option, dest=option, help="for --mpi")
    for option in _REFUSED:
        parser.add_argument(option, dest=option, nargs="?", const="", help=argparse.SUPPRESS)
    for option in _WITHOUT_EFFECT:
        parser.add_argument(option, action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the program of the ranks")
    return parser


def read_hostfile(path: str) -> str:
    """Returns a file's lines `host slots=N`, or `host`, in the form of -H. ValueError for other
    lines."""
    hosts = []
    with open(path, encoding="utf-8") as file:
        for line in file:
            words = line.split("#")[0].split()
            if not words:
                continue
            slots = words[1][len("slots="):] if words[1:] and words[1].startswith("slots=") else "1"
            if len(words) > 2 or not slots.isdigit() or len(words) == 2 and "=" not in words[1]:
                raise ValueError(f"{path}: a line is not `host slots=N`: {line.strip()}")
            hosts.append(f"{words[0]}:{slots}")
    if not hosts:
        raise ValueError(f"{path}: there is no host in it")
    return ",".join(hosts)


def variables_of(given: argparse.Namespace) -> Dict[str, str]:
    """Returns the environment that the options ask for."""
    values = vars(given)
    made = {variable: str(values[option]) for option, _, variable in _VARIABLES
            if values[option] is not None}
    if given.fusion_threshold_mb is not None:
        made["HOROVOD_FUSION_THRESHOLD"] = str(given.fusion_threshold_mb << 20)
    if given.log_level is not None:
        made["HOROVOD_LOG_LEVEL"] = given.log_level
        made["NCCL_DEBUG"] = _LOG_LEVELS[given.log_level]
    return made


def _program_of(given: argparse.Namespace) -> List[str]:
    """Returns the words of the program. ValueError, in a sentence, without a program."""
    for option, reason in {**_REFUSED, **({} if given.mpi else _FOR_MPI)}.items():
        if getattr(given, option) is not None:
            raise ValueError(f"{option}: {reason}")
    if given.np is None:
        raise ValueError("say how many ranks, as in: horovodrun -np 4 python3 train.py")
    command = given.command[1:] if given.command[:1] == ["--"] else given.command
    if not command:
        raise ValueError("say which program to run, as in: horovodrun -np 4 python3 train.py")
    return command


def _hosts_of(given: argparse.Namespace) -> Optional[str]:
    return read_hostfile(given.hostfile) if given.hostfile else given.hosts


def arguments_of(given: argparse.Namespace) -> List[str]:
    """Returns the arguments for `tutti run`. ValueError, in a sentence, for impossible options."""
    command, hosts = _program_of(given), _hosts_of(given)
    made = ["run", "-n", str(given.np), "--tag"]
    max_np = given.max_np
    if given.host_discovery_script and max_np is None:
        max_np = 4096  # without --max-np, -n would be the limit
    for option, value in (("-H", hosts), ("--host-discovery-script", given.host_discovery_script),
                          ("--min-np", given.min_np), ("--max-np", max_np),
                          ("--slots", given.slots), ("--elastic-timeout", given.elastic_timeout),
                          ("--reset-limit", given.reset_limit)):
        if value is not None:
            made += [option, str(value)]
    if given.blacklist_cooldown_range:
        made += ["--blacklist-cooldown-range", *map(str, given.blacklist_cooldown_range)]
    if given.end_failed_hosts:
        made += ["--end-failed-hosts"]
    if hosts or given.host_discovery_script:
        made += ["--env", "*"]
    if given.ssh_port is not None or given.ssh_identity_file:
        made += ["--ssh", "ssh -o BatchMode=yes " + " ".join(_ssh_options(given))]
    return [*made, "--", *command]


def _ssh_options(given: argparse.Namespace) -> List[str]:
    made = ["-p", str(given.ssh_port)] if given.ssh_port is not None else []
    return made + (["-i", given.ssh_identity_file] if given.ssh_identity_file else [])


def mpirun_of(given: argparse.Namespace, variables: Dict[str, str]) -> List[str]:
    """Returns the words of an mpirun. ValueError, in a sentence, for impossible options."""
    command = _program_of(given)
    for option in ("host_discovery_script", "min_np", "max_np"):
        if getattr(given, option) is not None:
            raise ValueError("jobs of MPI are not elastic, because MPI ends a job that lost a rank; "
                             "leave --mpi out")
    if _ssh_options(given):
        raise ValueError("--ssh-port and --ssh-identity-file: tell mpirun by --mpi-args how to reach "
                         "hosts")
    further = " ".join(filter(None, (getattr(given, "--binding-args"), getattr(given, "--mpi-args"))))
    return _mpirun.command(given.np, command, variables, _hosts_of(given), further,
                           getattr(given, "--output-filename"), tag=True)


def check_build() -> str:
    """Returns what `horovodrun --check-build` prints."""
    def line(there: object, name: str) -> str:
        return f"    [{'X' if there else ' '}] {name}"
    on_hosts = [line(_features.mpi_built(), "MPI"), line(_features.gloo_built(), "Gloo")]
    return "\n".join([
        f"Tutti, as Horovod v{VERSION}:", "", "Available Frameworks:",
        line(importlib.util.find_spec("tensorflow"), "TensorFlow"),
        line(importlib.util.find_spec("torch"), "PyTorch"), line(False, "MXNet"), "",
        "Available Controllers:", line(True, "Tutti"), *on_hosts, "",
        "Available Tensor Operations:", line(True, "Tutti"), line(_features.nccl_built(), "NCCL"),
        line(_features.ddl_built(), "DDL (IBM ended it; there is no library of it to be had)"),
        line(_features.has_ccl(), "CCL"), *on_hosts])


def main(arguments: Optional[Sequence[str]] = None) -> NoReturn:
    """The command `horovodrun`, and `python -m tutti._horovodrun`."""
    given = _parser().parse_args(arguments)
    try:
        if given.check_build:
            print(check_build())
            sys.exit(0)
        variables = variables_of(given)
        environment = dict(os.environ, **variables)
        if given.mpi:
            environment = _mpirun.environment(environment)
            words = mpirun_of(given, environment)
        else:
            words = ["tutti", *arguments_of(given)]
        if given.verbose:
            shown = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
            print("horovodrun:", *shown, shlex.join(words), file=sys.stderr, flush=True)
        os.execve(words[0] if given.mpi else _program.require(), words, environment)
    except (OSError, ValueError, ImportError) as error:
        print(f"horovodrun: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
