"""The script that runs Horovod's suites (horovod_suites.py), on a suite of our own; starts the ranks
itself."""

import contextlib
import importlib.util
import io
import os
import tempfile
import unittest

import horovod_suites

SUITE = """
import os
import unittest
import mock
import torch
import horovod.torch as hvd
import horovod.tensorflow

class Small(unittest.TestCase):
    def test_passes(self):
        hvd.init()
        self.assertEqual(hvd.allreduce(torch.ones(1), op=hvd.Sum).item(), 2)

    def test_fails_on_a_rank(self):
        hvd.init()
        self.assertEqual(hvd.rank(), 0, "says why")

    def test_skips(self):
        self.skipTest("for a reason")

    def test_ends_the_process(self):
        os._exit(0)
"""


@unittest.skipUnless(importlib.util.find_spec("pytest"), "needs pytest")
class Suites(unittest.TestCase):
    def test_the_table(self):
        with tempfile.TemporaryDirectory() as checkout:
            folder = os.path.join(checkout, "test", "parallel")
            os.makedirs(folder)
            with open(os.path.join(folder, "test_small.py"), "w", encoding="utf-8") as file:
                file.write(SUITE)
            for more in ([], ["--fresh"]):
                output = os.path.join(checkout, "table.md")
                with contextlib.redirect_stdout(io.StringIO()):
                    status = horovod_suites.main(
                        [checkout, "-n", "2", "--suite", "test_small.py", "--output", output, *more])
                self.assertEqual(status, 1)
                with open(output, encoding="utf-8") as file:
                    written = file.read()
                self.assertIn("| test_small.py | 1 | 2 | 1 |", written)
                self.assertIn("| test_small.py::test_passes | pass |  |", written)
                self.assertRegex(written, r"test_fails_on_a_rank \| fail \| .*says why")
                self.assertRegex(written, r"test_skips \| skip \| .*for a reason")
                self.assertIn("| test_small.py::test_ends_the_process | fail | 2 ranks", written)
        self.assertIn("test_passes", str(horovod_suites.Function("a/test_small.py",
                                                                 "Small::test_passes")))


if __name__ == "__main__":
    unittest.main()
