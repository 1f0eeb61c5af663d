"""A script written for horovod.torch gives the losses of one process: as it is, under the alias, and
with only its import changed. Starts the ranks itself.

The batch of all ranks together is one process's batch: DistributedSampler deals the same shuffled
list out in turn, n ranks with batches of 64/n, and the script multiplies the rate by n, so the rate
is divided by n.
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "scripts", "digits_horovod.py")
DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples", "data",
                    "digits.csv")
BATCH, RATE, STEPS = 64, 0.2, 20  # steps of an epoch
# Float32, of which only the order of additions differs: the mean of 64 rows at once, or the mean of
# the ranks' means. That is some 1e-7 of the sums in a step, which 60 steps multiply: 1e-6 was seen.
TOLERANCE = 2e-5
# A gradient that travels as float16 has 11 bits, 5e-4 in each element, which 60 steps multiply: 2e-2
# was seen.
FP16_TOLERANCE = 6e-2


class Script:
    """The script's text, with or without another import, run by any number of ranks."""

    def __init__(self, folder):
        self._folder, self._runs = folder, 0

    def run(self, ranks, *options, module="horovod.torch", epochs=3):
        with open(SCRIPT, encoding="utf-8") as file:
            text = file.read()
        line = "import horovod.torch as hvd\n"
        assert text.count(line) == 1, "the import is not where it is looked for"
        self._runs += 1
        path = os.path.join(self._folder, f"script{self._runs}.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text.replace(line, f"import {module} as hvd\n"))
        report = path + ".json"
        program = [sys.executable, path, "--data", DATA, "--no-cuda", "--report", report, "--epochs",
                   str(epochs),
                   "--batch-size", str(BATCH // ranks), "--test-batch-size", "128"]
        if "--use-adasum" not in options:
            program += ["--lr", str(RATE / ranks)]
        if ranks > 1:
            program = [sys.executable, "-m", "tutti", "run", "-n", str(ranks), *program]
        ended = subprocess.run([*program, *options], stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, timeout=800, check=False)
        assert ended.returncode == 0, ended.stdout
        with open(report, encoding="ascii") as file:
            made = json.load(file)
        assert made["workers"] == ranks and len(made["losses"]) == epochs * STEPS, made
        return made


class Base(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.script = Script(folder.name)

    def assert_same(self, alone, together, tolerance, what):
        worst = max(abs(a - b) / max(abs(a), 0.1)
                    for a, b in zip(alone["losses"] + [loss for loss, _ in alone["tests"]],
                                    together["losses"] + [loss for loss, _ in together["tests"]]))
        print(f"{what}: the largest difference of losses is {worst:.1e}")
        self.assertLess(worst, tolerance, what)
        for (_, a), (_, b) in zip(alone["tests"], together["tests"]):
            self.assertLess(abs(a - b), 0.02 if tolerance == FP16_TOLERANCE else 0.003)
        self.assertAlmostEqual(alone["lr"], together["lr"])


class Losses(Base):
    def test_as_in_one_process(self):
        alone = self.script.run(1)
        self.assertLess(alone["losses"][-1], 0.5 * alone["losses"][0], "it learns nothing")
        for ranks in (2, 4):
            for module in ("horovod.torch", "tutti.torch"):
                self.assert_same(alone, self.script.run(ranks, module=module), TOLERANCE,
                                 f"{module} on {ranks}")


class Variants(Base):
    def test_sync_batch_norm(self):
        alone = self.script.run(1, "--sync-bn", epochs=1)
        for ranks in (2, 4):
            self.assert_same(alone, self.script.run(ranks, "--sync-bn", epochs=1), TOLERANCE,
                             f"SyncBatchNorm on {ranks}")

    def test_compression_and_adasum(self):
        alone = self.script.run(1)
        self.assert_same(alone, self.script.run(2, "--fp16-allreduce",
                                                "--gradient-predivide-factor", "2"),
                         FP16_TOLERANCE, "fp16 on 2")
        # No mean of gradients, so other losses: it has to learn as well as one process.
        adasum = self.script.run(2, "--use-adasum", "--lr", "0.1")
        self.assertLess(adasum["tests"][-1][0], 1.2 * alone["tests"][-1][0])


if __name__ == "__main__":
    unittest.main()
