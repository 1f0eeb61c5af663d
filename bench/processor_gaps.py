#!/usr/bin/env python3
"""Measures for how long this machine takes processors away from processes that never wait.

Usage: bench/processor_gaps.py [PROCESSES...]

So many processes look at the clock for a second. Prints how many gaps of more than 0.2 ms each of them saw, what they
lost by them, and the longest; and what the system counted as stolen by other guests of the machine. Threads that poll
are held up just so.
"""

import multiprocessing
import os
import sys
import time

GAP_S = 0.2e-3


def look(_) -> list:
    before = time.perf_counter()
    end, gaps = before + 1, []
    while before < end:
        now = time.perf_counter()
        if now - before > GAP_S:
            gaps.append(now - before)
        before = now
    return gaps


def stolen_s() -> float:
    with open("/proc/stat", encoding="ascii") as stat:
        return int(stat.readline().split()[8]) / os.sysconf("SC_CLK_TCK")


def main() -> int:
    for processes in [int(number) for number in sys.argv[1:]] or [1, os.cpu_count() // 2, os.cpu_count()]:
        before = stolen_s()
        with multiprocessing.Pool(processes) as pool:
            gaps = pool.map(look, range(processes), chunksize=1)
        print(f"{processes:4} processes: {sum(map(len, gaps)) / processes:.1f} gaps each, "
              f"{1e3 * sum(map(sum, gaps)) / processes:.1f} ms lost, longest "
              f"{1e3 * max((max(one, default=0) for one in gaps), default=0):.1f} ms; stolen {stolen_s() - before:.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
