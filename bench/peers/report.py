"""What is printed and written: a table of ratios per network, number of ranks and collective; all times as CSV."""

import csv
import datetime
import itertools
import math
import os
import pathlib
import platform
import statistics
import subprocess
import sys

import groups

COLUMNS = ("net", "ranks", "collective", "bytes", "peer", "median_us", "p10_us", "p90_us", "iterations")
NETS = {"shm": "shared memory", "tcp": "TCP over loopback", "hosts": "two network namespaces",
        "hosts-1ms": "two network namespaces, 1 Gb/s and 1 ms each way"}


def size_text(bytes_):
    for shift, unit in ((20, "M"), (10, "K")):
        if bytes_ >= 1 << shift:
            return f"{bytes_ >> shift} {unit}"
    return str(bytes_)


def ratio_text(value, base):
    if value is None or base is None:
        return "-"
    ratio = value / base
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}"


def _cells(rows, net, ranks, collective):
    """[(bytes, {peer: median µs})] in order of size."""
    cells = {}
    for r in rows:
        if (r["net"], r["ranks"], r["collective"]) == (net, ranks, collective):
            cells.setdefault(r["bytes"], {})[r["peer"]] = r["median_us"]
    return sorted(cells.items())


def fastest_peer(medians):
    """(name, µs) of the fastest library that is not Tutti, or (None, None)."""
    others = {name: t for name, t in medians.items() if not name.startswith(("tutti", "earlier"))}
    return min(others.items(), key=lambda item: item[1]) if others else (None, None)


def table(rows, net, ranks, collective):
    """Header and lines of text cells. All ratios are times over times: below 1 the first named is faster."""
    cells = _cells(rows, net, ranks, collective)
    names = [p.name for p in groups.PEERS + groups.EARLIER if any(p.name in medians for _, medians in cells)]
    ours = [n for n in names if n.startswith("tutti")]
    others = [n for n in names if not n.startswith("tutti")]
    header = ["bytes", "fastest peer", *(f"{n} / fastest" for n in ours),
              *(f"{groups.compared_tutti(n)} / {n}" for n in others if ours)]
    header += [] if ours else [f"{n} / fastest" for n in others]
    lines = []
    for bytes_, medians in cells:
        best, best_us = fastest_peer(medians)
        line = [size_text(bytes_), best or "-", *(ratio_text(medians.get(n), best_us) for n in ours)]
        if ours:
            line += [ratio_text(medians.get(groups.compared_tutti(n)), medians.get(n)) for n in others]
        else:
            line += [ratio_text(medians.get(n), best_us) for n in others]
        lines.append(line)
    return header, lines


def print_table(rows, net, ranks, collective, say):
    header, lines = table(rows, net, ranks, collective)
    if not lines:
        return
    widths = [max(len(x[i]) for x in [header, *lines]) for i in range(len(header))]
    say(f"\n{collective}, {ranks} ranks, {NETS[net]}")
    for line in [header, *lines]:
        say("  " + "   ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)))


def _first(command):
    """First line that `command` prints, or "unknown"."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=groups.REPOSITORY)
        return done.stdout.strip().splitlines()[0] if done.returncode == 0 else "unknown"
    except (OSError, IndexError):
        return "unknown"


def _machine():
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown CPU")
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 30
    system = next((line.split("=", 1)[1].strip('"') for line in pathlib.Path("/etc/os-release").read_text().splitlines()
                   if line.startswith("PRETTY_NAME=")), platform.system())
    return f"{model}, {groups.CORES} cores, {memory} GiB; {system}, Linux {platform.release()}"


def _commit():
    revision = _first(["git", "rev-parse", "--short=12", "HEAD"])
    changed = _first(["git", "status", "--porcelain", "--untracked-files=no", "src", "include", "cmake"])
    return revision + ("" if changed == "unknown" else ", with changes not committed")


def _versions(peers):
    commands = {
        "ompi": ["mpirun.openmpi", "--version"],
        "mpich": ["mpichversion"],
        "gloo": [sys.executable, "-c", "import torch; print('PyTorch', torch.__version__)"],
    }
    found = {p.name: " ".join(_first(commands[p.name]).split()) for p in peers if p.name in commands}
    return "; ".join(f"{name}: {version}" for name, version in found.items())


def facts(options, peers, missing, troubles, load, took_s, command):
    """What a reader needs to judge and repeat the run, as (name, text)."""
    listed = [("machine", _machine()),
              ("commit", _commit()),
              ("date", datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")),
              ("command", f"`{command}`"),
              ("peers", _versions(peers)),
              ("load before", f"{load:.2f}"),
              ("took", f"{took_s / 60:.1f} minutes, {options.rounds} rounds (3 at most above 32 MB)")]
    return listed + [("not measured", f"{name}: {why}") for name, why in missing.items()] + [
        ("trouble", text) for text in troubles]


def summary(rows):
    """One line per network and number of ranks: how Tutti stands against the fastest peer and against Gloo."""
    lines = []
    for net, ranks in dict.fromkeys((r["net"], r["ranks"]) for r in rows):
        against_best, against_gloo = [], []
        for collective in dict.fromkeys(r["collective"] for r in rows):
            for bytes_, medians in _cells(rows, net, ranks, collective):
                _, best_us = fastest_peer(medians)
                if "tutti" not in medians or best_us is None:
                    continue
                against_best.append((medians["tutti"] / best_us, collective, bytes_))
                if "gloo" in medians:
                    against_gloo.append((medians["tutti"] / medians["gloo"], collective, bytes_))
        if not against_best:
            continue
        worst = max(against_best)
        line = (f"- {ranks} ranks, {NETS[net]}: at most twice the fastest peer's time in "
                f"{sum(r <= 2 for r, _, _ in against_best)} of {len(against_best)} cases, no slower than it in "
                f"{sum(r <= 1 for r, _, _ in against_best)}; the worst is {worst[0]:.2f} times "
                f"({worst[1]}, {size_text(worst[2])})")
        if against_gloo:
            line += f"; faster than Gloo in {sum(r < 1 for r, _, _ in against_gloo)} of {len(against_gloo)}"
        lines.append(line + ".")
    return lines


def against_earlier(rows):
    """One line per network, number of ranks and kind of memory: where Tutti is slower than the earlier one by 5 %."""
    lines = []
    for net, ranks in dict.fromkeys((r["net"], r["ranks"]) for r in rows):
        for name in ("earlier", "earlier-mem"):
            ratios = [(medians[groups.compared_tutti(name)] / medians[name], collective, bytes_)
                      for collective in dict.fromkeys(r["collective"] for r in rows)
                      for bytes_, medians in _cells(rows, net, ranks, collective)
                      if name in medians and groups.compared_tutti(name) in medians]
            if not ratios:
                continue
            slower = [f"{collective} {size_text(bytes_)} {ratio:.2f}" for ratio, collective, bytes_ in ratios
                      if ratio > 1.05]
            mean = math.exp(statistics.mean(math.log(ratio) for ratio, _, _ in ratios))
            lines.append(f"- {ranks} ranks, {NETS[net]}, {groups.compared_tutti(name)} / {name}: geometric mean {mean:.2f} of "
                         f"{len(ratios)} cases; above 1.05: {', '.join(slower) or 'none'}.")
    return lines


def write(rows, known, directory, name):
    """Writes NAME.csv (all times) and NAME.md (ratios); returns the two paths."""
    directory.mkdir(parents=True, exist_ok=True)
    csv_path, md_path = directory / f"{name}.csv", directory / f"{name}.md"
    with open(csv_path, "w", newline="", encoding="utf-8") as file:
        for key, text in known:
            file.write(f"# {key}: {text}\n")
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for r in rows:
            writer.writerow(r | {key: f"{r[key]:.3f}" for key in ("median_us", "p10_us", "p90_us")})
    out = [f"# Tutti and its peers: {name}", ""]
    # The table of marks at the top is written by hand, and kept.
    kept = md_path.read_text(encoding="utf-8").splitlines() if md_path.exists() else []
    marks = list(itertools.takewhile(lambda line: not line.startswith("- "), kept[2:]))
    out += marks if any(line.startswith("|") for line in marks) else []
    out += [f"- {key}: {text}" for key, text in known]
    out += ["", "Ratios of times (median over iterations of the slowest rank's time), all libraries taking turns in one "
            "run; below 1 the first named is faster. float32, sum, out of place; `bytes` as nccl-tests counts. Times are "
            f"in [{csv_path.name}]({csv_path.name}); how they were taken is in [bench/README.md](../README.md).", ""]
    out += summary(rows) + against_earlier(rows) + [""]
    for net, ranks, collective in dict.fromkeys((r["net"], r["ranks"], r["collective"]) for r in rows):
        header, lines = table(rows, net, ranks, collective)
        out += [f"## {collective}, {ranks} ranks, {NETS[net]}", "", "| " + " | ".join(header) + " |",
                "|" + "---|" * len(header)]
        out += ["| " + " | ".join(line) + " |" for line in lines] + [""]
    md_path.write_text("\n".join(out), encoding="utf-8")
    return csv_path, md_path
