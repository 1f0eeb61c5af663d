"""The picture of timelines, in one process."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

from tutti import timeline


def box(rank, tensor, name, begin, end):
    return [{"ph": "B", "pid": rank, "tid": tensor, "ts": begin, "name": name},
            {"ph": "E", "pid": rank, "tid": tensor, "ts": end, "name": ""}]


def of_rank(rank):
    names = [{"ph": "M", "pid": rank, "tid": 0, "ts": 0, "name": "process_name",
              "args": {"name": f"rank {rank}"}},
             {"ph": "M", "pid": rank, "tid": 1, "ts": 0, "name": "thread_name",
              "args": {"name": "allreduce.<w>&"}}]
    outer = box(rank, 1, "ALLREDUCE", 200.0, 300.0)
    return names + box(rank, 1, "NEGOTIATE_ALLREDUCE", 100.0, 200.0) + \
        outer[:1] + box(rank, 1, "tutti", 210.0, 290.0) + outer[1:] + \
        [{"ph": "B", "pid": rank, "tid": 1, "ts": 400.0, "name": "QUEUE"}]  # was killed then


class Picture(unittest.TestCase):
    def test_reading(self):
        (row,) = timeline.read(of_rank(3))
        self.assertEqual((row.rank, row.tensor), ("rank 3", "allreduce.<w>&"))
        self.assertEqual([(b.name, b.begin, b.end, b.depth) for b in row.boxes],
                         [("NEGOTIATE_ALLREDUCE", 100, 200, 0), ("tutti", 210, 290, 1),
                          ("ALLREDUCE", 200, 300, 0)])

    def test_drawing(self):
        rows = timeline.read(of_rank(0) + of_rank(1))
        root = ElementTree.fromstring(timeline.draw(rows, 100, 300))
        titles = [title.text for title in root.iter("{http://www.w3.org/2000/svg}title")]
        self.assertEqual(titles, ["NEGOTIATE_ALLREDUCE 100.0 us", "ALLREDUCE 100.0 us",
                                  "tutti 80.0 us"] * 2)
        words = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
        for word in ("rank 0", "rank 1", "allreduce.<w>&", "moving and reducing"):
            self.assertIn(word, words)
        # What lies outside of the time is not drawn.
        self.assertNotIn("agreeing", timeline.draw(rows, 250, 300))
        with self.assertRaisesRegex(ValueError, "nothing happened"):
            timeline.draw(rows, 1000, 2000)

    def test_program(self):
        with tempfile.TemporaryDirectory() as folder:
            paths = [os.path.join(folder, name) for name in ("t.json", "t.json.1", "t.svg")]
            for rank in range(2):
                with open(paths[rank], "w", encoding="utf-8") as file:
                    json.dump(of_rank(rank), file)
            subprocess.run([sys.executable, "-m", "tutti.timeline", *paths[:2], "-o", paths[2],
                            "--begin", "0.05"], check=True)
            self.assertIn("svg", ElementTree.parse(paths[2]).getroot().tag)
            command = [sys.executable, "-m", "tutti.timeline", *paths[:2], "-o", paths[2]]
            subprocess.run([*command, "--last", "0.05"], check=True)
            with open(paths[2], encoding="utf-8") as file:
                self.assertNotIn("agreeing", file.read())
            missed = subprocess.run([*command, "--begin", "400", "--end", "410"], text=True,
                                    stderr=subprocess.PIPE, check=False)
            self.assertIn("nothing happened in that time; the files are about 0 to 0 ms",
                          missed.stderr)
            self.assertNotIn("Traceback", missed.stderr)


def clock(rank, at, host, shift=None, error=0.0):
    arguments = {"host": host}
    if shift is not None:
        arguments.update(to_rank0_us=shift, error_us=error)
    return {"ph": "M", "pid": rank, "tid": 0, "ts": at, "name": "clock", "args": arguments}


def step(rank, asked, agreed, number, ahead=0.0):
    """One agreement, as a rank writes it whose clock is ahead of rank 0's."""
    row = [{"ph": "M", "pid": rank, "tid": 0, "ts": asked + ahead, "name": "process_name",
            "args": {"name": f"rank {rank}"}},
           {"ph": "M", "pid": rank, "tid": 1, "ts": asked + ahead, "name": "thread_name",
            "args": {"name": "w"}}]
    spans = box(rank, 1, "NEGOTIATE_ALLREDUCE", asked + ahead, agreed + ahead) + \
        box(rank, 1, "ALLREDUCE", agreed + ahead, agreed + ahead + 10)
    spans[1]["args"] = {"round": number}
    return row + spans


def measured(*points):
    return [timeline.Measurement(*point) for point in points]


class Clocks(unittest.TestCase):
    def test_between_measurements(self):
        of_host = timeline.Clock(measured((0, 1000, 5), (10e6, 1100, 5), (30e6, 1000, 5)))
        for at, shift in ((-5e6, 1000), (0, 1000), (5e6, 1050), (10e6, 1100), (20e6, 1050),
                          (30e6, 1000), (90e6, 1000)):
            self.assertAlmostEqual(of_host.shift(at), shift)

    def test_the_best_of_a_time_counts(self):
        of_host = timeline.Clock(measured((0, 1000, 50), (1e6, 1030, 3), (2e6, 980, 60),
                                          (10e6, 1040, 4), (11e6, 900, 300)))
        self.assertEqual(of_host.shift(1e6), 1030)
        self.assertEqual(of_host.shift(10e6), 1040)
        self.assertEqual(of_host.shift(20e6), 1040)

    def test_what_may_be_no_difference_is_none(self):
        self.assertEqual(timeline.Clock(measured((0, 12, 20), (10e6, -15, 15))).shift(3), 0)
        self.assertNotEqual(timeline.Clock(measured((0, 12, 20), (10e6, -15, 14))).shift(3), 0)
        self.assertEqual(timeline.Clock([]).shift(3), 0)

    def test_ranks_of_one_machine_are_shifted_alike(self):
        files = [step(0, 0, 10, 1) + [clock(0, 0, "a", 0, 0)],
                 step(1, 0, 10, 1) + [clock(1, 0, "b"), clock(1, 1, "b", 5000, 20)],
                 step(2, 0, 10, 1) + [clock(2, 0, "b"), clock(2, 2, "b", 4990, 8)],
                 step(3, 0, 10, 1) + [clock(3, 0, "b")],
                 step(4, 0, 10, 1) + [clock(4, 0, "a", 9, 30)],
                 step(5, 0, 10, 1)]
        shifts = [of_rank.shift(0) for of_rank in timeline.clocks(files)]
        self.assertEqual(shifts, [0, 4990, 4990, 4990, 0, 0])
        self.assertIn("4.990 ms behind rank 0's, within 8.0 us", timeline.clocks(files)[3].explain())
        self.assertIn("never compared", timeline.clocks(files)[5].explain())

    def test_machines_of_one_name_that_differ_are_not_one(self):
        files = [step(1, 0, 10, 1) + [clock(1, 0, "b", 5000, 20)],
                 step(2, 0, 10, 1) + [clock(2, 0, "b", -4000, 20)]]
        self.assertEqual([of_rank.shift(0) for of_rank in timeline.clocks(files)], [5000, -4000])

    def test_causes_come_before_effects(self):
        ahead = [0.0, 3_000_000.0, -7_000_000.0]
        asked = [[100.0, 180.0, 150.0], [1150.0, 1100.0, 1900.0]]
        files = [[clock(rank, 0, f"host {rank}", -ahead[rank], 2)] for rank in range(3)]
        for rank in range(3):
            for number in range(2):
                agreed = max(asked[number]) + 5 + rank
                files[rank] += step(rank, asked[number][rank], agreed, number, ahead[rank])
        merged = timeline.merge(files)
        self.assertNotIn("clock", [event["name"] for event in merged])
        ends = [event for event in merged if event["ph"] == "E" and "args" in event]
        for number, (last, waits) in enumerate([("rank 1", [80, 0, 30]), ("rank 2", [750, 800, 0])]):
            mine = [end for end in ends if end["args"]["round"] == number]
            self.assertEqual([end["args"]["last"] for end in mine], [last] * 3)
            self.assertEqual([end["args"]["waited_us"] for end in mine], waits)
            for end in mine:
                self.assertGreaterEqual(end["ts"], max(asked[number]))
        instants = [(event["name"], event["ts"]) for event in merged if event["ph"] == "i"]
        self.assertEqual(instants[3:], [("rank 0 is ready", 1150), ("rank 1 is ready", 1100),
                                        ("rank 2 is ready", 1900)])
        self.assertEqual({event["pid"] for event in merged if event["ph"] == "i"}, {0})
        self.assertIn("NEGOTIATE_ALLREDUCE 755.0 us, rank 2 came last",
                      timeline.draw(timeline.read(merged), 0, 3000))
        # As they stand, rank 2's has ended seconds before the others asked.
        self.assertLess(files[2][-1]["ts"], min(asked[0]))

    def test_two_files_of_one_rank(self):
        with self.assertRaisesRegex(ValueError, "same rank"):
            timeline.merge([of_rank(1), of_rank(1)])

    def test_program(self):
        with tempfile.TemporaryDirectory() as folder:
            paths = [os.path.join(folder, name) for name in ("t.json", "t.json.1", "all.json")]
            for rank, ahead in ((0, 0.0), (1, 2e6)):
                with open(paths[rank], "w", encoding="utf-8") as file:
                    json.dump([clock(rank, 0, str(rank), -ahead, 4)] +
                              step(rank, 100.0, 150.0, 9, ahead), file)
            done = subprocess.run([sys.executable, "-m", "tutti.timeline", *paths[:2], "-o",
                                   paths[2]], check=True, text=True, stderr=subprocess.PIPE)
            self.assertEqual(done.stderr, f"{paths[1]}: its clock is 2000.000 ms ahead of rank 0's,"
                             " within 4.0 us: its times are shifted\n")
            with open(paths[2], encoding="utf-8") as file:
                begins = [event["ts"] for event in json.load(file) if event["ph"] == "B"]
            self.assertEqual(begins, [100, 150, 100, 150])
            twice = subprocess.run([sys.executable, "-m", "tutti.timeline", paths[0], paths[0],
                                    "-o", paths[2]], text=True, stderr=subprocess.PIPE, check=False)
            self.assertIn("two files are of the same rank: ", twice.stderr)
            self.assertNotIn("Traceback", twice.stderr)


if __name__ == "__main__":
    unittest.main()
