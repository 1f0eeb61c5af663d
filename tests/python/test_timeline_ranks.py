"""Timelines that the ranks of a job have written, merged."""

import json
import os
import shutil
import tempfile
import time
import unittest

import numpy as np

import tutti.numpy as hvd
from tutti import timeline
from tutti._basics import _job

STEPS = 5
LATE = 2


def setUpModule():
    hvd.init()


def load(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def has_distance(path):
    return any(event["name"] == "clock" and "to_rank0_us" in event["args"] for event in load(path))


def with_wrong_clock(events, ahead):
    """As a machine would have written them whose clock is ahead by so many microseconds."""
    wrong = json.loads(json.dumps(events))
    for event in wrong:
        event["ts"] += ahead
        if event["name"] == "clock":
            event["args"]["host"] += f" {ahead}"
            if "to_rank0_us" in event["args"]:
                event["args"]["to_rank0_us"] -= ahead
    return wrong


def agreements(events):
    """Of each agreement on "w" the beginnings, the ends and what the ends say, by rank."""
    labels, begins, found = {}, {}, {}
    for event in events:
        key = (event["pid"], event.get("tid"))
        if event["name"] == "thread_name":
            labels[key] = event["args"]["name"]
        elif event["ph"] == "B" and event["name"].startswith("NEGOTIATE"):
            begins[key] = event["ts"]
        elif event["ph"] == "E" and "round" in event.get("args", {}) and \
                labels[key] == "allreduce.w":
            found.setdefault(event["args"]["round"], {})[event["pid"]] = \
                (begins[key], event["ts"], event["args"])
    return list(found.values())


def worst_breach(events):
    """By how much some rank ended a negotiation before another had begun it."""
    return max(max(begin for begin, _, _ in by_rank.values()) -
               min(end for _, end, _ in by_rank.values()) for by_rank in agreements(events))


class Merged(unittest.TestCase):
    def write(self):
        """All ranks' files, on rank 0. The last rank is late in every step."""
        folder = hvd.broadcast_object(tempfile.mkdtemp() if hvd.rank() == 0 else None, 0)
        path = os.path.join(folder, "trace.json")
        mine = path if hvd.rank() == 0 else f"{path}.{hvd.rank()}"
        hvd.start_timeline(path)
        deadline = time.monotonic() + 60
        while not has_distance(mine) and time.monotonic() < deadline:
            time.sleep(0.01)
        cached = _job.counter("cached")
        for _ in range(STEPS):
            values = np.ones(100)
            if hvd.rank() != LATE:
                handle = hvd.allreduce_async(values, name="w")
            hvd.barrier()  # by now the others have asked
            if hvd.rank() == LATE:
                time.sleep(0.02)
                handle = hvd.allreduce_async(values, name="w")
            hvd.synchronize(handle)
        self.assertGreaterEqual(_job.counter("cached") - cached, STEPS - 1)
        hvd.stop_timeline()
        hvd.barrier()
        files = [load(path)] + [load(f"{path}.{rank}") for rank in range(1, hvd.size())]
        hvd.barrier()
        if hvd.rank() == 0:
            shutil.rmtree(folder)
        return files

    def test_clocks_and_the_late(self):
        files = self.write()
        # One machine: whatever was measured, nothing moves.
        for clock in timeline.clocks(files):
            self.assertTrue(clock.known and clock.same, clock.measurements)
        self.assertLess(worst_breach(timeline.merge(files)), 1)
        # Every step but the first comes from the cache, and each says who was waited for.
        steps = agreements(timeline.merge(files))
        self.assertEqual(len(steps), STEPS)
        for by_rank in steps:
            for rank in range(hvd.size()):
                _, _, says = by_rank[rank]
                self.assertEqual(says["last"], f"rank {LATE}")
                if rank == LATE:
                    self.assertEqual(says["waited_us"], 0)
                else:
                    self.assertGreaterEqual(says["waited_us"], 20_000)

        apart = [with_wrong_clock(events, ahead)
                 for events, ahead in zip(files, (0.0, 5e6, -3e6))]
        self.assertGreater(worst_breach(sum(apart, [])), 1e6)
        bounds = sum(clock.measurements[0].error for clock in timeline.clocks(apart))
        self.assertLess(worst_breach(timeline.merge(apart)), 1 + bounds)


if __name__ == "__main__":
    unittest.main()
