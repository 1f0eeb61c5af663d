#!/usr/bin/env python3
"""Compares a library with an earlier one: starts `tutti perf` with each in turn, and shows the ratios of times.

Where the memory of a process lies can make the process a fifth slower for its whole life, so that libraries are only
compared over many starts. The ratio of a size is the median, over the pairs of starts, of the new time over the earlier.
Usage: bench/earlier.py [--build BUILD] [--pairs N] EARLIER_LIBRARY [options of tutti perf, such as -n 4 -b 8 -e 16M]
"""

import argparse
import collections
import math
import pathlib
import statistics
import subprocess

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "alltoall")


def measure(tutti, library, options):
    """Returns the time out of place, in microseconds, of each collective and size."""
    command = [tutti, "perf", "--library", library, ",".join(COLLECTIVES), *options]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    times, collective = {}, None
    for line in text.splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == "#" and words[1] in COLLECTIVES:
            collective = words[1]
        elif len(words) > 5 and words[0].isdigit():
            times[collective, int(words[0])] = float(words[5])
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path(__file__).parents[1] / "build/release")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("earlier", type=pathlib.Path)
    options, rest = parser.parse_known_args()
    tutti, libraries = options.build / "tools/tutti", (options.build / "src/libtutti.so", options.earlier)
    ratios = collections.defaultdict(list)
    for pair in range(options.pairs):
        first = pair % 2
        times = {which: measure(tutti, libraries[which], rest) for which in (first, 1 - first)}
        for key, new in times[0].items():
            ratios[key].append(new / times[1][key])
    medians = {key: statistics.median(all_of_key) for key, all_of_key in ratios.items()}
    for (collective, size), median in sorted(medians.items()):
        print(f"{collective:15} {size:12} {median:.2f}")
    print(f"geometric mean {math.exp(statistics.fmean(map(math.log, medians.values()))):.2f}")


if __name__ == "__main__":
    main()
