# SPDX-License-Identifier: Apache-2.0
"""Draws timelines (HOROVOD_TIMELINE) as a picture, one or all ranks' of a job.

    python3 -m tutti.timeline trace.json trace.json.1 -o step.svg --begin 210 --end 214

A row is a tensor, a box what is being done with it; begin and end are milliseconds from the first
event. For more than a look, open the same files in Perfetto.
"""

from __future__ import annotations

import argparse
import html
import json
from dataclasses import dataclass
from typing import Any, Dict, List, Sequence, Tuple

_LEFT, _WIDTH, _ROW, _TOP = 190, 900, 18, 42
# What is being done, its color, and its name in the legend; the first whose beginning matches.
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
    """Something done with a tensor, in microseconds."""
    name: str
    begin: float
    end: float
    depth: int


@dataclass
class Row:
    rank: str
    tensor: str
    boxes: List[Box]


def read(events: Sequence[Dict[str, Any]]) -> List[Row]:
    """Rows by rank and tensor, in the order in which they first appear. What has no end is left
    out."""
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
            rows[key].boxes.append(Box(name, begin, float(event["ts"]), len(open_boxes[key])))
    return [row for row in rows.values() if row.boxes]


def _kind(name: str) -> Tuple[str, str, str]:
    return next(kind for kind in _KINDS if name.startswith(kind[0]))


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{html.escape(text)}</text>'


def _scale(begin: float, end: float, bottom: float) -> List[str]:
    """Lines at round numbers of milliseconds, seven at most."""
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
    """An SVG of what lies between two times, in microseconds on the events' clock."""
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
                f"{html.escape(box.name)} {box.end - box.begin:.1f} us</title></rect>")
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
                                     description="draws HOROVOD_TIMELINE files as SVG")
    parser.add_argument("files", nargs="+")
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("--begin", type=float, default=0.0, help="ms from the first event")
    parser.add_argument("--end", type=float, help="the same (default: the last)")
    parser.add_argument("--last", type=float, help="ms up to the last event, in place of --begin")
    arguments = parser.parse_args()
    events: List[Dict[str, Any]] = []
    for path in arguments.files:
        with open(path, encoding="utf-8") as file:
            events += json.load(file)
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
