#!/usr/bin/env python3
"""Measures what TUTTI_DETERMINISTIC costs; bench/results/deterministic.md is made of what it prints.

    bench/deterministic.py [--build DIR] [--device gpu] [--ranks 2,4] [--net shm,socket] [--types float32,bfloat16]
                           [--collectives all_reduce] [--most 64M] [--rounds 3]

Runs `tutti perf` by turns without and with the setting, so that both meet the same machine; of the rounds, the least
time of each size counts. Prints Markdown.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

COLLECTIVES = ["all_reduce", "reduce_scatter", "reduce"]


def measure(arguments, collective, ranks, net, data_type, deterministic):
    """Size in bytes -> microseconds."""
    environment = {k: v for k, v in os.environ.items() if k != "TUTTI_DETERMINISTIC"}
    if deterministic:
        environment["TUTTI_DETERMINISTIC"] = "1"
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        command = [arguments.build / "tools/tutti", "perf", collective, "-n", str(ranks), "-b", "8", "-e", arguments.most,
                   "-f", "8", "-d", data_type, "--json", out.name, *arguments.extra]
        command += ["--device", "gpu"] if arguments.device == "gpu" else ["--net", net]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              check=False)
        if done.returncode != 0:
            sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}")
        rows = json.load(open(out.name, encoding="utf-8"))
    return {row["bytes"]: row["out_of_place"]["time_us"] for row in rows}


def readable(size):
    for unit, bytes_ in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= bytes_:
            return f"{size // bytes_} {unit}"
    return f"{size} B"


def table(arguments, collective, ranks, net, data_type):
    best = [{}, {}]
    for _ in range(arguments.rounds):
        for deterministic in (False, True):
            for size, us in measure(arguments, collective, ranks, net, data_type, deterministic).items():
                times = best[deterministic]
                times[size] = min(times.get(size, us), us)
    where = "GPUs" if arguments.device == "gpu" else {"shm": "shared memory", "socket": "sockets"}[net]
    lines = [f"### {collective}, {data_type}, {ranks} ranks, {where}", "",
             "| size | free choice (µs) | deterministic (µs) | ratio |", "|---|---|---|---|"]
    for size, free in best[0].items():
        lines.append(f"| {readable(size)} | {free:.1f} | {best[1][size]:.1f} | {best[1][size] / free:.2f} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path(__file__).parent.parent / "build/release")
    parser.add_argument("--device", default="host")
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--net", default="shm,socket")
    parser.add_argument("--types", default="float32,bfloat16")
    parser.add_argument("--collectives", default=",".join(COLLECTIVES))
    parser.add_argument("--most", default="64M")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--extra", nargs="*", default=["-c", "0"])
    arguments = parser.parse_args()
    nets = ["gpu"] if arguments.device == "gpu" else arguments.net.split(",")
    for net in nets:
        for ranks in map(int, arguments.ranks.split(",")):
            for collective in arguments.collectives.split(","):
                for data_type in arguments.types.split(","):
                    print(table(arguments, collective, ranks, net, data_type), flush=True)


if __name__ == "__main__":
    main()
