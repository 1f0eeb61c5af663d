"""Elastic jobs as a whole: workers that are killed, hosts that come and go. Starts the jobs itself.

The `tutti` program is named by TEST_LAUNCHER. Hosts other than this one are reached by a stand-in
for ssh that runs the command here.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
EXAMPLES = os.path.join(HERE, "..", "..", "python", "examples")
LIMIT_S = 120

# Before a program: its pauses are as long as the file says that Job.set_pace writes. What a test waits
# for so comes before the program's end, however long it takes. It prints how often it has paused.
PACED = """
import itertools, os, time
def paced(unused, sleep=time.sleep, pauses=itertools.count(1)):
    print(f"pause {next(pauses)} of process {os.getpid()}", flush=True)
    with open(os.environ["TEST_PACE"], encoding="ascii") as file:
        sleep(float(file.read()))
time.sleep = paced
"""

# Counts up to its argument, in steps that are committed; prints who it is.
COUNTS = PACED + """
import sys
import numpy as np
import tutti.elastic
import tutti.numpy as hvd

state = tutti.elastic.ObjectState(step=0, total=np.zeros(2))

@tutti.elastic.run
def train(state):
    print(f"here rank={hvd.rank()} size={hvd.size()} step={state.step} pid={os.getpid()} "
          f"local={hvd.local_rank()}/{hvd.local_size()} cross={hvd.cross_size()}", flush=True)
    while state.step < int(sys.argv[1]):
        state.total += hvd.allreduce(np.ones(2), name="one")  # an average: 1 whatever the size
        state.step += 1
        state.commit()
        if state.step == 5:
            print("five steps", flush=True)
        time.sleep(0.02)

train(state)
assert state.total.tolist() == [state.step] * 2, state.total
print(f"end rank={hvd.rank()} size={hvd.size()} step={state.step}", flush=True)
"""

# With children that end as processes do.
FORKS = COUNTS.replace("""        state.commit()
""", """        state.commit()
        if state.step % 10 == 0:
            child = os.fork()
            if child == 0:
                sys.exit(7)
            assert os.waitpid(child, 0)[1] == 7 << 8
""")

# Reads with a worker process that lives as long as the rank, whose death it outlives for a while.
READS = """
import os, time
import torch
import tutti.torch as hvd

hvd.init()
model = torch.nn.Linear(1, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.0),
                                     named_parameters=model.named_parameters())
state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0, last=100000)
loader = torch.utils.data.DataLoader(torch.arange(100000.0), batch_size=2, num_workers=1,
                                     persistent_workers=True)

@hvd.elastic.run
def train(state):
    print(f"here rank={hvd.rank()} size={hvd.size()} step={state.step} pid={os.getpid()}", flush=True)
    if hvd.size() == 2:
        state.last = min(state.last, state.step + 20)
    for x in loader:
        if state.step >= state.last:
            return
        optimizer.zero_grad()
        model(x[:, None]).sum().backward()
        optimizer.step()
        state.step += 1
        state.commit()
        if state.step == 5:
            print("five steps", flush=True)
        time.sleep(0.02)

train(state)
print(f"end rank={hvd.rank()} size={hvd.size()}", flush=True)
"""


# The example, at the pace of the test.
DIGITS = PACED + """
import runpy, sys
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


class Job:
    """`tutti run`, whose output is read line by line while the test acts."""

    def __init__(self, arguments, hosts=None, pace_s=0.02):
        self.folder = tempfile.TemporaryDirectory()
        self.pace_file = os.path.join(self.folder.name, "pace")
        self.set_pace(pace_s)
        self.hosts_file = os.path.join(self.folder.name, "hosts")
        self.ssh = os.path.join(self.folder.name, "ssh")
        with open(self.ssh, "w", encoding="ascii") as file:
            file.write('#!/bin/sh\nexec sh -c "$2"\n')
        os.chmod(self.ssh, 0o755)
        command = [os.environ["TEST_LAUNCHER"], "run", "--tag", "--ssh", self.ssh]
        if hosts is not None:
            self.set_hosts(hosts)
            command += ["--host-discovery-script", f"cat {self.hosts_file}",
                        "--discovery-interval", "0.2"]
        self.process = subprocess.Popen(command + arguments, text=True, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT,
                                        env=dict(os.environ, TEST_PACE=self.pace_file))
        self.lines = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            with self._changed:
                self.lines.append(line)
                self._changed.notify_all()
        with self._changed:
            self.lines.append("")
            self._changed.notify_all()

    @staticmethod
    def _write(path, text):
        """At once, for who reads it at any time."""
        with open(path + ".new", "w", encoding="ascii") as file:
            file.write(text)
        os.replace(path + ".new", path)

    def set_hosts(self, hosts):
        self._write(self.hosts_file, hosts)

    def set_pace(self, pause_s):
        self._write(self.pace_file, str(pause_s))

    def text(self):
        return "".join(self.lines)

    def count(self, pattern):
        with self._changed:
            return len(re.findall(pattern, self.text()))

    def wait_for(self, pattern, count=1):
        """The matches, once there are as many."""
        deadline = time.monotonic() + LIMIT_S
        with self._changed:
            while True:
                found = list(re.finditer(pattern, self.text()))
                if len(found) >= count:
                    return found
                if self.lines and self.lines[-1] == "" or time.monotonic() > deadline:
                    self.process.terminate()
                    raise AssertionError(f"{pattern!r} did not come {count} times in:\n"
                                         f"{self.text()}")
                self._changed.wait(1)

    def finish(self):
        """The exit status and everything written."""
        try:
            status = self.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"did not end:\n{self.text()}") from None
        self._reader.join()
        return status, self.text()


def counts(*options, steps=60, hosts=None, pace_s=0.02):
    return Job([*options, sys.executable, "-c", COUNTS, str(steps)], hosts, pace_s)


class Digits(unittest.TestCase):
    def test_digits_go_on_when_one_is_killed_and_another_comes(self):
        try:
            import torch  # noqa: F401
        except ImportError as error:
            self.skipTest(str(error))
        script = os.path.join(EXAMPLES, "digits_elastic.py")
        job = Job(["--min-np", "2", "--max-np", "3", "--blacklist-cooldown-range", "0.2", "1",
                   sys.executable, "-c", DIGITS, script, "--epochs", "6"], "localhost:3\n", 0.1)
        job.wait_for("epoch 0 done by 3 ranks")
        first = job.wait_for(r"process (\d+) is rank (\d) of 3 in epoch 0", 3)
        # Not rank 0 alone is special, nor is it not: the one that dies has samples of its own.
        victim = next(int(match[1]) for match in first if match[2] == "1")
        pauses = f"pause [0-9]+ of process {victim}\n"
        job.wait_for(pauses, job.count(pauses) + 10)  # well into the next epoch
        job.set_pace(1)
        os.kill(victim, signal.SIGKILL)
        job.wait_for(r"is rank \d of 2 in epoch \d", 2)
        # Its successor takes part later, in a numbering of its own.
        job.wait_for(r"is rank 2 of 3 in epoch [1-5]")
        job.set_pace(0.02)
        status, text = job.finish()
        self.assertEqual(status, 0, text)
        self.assertIn("epoch 5 done by 3 ranks", text)
        self.assertRegex(text, r"every sample was seen 6 to \d times in 6 epochs")
        # No more than what makes the parts of three ranks even, in each epoch and after each change;
        # what the dead one had processed in that epoch would be a hundred or more.
        self.assertLess(int(re.search(r"epochs, (\d+) more than once", text)[1]), 25, text)
        self.assertRegex(text, r"was killed by signal 9")


class Readers(unittest.TestCase):
    def test_a_rank_dies_whose_loader_has_workers(self):
        try:
            import torch  # noqa: F401
        except ImportError as error:
            self.skipTest(str(error))
        job = Job(["--min-np", "2", "--max-np", "3", "--blacklist-cooldown-range", "0", "0",
                   sys.executable, "-c", READS])
        first = job.wait_for(r"rank=(\d) size=3 step=0 pid=(\d+)", 3)
        job.wait_for("five steps", 3)
        os.kill(next(int(match[2]) for match in first if match[1] == "1"), signal.SIGKILL)
        job.wait_for(r"here rank=\d size=2 step=\d", 2)
        status, text = job.finish()
        self.assertEqual(status, 0, text)
        self.assertEqual(len(re.findall(r"end rank=\d size=2", text)), 2, text)


class Elastic(unittest.TestCase):
    def test_children_leave_the_launcher_alone(self):
        status, text = Job(["-n", "2", "--min-np", "2", sys.executable, "-c", FORKS, "30"]).finish()
        self.assertEqual(status, 0, text)
        self.assertEqual(len(re.findall("end rank=. size=2 step=30", text)), 2, text)
        self.assertNotIn("launcher is gone", text)

    def test_rank_0_dies(self):
        job = counts("--min-np", "2", "--max-np", "3", pace_s=0.5)
        first = job.wait_for(r"rank=(\d) size=3 step=0 pid=(\d+)", 3)
        job.wait_for("five steps", 3)
        os.kill(next(int(match[2]) for match in first if match[1] == "0"), signal.SIGKILL)
        job.set_pace(0.02)
        resumed = job.wait_for(r"here rank=\d size=2 step=(\d+)", 2)
        self.assertEqual(resumed[0][1], resumed[1][1])
        self.assertGreater(int(resumed[0][1]), 0)
        status, text = job.finish()
        self.assertEqual(status, 0, text)
        self.assertEqual(len(re.findall(r"end rank=\d size=2 step=60", text)), 2, text)

    def test_hosts_come_and_go(self):
        job = counts("--min-np", "1", steps=300, hosts="localhost:1\n", pace_s=0.5)
        job.wait_for(r"here rank=0 size=1 step=0 .*local=0/1 cross=1")
        job.set_hosts("localhost:1\nalpha:2\n")
        job.wait_for(r"here rank=[12] size=3 step=[1-9]\d* .*local=[01]/2", 2)
        job.set_hosts("# localhost is gone\nalpha:2\n")
        job.wait_for(r"here rank=[01] size=2 step=[1-9]\d* .*local=[01]/2 cross=1", 2)
        job.set_pace(0)
        status, text = job.finish()
        self.assertEqual(status, 0, text)
        self.assertEqual(len(re.findall(r"end rank=\d size=2 step=300", text)), 2, text)
        self.assertIn("is not needed any more", text)

    def test_reset_limit(self):
        job = counts("--min-np", "1", "--max-np", "3", "--reset-limit", "0", steps=10000)
        first = job.wait_for(r"rank=\d size=3 step=0 pid=(\d+)", 3)
        os.kill(int(first[0][1]), signal.SIGKILL)
        status, text = job.finish()
        self.assertEqual(status, 137, text)
        self.assertIn("began anew 0 times, which is its limit", text)

    def test_too_few_are_left(self):
        job = counts("--min-np", "2", "--max-np", "2", "--elastic-timeout", "20",  # to come at first, too
                     "--blacklist-cooldown-range", "0", "0", steps=10000)
        first = job.wait_for(r"rank=\d size=2 step=0 pid=(\d+)", 2)
        os.kill(int(first[0][1]), signal.SIGKILL)
        status, text = job.finish()
        self.assertEqual(status, 137, text)
        self.assertIn("only 1 of at least 2 workers", text)

    def test_a_script_that_fails_leaves_the_list(self):
        job = counts("--min-np", "1", steps=200, hosts="localhost:2\n", pace_s=0.5)
        job.wait_for(r"here rank=\d size=2 step=0", 2)
        job.set_hosts("localhost:2:3 nonsense\n")
        job.wait_for("host discovery script failed")
        job.set_pace(0.02)
        status, text = job.finish()
        self.assertEqual(status, 0, text)
        self.assertEqual(len(re.findall(r"end rank=\d size=2", text)), 2, text)

    def test_the_key_is_in_no_command_line(self):
        job = counts("--min-np", "1", steps=60, hosts="alpha:1\n", pace_s=0.5)
        found = job.wait_for(r"here rank=0 size=1 step=0 pid=(\d+)")
        with open(f"/proc/{found[0][1]}/environ", "rb") as file:
            key = re.search(rb"TUTTI_COMM_KEY=([^\0]+)", file.read())[1]
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    self.assertNotIn(key, file.read())
            except OSError:
                pass
        job.set_pace(0)
        self.assertEqual(job.finish()[0], 0)


if __name__ == "__main__":
    unittest.main()
