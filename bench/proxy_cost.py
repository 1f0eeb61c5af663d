#!/usr/bin/env python3
"""Measures the processor time of the threads that move the data of GPUs between hosts.

Usage: bench/proxy_cost.py TUTTI LIBRARY... [--ranks N] [--hosts H] [--collective NAME] [--size 64M] [--iterations I]

TUTTI is the program `tutti`; each LIBRARY has NCCL's interface. The N ranks are processes on this machine that act as
if they were on H hosts (NCCL_HOSTID), so that data passes loopback sockets. While they run, the processor time of their
threads is read from /proc twenty times a second. Prints for each library the time of an operation and, for each name of
a thread but the main one, the processor seconds of all ranks' threads of that name for each GB of the collective.
"""

import argparse
import os
import re
import subprocess
import time
from pathlib import Path


def start_ranks(options: argparse.Namespace, library: str, port: int) -> list[subprocess.Popen]:
    """Starts one process for each rank; rank 0's output can be read."""
    processes = []
    for rank in range(options.ranks):
        own = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(options.ranks), LOCAL_RANK=str(rank),
                   LOCAL_WORLD_SIZE=str(options.ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                   NCCL_SOCKET_IFNAME="lo", NCCL_HOSTID=f"host{rank * options.hosts // options.ranks}")
        command = [options.tutti, "perf", options.collective, "--library", library, "--device", "gpu", "-c", "0",
                   "-b", options.size, "-e", options.size, "-w", "0", "-i", str(options.iterations)]
        processes.append(subprocess.Popen(command, env=own, text=True,
                                          stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL))
    return processes


def read_threads(pid: int) -> dict[tuple[int, str], float]:
    """Returns the processor seconds of the threads of a process and its children, but their first, by number and name."""
    seconds = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        if int(task.name) == pid:
            for child in (task / "children").read_text().split():
                seconds.update(read_threads(int(child)))
            continue
        try:
            text = (task / "stat").read_text()
        except OSError:  # The thread has ended.
            continue
        name = text[text.index("(") + 1:text.rindex(")")]
        fields = text[text.rindex(")") + 2:].split()
        seconds[(int(task.name), name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return seconds


def measure(options: argparse.Namespace, library: str, port: int) -> None:
    """Runs the ranks on one library and prints what their threads took."""
    processes = start_ranks(options, library, port)
    last: dict[tuple[int, str], float] = {}
    while processes[0].poll() is None:
        for process in processes:
            try:
                last.update(read_threads(process.pid))
            except OSError:  # The process has ended.
                pass
        time.sleep(0.05)
    output = processes[0].stdout.read()
    if any(process.wait() != 0 for process in processes):
        raise SystemExit(f"proxy_cost: {library}: a rank failed:\n{output}")
    rows = [line.split() for line in output.splitlines() if re.match(r"\s+\d", line)]
    size, out_of_place = int(rows[0][0]), float(rows[0][5])
    # Operations run out of place, and then as often in place where the collective has that.
    runs = 2 if rows[0][9] != "N/A" else 1
    gigabytes = size * options.iterations * runs / 1e9
    by_name: dict[str, float] = {}
    for (_, name), seconds in last.items():
        by_name[re.sub(r"[ \d]+$", "", name)] = by_name.get(re.sub(r"[ \d]+$", "", name), 0) + seconds
    print(f"{library}: {out_of_place:.0f} us, {gigabytes:.1f} GB")
    for name, seconds in sorted(by_name.items(), key=lambda item: -item[1]):
        if seconds > 0.05:
            print(f"  {name}: {seconds:.2f} s, {seconds / gigabytes:.3f} s for each GB")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("tutti")
    parser.add_argument("libraries", nargs="+")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--collective", default="all_reduce")
    parser.add_argument("--size", default="64M")
    parser.add_argument("--iterations", type=int, default=100)
    options = parser.parse_args()
    for number, library in enumerate(options.libraries):
        measure(options, library, 29700 + number)


if __name__ == "__main__":
    main()
