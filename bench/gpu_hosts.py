#!/usr/bin/env python3
"""Measures GPUs of one machine as several hosts beside another library, and prints the table of bench/results/gpu.md.

    bench/gpu_hosts.py [--build DIR] [--gpus 4] [--hosts 2] [--rounds 3] [-b 64] [-e 16K] [-i 20] [-w 5] OTHER_LIBRARY

The ranks of a host have a common NCCL_HOSTID, and hosts are joined by sockets over loop-back. Each round runs a job of
all collectives for either library in turns. The least mean of the rounds counts for each cell.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/gpu"))
import tables  # noqa: E402

COLLECTIVES = ",".join(tables.ORDER)


def run_job(arguments, library, port):
    """Returns the rows that rank 0 has written."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, "rows.json")
        ranks = []
        for rank in range(arguments.gpus):
            environment = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(arguments.gpus), LOCAL_RANK=str(rank),
                               MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), NCCL_SOCKET_IFNAME="lo",
                               NCCL_HOSTID=f"host{rank * arguments.hosts // arguments.gpus}")
            command = [arguments.build / "tools/tutti", "perf", COLLECTIVES, "--library", library, "--device", "gpu",
                       "-b", arguments.b, "-e", arguments.e, "-f", "4", "-i", arguments.i, "-w", arguments.w, "-c", "0",
                       "--timeout", "60"]
            if rank == 0:
                command += ["--json", out]
            ranks.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE))
        said = [rank.communicate()[1].decode() for rank in ranks]
        if any(rank.returncode for rank in ranks):
            sys.exit(f"{library}: {''.join(said)[-2000:]}")
        return json.loads(out.read_text(encoding="utf-8"))


def keep_least(best, rows):
    for row in rows:
        key = (row["collective"], row["bytes"])
        if key not in best or row["out_of_place"]["time_us"] < best[key]["out_of_place"]["time_us"]:
            best[key] = row


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    for name, default in (("--gpus", 4), ("--hosts", 2), ("--rounds", 3)):
        parser.add_argument(name, type=int, default=default)
    for name, default in (("-b", "64"), ("-e", "16K"), ("-i", "20"), ("-w", "5")):
        parser.add_argument(name, default=default)
    parser.add_argument("other")
    arguments = parser.parse_args()
    own = next(arguments.build.glob("src/libtutti.so.0"))
    best = {own: {}, arguments.other: {}}
    for turn in range(arguments.rounds):
        for at, (library, rows) in enumerate(best.items()):
            keep_least(rows, run_job(arguments, library, 29500 + 2 * turn + at))
    # A cell of the table takes the rows of a collective and size in the order of the libraries.
    lines, _ = tables.table([row for rows in best.values() for row in rows.values()])
    print(f"{arguments.gpus} GPUs as {arguments.hosts} hosts, the least of {arguments.rounds} means of {arguments.i} operations\n")
    print("\n".join(lines), flush=True)


if __name__ == "__main__":
    main()
