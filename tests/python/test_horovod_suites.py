"""The scripts that run Horovod's suites (horovod_suites.py, horovod_elastic_suite.py), on suites of our
own; starts the ranks itself."""

import contextlib
import importlib.util
import io
import os
import subprocess
import sys
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

ELASTIC = """
import pytest
import horovod.runner.gloo_run
from horovod.runner.common.util import config_parser
from horovod.runner.elastic import constants
from horovod.runner.launch import parse_args, _run_elastic
from common import override_args, temppath

def job(program):
    with override_args("horovodrun", "-np", "1", "--min-num-proc", "1", "python3", "-c", program):
        _run_elastic(parse_args())

def test_ends_well():
    with temppath() as path:
        job(f"open({path!r}, 'w').write('here')")
        assert open(path).read() == "here"

def test_fails():
    with pytest.raises(RuntimeError, match="one or more processes exited with non-zero status"):
        job("raise SystemExit(3)")
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

    def test_elastic_jobs(self):
        with tempfile.TemporaryDirectory() as checkout:
            folder = os.path.join(checkout, "test", "integration")
            os.makedirs(folder)
            with open(os.path.join(folder, "test_elastic_torch.py"), "w", encoding="utf-8") as file:
                file.write(ELASTIC)
            script = os.path.join(os.path.dirname(horovod_suites.__file__), "horovod_elastic_suite.py")
            ended = subprocess.run([sys.executable, script, checkout], stdout=subprocess.PIPE,
                                   text=True, timeout=200, check=False)
        self.assertIn("2 passed", ended.stdout)
        self.assertEqual(ended.returncode, 0)


if __name__ == "__main__":
    unittest.main()
