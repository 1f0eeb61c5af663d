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


if __name__ == "__main__":
    unittest.main()
