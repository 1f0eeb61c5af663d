# SPDX-License-Identifier: Apache-2.0
"""Which ranks share a machine, and each one's number among those of its machine.

A rank tells who its machine is and, where its launcher gave it one, its number there; rank 0 makes
of that what all ranks go by.
"""

from __future__ import annotations

import socket
from typing import Dict, List, Mapping, Optional, Sequence, Set, Tuple

_BOOT_ID = "/proc/sys/kernel/random/boot_id"

# A rank's number on its machine and how many there are, as its launcher says.
Told = Optional[Tuple[int, int]]


def identity(environ: Mapping[str, str]) -> str:
    """HOROVOD_HOSTNAME, else a name that no other machine has: virtual machines and containers may
    all be called `localhost`. Containers of one machine that have names of their own are told
    apart, too."""
    if environ.get("HOROVOD_HOSTNAME"):
        return environ["HOROVOD_HOSTNAME"]
    name = socket.gethostname()
    try:
        with open(_BOOT_ID, encoding="ascii") as file:
            return f"{name}/{file.read().strip()}"
    except OSError:
        return name


def told(environ: Mapping[str, str], rank: str, size: str) -> Told:
    """What these two variables say, if that makes sense."""
    try:
        number, count = int(environ[rank]), int(environ[size])
    except (KeyError, ValueError):
        return None
    return (number, count) if 0 <= number < count else None


def slurms_tasks(environ: Mapping[str, str]) -> List[int]:
    """How many tasks of the step each node has: 2(x3),1 is 2, 2, 2, 1. Empty where Slurm does not
    say."""
    tasks: List[int] = []
    try:
        for group in filter(None, environ.get("SLURM_STEP_TASKS_PER_NODE", "").split(",")):
            count, _, repeat = group.partition("(x")
            tasks += [int(count)] * (int(repeat.rstrip(")")) if repeat else 1)
    except ValueError:
        return []
    return tasks


def slurm_told(environ: Mapping[str, str]) -> Told:
    """The number among the node's tasks, as Slurm says."""
    tasks = slurms_tasks(environ)
    try:
        number, count = int(environ["SLURM_LOCALID"]), tasks[int(environ["SLURM_NODEID"])]
    except (KeyError, ValueError, IndexError):
        return None
    return (number, count) if 0 <= number < count else None


def _counted(hosts: Sequence[str]) -> List[int]:
    seen: Dict[str, int] = {}
    numbers = []
    for host in hosts:
        numbers.append(seen.get(host, 0))
        seen[host] = numbers[-1] + 1
    return numbers


def settle(hosts: Sequence[str], everybodys: Sequence[Told]) -> Tuple[List[str], List[int]]:
    """The host of each rank, and its number there; by rank, as are the parameters.

    The launcher's numbers count where they are whole: where a host has each of 0 to n-1 once for
    those who were told n. A host that has them several times is several (machines that nothing
    tells apart, or several launchers on one), dealt out in the order of ranks. Else ranks are
    counted, host by host."""
    sets: Dict[Tuple[str, int], List[Set[int]]] = {}
    names: List[Tuple[str, int, int]] = []
    numbers: List[int] = []
    for host, said in zip(hosts, everybodys):
        if said is None:
            return list(hosts), _counted(hosts)
        number, count = said
        parts = sets.setdefault((host, count), [])
        part = next((i for i, taken in enumerate(parts) if number not in taken), len(parts))
        if part == len(parts):
            parts.append(set())
        parts[part].add(number)
        names.append((host, count, part))
        numbers.append(number)
    if any(taken != set(range(count)) for (_, count), parts in sets.items() for taken in parts):
        return list(hosts), _counted(hosts)
    several = {host for host in hosts
               if sum(len(parts) for (name, _), parts in sets.items() if name == host) > 1}
    return [f"{host}#{count}.{part}" if host in several else host
            for host, count, part in names], numbers
