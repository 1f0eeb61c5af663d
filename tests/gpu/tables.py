"""Tables as in bench/results/gpu.md from what `tutti perf --json` wrote: tables.py FOLDER GPUS MACHINE

FOLDER has KIND.json with rows of all collectives; a table for each kind: graph, plain, registered.
"""

import json
import math
import pathlib
import sys

COMMANDS = {
    "graph": "tutti perf COLLECTIVE,... -n {n} --device gpu --threads -b 256 -e 1G -f 4 --graph 20",
    "plain": "tutti perf COLLECTIVE,... -n {n} --device gpu -b 256 -e 256M -f 4",
    "registered": "tutti perf COLLECTIVE,... -n {n} --device gpu --threads -b 1K -e 1G -f 4 --graph 20 --alloc window",
}
ORDER = ["all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "sendrecv", "reduce", "gather", "scatter"]


def size_text(size):
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:.4g} {name}"
    return f"{size} B"


def cell(times):
    """Microseconds of Tutti, or "of Tutti / of NCCL = ratio", bold where slower."""
    if len(times) == 1:
        return f"{times[0]:.4g}", None
    ratio = times[1] / times[0]
    text = f"{ratio:.2f}"
    return f"{times[0]:.4g} / {times[1]:.4g} = " + (f"**{text}**" if ratio < 0.995 else text), ratio


def table(rows, which="out_of_place"):
    columns, sizes = {}, set()
    for row in rows:  # the same size may be rounded otherwise by some collectives
        asked = 1 << round(math.log2(max(row["bytes"], 1)))
        times = columns.setdefault(row["collective"], {})
        if row[which]:
            times.setdefault(asked, []).append(row[which])
            sizes.add(asked)
    names = [name for name in ORDER if name in columns]
    lines = ["| size | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    ratios, wrong = {name: [] for name in names}, 0
    for size in sorted(sizes):
        cells = []
        for name in names:
            samples = columns[name].get(size, [])
            wrong += sum(sample["wrong"] or 0 for sample in samples)
            if not samples:
                cells.append("–")
                continue
            text, ratio = cell([sample["time_us"] for sample in samples[:2]])
            cells.append(text)
            if ratio:
                ratios[name].append(ratio)
        lines.append(f"| {size_text(size)} | " + " | ".join(cells) + " |")
    means = [f"{math.exp(sum(map(math.log, r)) / len(r)):.2f}" if r else "–" for r in ratios.values()]
    lines.append("| geometric mean of the ratios | " + " | ".join(means) + " |")
    return lines, wrong


def main():
    folder, gpus, machine = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else ""
    print(f"{gpus} GPUs ({machine or 'unknown'}). Microseconds of Tutti / of NCCL = ratio, float32, out of place. Bold: slower than NCCL.")
    bad = 0
    for kind, command in COMMANDS.items():
        path = folder / f"{kind}.json"
        if not path.exists():
            print(f"\n## {kind}: not measured")
            continue
        lines, wrong = table(json.loads(path.read_text(encoding="utf-8")))
        bad += wrong
        print(f"\n## {kind}\n\n    {command.format(n=gpus)} --against libnccl.so.2\n")
        print("\n".join(lines))
    print(f"\nWrong elements: {bad}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
