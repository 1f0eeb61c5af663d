# SPDX-License-Identifier: Apache-2.0
"""Merges timelines (HOROVOD_TIMELINE) of the ranks of a job, or draws them as a picture.

    python3 -m tutti.timeline trace.json trace.json.* -o all.json
    python3 -m tutti.timeline trace.json trace.json.1 -o step.svg --begin 210 --end 214

all.json is for Perfetto. In the picture a row is a tensor, a box what is being done with it; begin
and end are milliseconds from the first event.

Each rank writes the times of its own machine, and how far that machine's clock is from rank 0's.
Here they become times of rank 0's clock. Ranks of one machine are shifted alike, by the
measurements with the least error that any of them made, and between two of them by what lies
between; a machine whose measurements all allow that its clock is rank 0's is not shifted at all.
"""

from __future__ import annotations

import argparse
import bisect
import html
import json
import sys
from dataclasses import dataclass
from typing import Any, Dict, List, Sequence, Tuple

Event = Dict[str, Any]

# Only the best of measurements this close to one another counts.
_TOGETHER_US = 5e6
# The distance of two clocks changes by no more than this part of the passing time: twice the
# kernel's limit for a clock under correction.
_DRIFT = 1e-3

_LEFT, _WIDTH, _ROW, _TOP = 190, 900, 18, 42
# The beginning of a phase's name, its color, and its name in the legend; the first match counts.
_KINDS = [
    ("NEGOTIATE", "#f2c14e", "agreeing with the other ranks"),
    ("QUEUE", "#c9ced6", "waiting for its turn"),
    ("MEMCPY_IN", "#7fb685", "into the fusion buffer"),
    ("MEMCPY_OUT", "#4c9f70", "out of the fusion buffer"),
    ("tutti", "#2f6690", "moving and reducing"),
    ("", "#c5dcec", "the operation"),
]


@dataclass
class Box:
    """A phase of an operation on a tensor; its times are in microseconds."""
    name: str
    begin: float
    end: float
    depth: int
    note: str = ""


@dataclass
class Row:
    rank: str
    tensor: str
    boxes: List[Box]


@dataclass
class Measurement:
    """A measurement of a clock at a time of the clock: the difference to rank 0's time, and the
    bound of its error, in microseconds."""
    at: float
    shift: float
    error: float

    def agrees(self, other: Measurement) -> bool:
        return (abs(self.shift - other.shift) <=
                self.error + other.error + _DRIFT * abs(self.at - other.at))


class Clock:
    """The clock of one machine, compared with rank 0's."""

    def __init__(self, measurements: Sequence[Measurement]) -> None:
        self.measurements: List[Measurement] = []
        began = 0.0
        for one in sorted(measurements, key=lambda one: one.at):
            if self.measurements and one.at - began < _TOGETHER_US:
                if one.error < self.measurements[-1].error:
                    self.measurements[-1] = one
            else:
                self.measurements.append(one)
                began = one.at
        self._times = [one.at for one in self.measurements]
        self.known = bool(self.measurements)
        self.same = all(abs(one.shift) <= one.error for one in measurements)

    def shift(self, at: float) -> float:
        """Returns the difference between rank 0's time and a time of this clock."""
        if self.same:
            return 0.0
        before, after = self.measurements[0], self.measurements[-1]
        if at <= before.at:
            return before.shift
        if at >= after.at:
            return after.shift
        place = bisect.bisect_left(self._times, at)
        before, after = self.measurements[place - 1], self.measurements[place]
        part = (at - before.at) / (after.at - before.at)
        return before.shift + part * (after.shift - before.shift)

    def explain(self) -> str:
        if not self.known:
            return "its clock was never compared with rank 0's, and is taken as it is"
        best = min(self.measurements, key=lambda one: one.error)
        if self.same:
            return f"its clock is taken for rank 0's, from which it is {best.error:.1f} us at most"
        way = "behind" if best.shift > 0 else "ahead of"
        return (f"its clock is {abs(best.shift) / 1000:.3f} ms {way} rank 0's, within "
                f"{best.error:.1f} us: its times are shifted")


def clocks(files: Sequence[Sequence[Event]]) -> List[Clock]:
    """Returns the clock of each file. Files of one machine share one."""
    hosts: List[Any] = []
    measured: List[List[Measurement]] = []
    for number, events in enumerate(files):
        hosts.append(number)
        measured.append([])
        for event in events:
            if event["ph"] != "M" or event["name"] != "clock":
                continue
            arguments = event["args"]
            hosts[-1] = arguments["host"]
            if "to_rank0_us" in arguments:
                measured[-1].append(Measurement(float(event["ts"]), arguments["to_rank0_us"],
                                                arguments["error_us"]))
    found: Dict[Any, Clock] = {}
    for host in dict.fromkeys(hosts):
        mine = sorted(((i, one) for i, name in enumerate(hosts) if name == host
                       for one in measured[i]), key=lambda pair: pair[1].at)
        # Machines that were copied while they ran may share a name; each rank then has a clock.
        if all(a.agrees(b) for (i, a), (j, b) in zip(mine, mine[1:]) if i != j):
            found[host] = Clock([one for _, one in mine])
    return [found[host] if host in found else Clock(measured[i]) for i, host in enumerate(hosts)]


def merge(files: Sequence[Sequence[Event]]) -> List[Event]:
    """Returns the events of several ranks on rank 0's clock. The end of each negotiation names the
    rank that asked last, and tells how long the negotiating rank waited for the last; and the first
    of the ranks shows when the others asked."""
    pids = [events[0]["pid"] for events in files if events]
    if len(set(pids)) < len(pids):
        raise ValueError("two files are of the same rank")
    merged: List[Event] = []
    for events, clock in zip(files, clocks(files)):
        for event in events:
            if event["ph"] == "M" and event["name"] == "clock":
                continue  # The times are on rank 0's clock from now on.
            event = dict(event)
            event["ts"] = float(event["ts"]) + clock.shift(float(event["ts"]))
            merged.append(event)
    return merged + _show_last(merged)


def _show_last(events: Sequence[Event]) -> List[Event]:
    """Returns the instants at which ranks asked; adds the last rank to the ends of negotiations."""
    labels: Dict[Tuple[Any, Any], str] = {}
    ranks: Dict[Any, str] = {}
    open_boxes: Dict[Tuple[Any, Any], List[Event]] = {}
    agreements: Dict[Tuple[str, int], List[Tuple[Event, Event]]] = {}
    for event in events:
        key, kind = (event["pid"], event.get("tid")), event["ph"]
        if kind == "M" and event["name"] == "process_name":
            ranks[event["pid"]] = event["args"]["name"]
        elif kind == "M" and event["name"] == "thread_name":
            labels[key] = event["args"]["name"]
        elif kind == "B":
            open_boxes.setdefault(key, []).append(event)
        elif kind == "E" and open_boxes.get(key):
            begin = open_boxes[key].pop()
            if begin["name"].startswith("NEGOTIATE") and "round" in event.get("args", {}):
                agreement = (labels[key], event["args"]["round"])
                agreements.setdefault(agreement, []).append((begin, event))
    instants = []
    for pairs in agreements.values():
        if len(pairs) < 2:
            continue
        last = max((begin for begin, _ in pairs), key=lambda begin: begin["ts"])
        first = min((begin for begin, _ in pairs), key=lambda begin: begin["pid"])
        for begin, end in pairs:
            name = ranks.get(begin["pid"], f"rank {begin['pid']}")
            instants.append({"ph": "i", "pid": first["pid"], "tid": first["tid"],
                             "ts": begin["ts"], "name": f"{name} is ready", "s": "t"})
            end["args"] = {**end["args"], "last": ranks.get(last["pid"], f"rank {last['pid']}"),
                           "waited_us": round(last["ts"] - begin["ts"], 3)}
    return instants


def read(events: Sequence[Event]) -> List[Row]:
    """Returns rows by rank and tensor, in the order in which they first appear. Phases without an
    end are left out."""
    ranks: Dict[Any, str] = {}
    rows: Dict[Tuple[Any, Any], Row] = {}
    open_boxes: Dict[Tuple[Any, Any], List[Tuple[str, float]]] = {}
    for event in events:
        key, kind = (event["pid"], event.get("tid")), event["ph"]
        if kind == "M" and event["name"] == "process_name":
            ranks[event["pid"]] = event["args"]["name"]
        elif kind == "M" and event["name"] == "thread_name":
            rows[key] = Row(ranks.get(event["pid"], f"rank {event['pid']}"),
                            event["args"]["name"], [])
        elif kind == "B":
            open_boxes.setdefault(key, []).append((event["name"], float(event["ts"])))
        elif kind == "E" and open_boxes.get(key):
            name, begin = open_boxes[key].pop()
            rows.setdefault(key, Row(f"rank {event['pid']}", str(event.get("tid")), []))
            last = event.get("args", {}).get("last")
            note = f", {last} came last" if last else ""
            rows[key].boxes.append(Box(name, begin, float(event["ts"]), len(open_boxes[key]), note))
    return [row for row in rows.values() if row.boxes]


def _kind(name: str) -> Tuple[str, str, str]:
    return next(kind for kind in _KINDS if name.startswith(kind[0]))


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{html.escape(text)}</text>'


def _scale(begin: float, end: float, bottom: float) -> List[str]:
    """Returns lines at round numbers of milliseconds, seven at most."""
    span = (end - begin) / 1000
    step = next(m * 10.0**e for e in range(-4, 9) for m in (1, 2, 5) if m * 10.0**e * 7 >= span)
    parts = []
    for i in range(int(span / step) + 1):
        x = _LEFT + _WIDTH * i * step / span
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom:.1f}" '
                     'stroke="#e4e7eb"/>')
        parts.append(_text(x, _TOP - 6, f"{i * step:g} ms", 'text-anchor="middle" fill="#667"'))
    return parts


def draw(rows: Sequence[Row], begin: float, end: float) -> str:
    """Returns an SVG of the part between two times, in microseconds on the events' clock."""
    shown = []
    for row in rows:
        boxes = [box for box in row.boxes if box.end > begin and box.begin < end]
        if boxes:
            shown.append(Row(row.rank, row.tensor, sorted(boxes, key=lambda box: box.depth)))
    if not shown:
        raise ValueError("nothing happened in that time")
    y, last_rank, body = float(_TOP), "", []
    for row in shown:
        if row.rank != last_rank:
            y += _ROW * 0.9
            body.append(_text(8, y, row.rank, 'font-weight="bold"'))
            y, last_rank = y + 6, row.rank
        body.append(_text(16, y + _ROW * 0.65, row.tensor[-30:], 'fill="#334"'))
        for box in row.boxes:
            left, right = (_LEFT + _WIDTH * (min(max(t, begin), end) - begin) / (end - begin)
                           for t in (box.begin, box.end))
            inset = 1 + 3 * min(box.depth, 1)
            body.append(
                f'<rect x="{left:.2f}" y="{y + inset:.1f}" width="{max(right - left, 0.4):.2f}" '
                f'height="{_ROW - 2 * inset:.1f}" fill="{_kind(box.name)[1]}"><title>'
                f"{html.escape(box.name)} {box.end - box.begin:.1f} us{html.escape(box.note)}"
                "</title></rect>")
        y += _ROW
    used = {_kind(box.name) for row in shown for box in row.boxes}
    x, legend = float(_LEFT), []
    for kind in (kind for kind in _KINDS if kind in used):
        legend.append(f'<rect x="{x:.0f}" y="{y + 14:.0f}" width="12" height="12" '
                      f'fill="{kind[1]}"/>' + _text(x + 17, y + 24, kind[2], 'fill="#334"'))
        x += 40 + 6.2 * len(kind[2])
    width, height = max(_LEFT + _WIDTH + 20.0, x), y + 40
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        *_scale(begin, end, y), *body, *legend, "</svg>", ""])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m tutti.timeline",
                                     description="merges HOROVOD_TIMELINE files, or draws them")
    parser.add_argument("files", nargs="+")
    parser.add_argument("-o", "--output", required=True,
                        help="a name that ends in .json: all ranks' events; else a picture as SVG")
    parser.add_argument("--begin", type=float, default=0.0,
                        help="of the picture: ms from the first event")
    parser.add_argument("--end", type=float, help="the same (default: the last)")
    parser.add_argument("--last", type=float, help="ms up to the last event, in place of --begin")
    arguments = parser.parse_args()
    files: List[List[Event]] = []
    for path in arguments.files:
        with open(path, encoding="utf-8") as file:
            files.append(json.load(file))
    try:
        events = merge(files)
    except ValueError as error:
        parser.error(f"{error}: {', '.join(arguments.files)}")
    for path, clock in zip(arguments.files, clocks(files)):
        if len(files) > 1 and not (clock.known and clock.same):
            print(f"{path}: {clock.explain()}", file=sys.stderr)
    if arguments.output.endswith(".json"):
        with open(arguments.output, "w", encoding="utf-8") as file:
            json.dump(events, file)
        return
    _picture(parser, arguments, events)


def _picture(parser: argparse.ArgumentParser, arguments: argparse.Namespace,
             events: Sequence[Event]) -> None:
    rows = read(events)
    if not rows:
        parser.error("there is nothing in " + ", ".join(arguments.files))
    first = min(box.begin for row in rows for box in row.boxes)
    last = max(box.end for row in rows for box in row.boxes)
    end = last if arguments.end is None else first + arguments.end * 1000
    begin = first + arguments.begin * 1000 if arguments.last is None else end - arguments.last * 1000
    try:
        picture = draw(rows, begin, end)
    except ValueError as error:
        parser.error(f"{error}; the files are about 0 to {(last - first) / 1000:.0f} ms")
    with open(arguments.output, "w", encoding="utf-8") as file:
        file.write(picture)


if __name__ == "__main__":
    main()
