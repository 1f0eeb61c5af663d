"""How a job on the torch.distributed backend ends when one rank is done long before the others;
starts the ranks itself."""

import os
import subprocess
import sys
import tempfile
import unittest

# Rank 0's process serves the store. The others first need it, for their first message, when rank 0
# has ended, or waits at its end: it pauses only there.
SCRIPT = """
import os, sys, time, unittest.mock
import torch, torch.distributed as dist
import tutti.torch.distributed
from tutti.torch import _ending

dist.init_process_group("tutti")
rank, number, paused = dist.get_rank(), torch.tensor([os.getpid()]), sys.argv[1]
dist.broadcast(number, 0)

def pause(seconds, sleep=time.sleep):
    open(paused, "w").close()
    sleep(seconds)

def runs(process):
    try:
        os.kill(process, 0)
        return True
    except ProcessLookupError:
        return False

if rank == 0:
    unittest.mock.patch.object(_ending.time, "sleep", pause).start()
else:
    while not os.path.exists(paused) and runs(number.item()):
        time.sleep(0.01)
    if rank == 1:
        dist.send(number, 2)
    else:
        dist.recv(number, 1)
if sys.argv[2] == "destroy":
    dist.destroy_process_group()
print("a rank has ended well")
"""


# The thread that has received a message is slow to come back from PyTorch, and the process ends.
SLOW_RETURN = """
import time
import torch, torch.distributed as dist
import tutti.torch.distributed
from tutti.torch import _worker

def succeed(self, succeed=_worker.Request.succeed):
    self.future.then(lambda done: time.sleep(0.2))  # on this thread, when others know the result
    succeed(self)

_worker.Request.succeed = succeed
dist.init_process_group("tutti")
number = torch.tensor([1])
if dist.get_rank() == 0:
    dist.send(number, 1)
else:
    dist.recv(number, 0)
print("a rank has ended well")
"""


class Ending(unittest.TestCase):
    def run_ranks(self, ranks, script, *arguments):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "train.py")
            with open(path, "w", encoding="utf-8") as file:
                file.write(script)
            program = [sys.executable, path, os.path.join(folder, "paused"), *arguments]
            run = [sys.executable, "-m", "tutti", "run", "-n", str(ranks)]
            ended = subprocess.run([*run, *program],
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   timeout=400, check=False)
        self.assertEqual(ended.returncode, 0, ended.stdout)
        self.assertEqual(ended.stdout.count("a rank has ended well"), ranks, ended.stdout)

    def test_at_exit(self):
        self.run_ranks(3, SCRIPT, "exit")

    def test_when_the_group_is_destroyed(self):
        self.run_ranks(3, SCRIPT, "destroy")

    def test_while_a_thread_comes_back_from_a_message(self):
        self.run_ranks(2, SLOW_RETURN)


if __name__ == "__main__":
    unittest.main()
