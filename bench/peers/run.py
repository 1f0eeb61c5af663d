#!/usr/bin/env python3
"""Measures Tutti, Open MPI, MPICH and PyTorch's Gloo side by side in one run; prints and writes ratios.

For each network and number of ranks, every library's ranks are started once. Then, for each collective and size, they
take turns: in each round every library measures for a moment while all others sleep in read(). The figure of a library
is the median, over the iterations of all rounds, of the slowest rank's time. See bench/README.md.
"""

import argparse
import contextlib
import datetime
import os
import pathlib
import shlex
import statistics
import sys
import tempfile
import time

import groups
import hosts
import report

COLLECTIVES = ("allreduce", "allgather", "reduce_scatter", "broadcast", "alltoall")
SIZES = tuple(1 << n for n in (3, 6, 8, 10, 12, 14, 15, 16, 18, 20, 22, 24, 26, 28))
QUICK_SIZES = tuple(1 << n for n in (3, 10, 15, 20, 24))
MAX_ITERATIONS = 2000  # a round: beyond this the median does not move
LARGE_BYTES = 16 << 20  # from here on a round is one iteration and is not warmed up: the last one was a call
MAX_CELL_S = 3  # a library that needs longer for its rounds at one size gets fewer of them
MAX_RESTARTS = 2


def parse_size(text):
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    unit = units.get(text[-1:].upper(), 1)
    return int(text[:-1] if unit > 1 else text) * unit


def parse_arguments():
    def names(allowed):
        def parse(text):
            chosen = text.split(",")
            for name in chosen:
                if name not in allowed:
                    raise argparse.ArgumentTypeError(f"{name} is none of {', '.join(allowed)}")
            return chosen
        return parse

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=groups.REPOSITORY / "build/release",
                        help="directory in which Tutti was built (default: build/release)")
    parser.add_argument("--library", type=pathlib.Path, help="measure this libtutti.so instead of the build's")
    parser.add_argument("--earlier", type=pathlib.Path,
                        help="measure this libtutti.so, of an earlier commit, in the same run")
    parser.add_argument("--quick", action="store_true", help="five sizes up to 16 MB and short rounds: two minutes")
    parser.add_argument("--ranks", type=lambda t: [int(n) for n in t.split(",")], default=[2, 4])
    parser.add_argument("--net", type=names(("shm", "tcp", *hosts.NETS)), default=["shm", "tcp"],
                        help="hosts: two network namespaces; hosts-1ms: the same behind a slow cable (default: shm,tcp)")
    parser.add_argument("--collectives", type=names(COLLECTIVES), default=list(COLLECTIVES))
    parser.add_argument("--peers", type=names([p.name for p in groups.PEERS]), default=[p.name for p in groups.PEERS])
    parser.add_argument("--sizes", type=lambda t: [parse_size(s) for s in t.split(",")],
                        help="comma-separated, K and M understood (default: 8 to 256M)")
    parser.add_argument("--rounds", type=int, help="turns of each library per collective and size (default 5, quick 3)")
    parser.add_argument("--name", help="of the result files (default: host-date)")
    parser.add_argument("--out", type=pathlib.Path, default=groups.REPOSITORY / "bench/results",
                        help="where NAME.md and NAME.csv go (default: bench/results)")
    options = parser.parse_args()
    options.sizes = options.sizes or list(QUICK_SIZES if options.quick else SIZES)
    if min(options.sizes) < 4 or max(options.sizes) > groups.POOL_BYTES:
        parser.error("sizes must be from 4 to 256M bytes")
    options.rounds = options.rounds or (3 if options.quick else 5)
    options.round_s = 0.02 if options.quick else 0.06
    options.name = options.name or f"peers-{datetime.date.today().isoformat()}"
    options.library = options.library or next(
        (p for p in (options.build / "libtutti.so", options.build / "src/libtutti.so", *sorted(options.build.glob("**/libtutti.so")))
         if p.exists()), options.build / "libtutti.so")
    return options


def plan_round(call_us, bytes_, round_s):
    """(warmup, iterations, batch) that fill about `round_s`, for a call that takes `call_us`.

    A batch is the calls between two barriers: many for short calls, so that the clock and the ranks' unequal start
    weigh little; one for long calls. The same for all libraries at one size, or a broadcast that does not wait for its
    receivers would look different with each.
    """
    batch = 20 if bytes_ <= 4096 else 5 if bytes_ <= 65536 else 1
    if bytes_ >= LARGE_BYTES:
        return 0, max(1, min(5, int(round_s * 1e6 / call_us))), batch
    iterations = max(1, min(MAX_ITERATIONS, int(round_s * 1e6 / call_us / batch)))
    return max(1, iterations // 10), iterations, batch


class Stage:
    """The groups of one network and number of ranks."""

    def __init__(self, site, peers, troubles, say):
        self.site = site
        self.troubles = troubles  # what went wrong, for the report
        self.say = say
        self.groups = {}
        self.restarts = {}
        for peer in peers:
            self._start(peer)

    def _start(self, peer):
        try:
            self.groups[peer.name] = groups.Group(peer, self.site)
        except groups.Failed as why:
            self._complain(peer.name, why)

    def _complain(self, name, why):
        line = f"{name}, {self.site.ranks} ranks over {self.site.net}: {why}"
        self.say("  " + line)
        self.troubles.append(line)

    def _measure(self, name, *arguments):
        """The group's times, or None if it failed; a dead group is started anew, a bounded number of times."""
        try:
            return self.groups[name].measure(*arguments)
        except groups.Wrong as why:
            self._complain(name, why)
            return None
        except groups.Failed as why:
            self._complain(name, why)
        peer = self.groups.pop(name).peer
        self.restarts[name] = self.restarts.get(name, 0) + 1
        if self.restarts[name] <= MAX_RESTARTS:
            self._start(peer)
        return None

    def cell(self, collective, bytes_, rounds, round_s):
        """{peer: times in µs} of one collective and size: a first look that also checks the result, then the rounds."""
        plans, times, turns = {}, {}, {}
        for name in list(self.groups):
            look = self._measure(name, collective, bytes_, 1, 1 if bytes_ >= LARGE_BYTES else 3, 1, True, 60)
            if look:
                call_us = statistics.median(look)
                plans[name] = plan_round(call_us, bytes_, round_s)
                times[name] = []
                most = min(rounds, 3) if bytes_ > 2 * LARGE_BYTES else rounds
                turns[name] = max(1, min(most, int(MAX_CELL_S * 1e6 / call_us)))
        for turn in range(rounds):
            order = [name for name in plans if turn < turns[name]]
            for name in order[turn % len(order):] + order[:turn % len(order)] if order else []:
                got = self._measure(name, collective, bytes_, *plans[name], False, 60)
                if got is None:
                    del plans[name], times[name]
                else:
                    times[name] += got
        return times

    def close(self):
        for group in self.groups.values():
            group.close()


def measure_all(options, peers, work, say):
    """All rows (dictionaries of report.COLUMNS), and the sentences of what went wrong."""
    rows, troubles = [], []
    for net in options.net:
        with hosts.joined(net, work) if net in hosts.NETS else contextlib.nullcontext():
            for ranks in options.ranks:
                site = groups.Site(work=work, net=net, ranks=ranks)
                measure_site(options, site, [p for p in peers if net in p.over], rows, troubles, say)
    return rows, troubles


def measure_site(options, site, peers, rows, troubles, say):
    """Adds the rows of one network and number of ranks."""
    stage = Stage(site, peers, troubles, say)
    try:
        for collective in options.collectives:
            started = time.monotonic()
            for bytes_ in options.sizes:
                times = stage.cell(collective, bytes_, options.rounds, options.round_s)
                rows += [row(site.net, site.ranks, collective, bytes_, name, t) for name, t in times.items()]
            report.print_table(rows, site.net, site.ranks, collective, say)
            say(f"  ({time.monotonic() - started:.0f} s)")
    finally:
        stage.close()


def row(net, ranks, collective, bytes_, peer, times):
    ordered = sorted(times)
    return {"net": net, "ranks": ranks, "collective": collective, "bytes": bytes_, "peer": peer,
            "median_us": statistics.median(ordered), "p10_us": ordered[len(ordered) // 10],
            "p90_us": ordered[len(ordered) * 9 // 10], "iterations": len(ordered)}


def main():
    options = parse_arguments()
    say = lambda line: print(line, flush=True)  # noqa: E731
    peers = [p for p in groups.PEERS if p.name in options.peers]
    if options.earlier:
        peers += [p for p in groups.EARLIER if groups.compared_tutti(p.name) in options.peers]
    load = os.getloadavg()[0]
    if load > 0.5:
        say(f"WARNING: the machine is busy (load {load:.2f}); these figures will say little.")
    with tempfile.TemporaryDirectory(prefix="tutti-bench-") as directory:
        work = pathlib.Path(directory)
        try:
            missing = groups.build(peers, work, options.library, options.earlier)
        except groups.Unavailable as why:
            sys.exit(f"bench: the common part does not build: {why}")
        for name, why in missing.items():
            say(f"Not measured: {name}: {why}")
        peers = [p for p in peers if p.name not in missing]
        if not peers:
            sys.exit("bench: there is nothing to measure")
        started = time.monotonic()
        try:
            rows, troubles = measure_all(options, peers, work, say)
        except hosts.Unavailable as why:
            sys.exit(f"bench: there are no two hosts here: {why}")
    typed = shlex.join([os.path.relpath(sys.argv[0], groups.REPOSITORY), *sys.argv[1:]])
    facts = report.facts(options, peers, missing, troubles, load, time.monotonic() - started,
                         command=os.environ.get("BENCH_COMMAND") or typed)
    if not rows:
        sys.exit("bench: nothing was measured")
    for path in report.write(rows, facts, options.out, options.name):
        say(f"wrote {path}")


if __name__ == "__main__":
    main()
