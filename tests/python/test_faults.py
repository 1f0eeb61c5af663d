"""What the ranks see when one of them dies or stays away; starts the ranks itself."""

import os
import signal
import subprocess
import sys
import time
import unittest

import ports

DIES = """
import os, sys, time
import numpy as np
import tutti.numpy as hvd
hvd.init()
began = time.monotonic()
try:
    for i in range(1000):
        hvd.allreduce(np.ones(4), name=f"t{i}")
        if hvd.rank() == 1:
            os.kill(os.getpid(), 9)
except hvd.HorovodInternalError as error:
    assert "rank 1" in str(error), error
    assert time.monotonic() - began < 60
    print("saw it:", error)
    sys.exit(0)
sys.exit(3)
"""

# The child has copies of all that its parent had open, and lives on.
DIES_WITH_A_CHILD = DIES.replace("""            os.kill(""", """            if os.fork() == 0:
                os.closerange(0, 3)
                time.sleep(100)
                os._exit(0)
            os.kill(""")

STAYS_AWAY = """
import os, sys
os.environ["HOROVOD_GLOO_TIMEOUT_SECONDS"] = "1"
import tutti.numpy as hvd
try:
    hvd.init()
except ValueError as error:
    assert "did not meet" in str(error) and "rank 1 did not arrive" in str(error), error
    sys.exit(0)
sys.exit(3)
"""

# Rank 1 comes when rank 0 has ended, which has to end without it.
IS_INTERRUPTED = """
import sys
import numpy as np
import tutti.numpy as hvd
hvd.init()
hvd.allreduce(np.ones(4), name="first")
try:
    print("ready", flush=True)
    if hvd.rank() == 1:
        sys.stdin.readline()
    hvd.allreduce(np.ones(4), name="second")
except KeyboardInterrupt:
    sys.exit(10)
except hvd.HorovodInternalError as error:
    print(error)
    sys.exit(11)
sys.exit(3)
"""

IS_INTERRUPTED_ADDING = IS_INTERRUPTED.replace('hvd.allreduce(np.ones(4), name="second")',
                                               "hvd.add_process_set([0, 1])")

# Rank 1 meets the other, and then does not begin the job with it.
IS_INTERRUPTED_BEGINNING = """
import sys
import tutti.numpy as hvd
from tutti import _launch
launch = _launch.read()
if launch.rank == 1:
    launch.meet(b"")
    print("ready", flush=True)
    sys.stdin.readline()
    sys.exit(11)
try:
    print("ready", flush=True)
    hvd.init()
except KeyboardInterrupt:
    sys.exit(10)
"""


def await_asleep(pid):
    """Waits until the main thread of a process sleeps: until it is found asleep twice without having run in between."""
    deadline = time.monotonic() + 60
    before = None
    while time.monotonic() < deadline:
        with open(f"/proc/{pid}/task/{pid}/status", encoding="ascii") as file:
            state = [line for line in file if line.startswith(("State", "voluntary", "nonvoluntary"))]
        if "S (" in state[0] and state == before:
            return
        before = state
        time.sleep(0.005)
    raise AssertionError(f"process {pid} does not sleep")


def start(script, rank, size, port):
    environment = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1",
                       MASTER_PORT=str(port), TUTTI_COMM_KEY="a secret of 32 bytes for a test.")
    return subprocess.Popen([sys.executable, "-c", script], env=environment, stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


class Faults(unittest.TestCase):
    def test_a_rank_dies(self):
        port = ports.hold(self)
        ranks = [start(DIES, rank, 3, port) for rank in range(3)]
        outputs = [rank.communicate(timeout=90)[0] for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [0, -9, 0], "\n".join(outputs))

    def test_a_rank_dies_whose_child_lives(self):
        port = ports.hold(self)
        ranks = [start(DIES_WITH_A_CHILD, rank, 3, port) for rank in range(3)]
        outputs = [rank.communicate(timeout=90)[0] for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [0, -9, 0], "\n".join(outputs))

    def interrupt(self, script):
        port = ports.hold(self)
        ranks = [start(script, rank, 2, port) for rank in range(2)]
        for rank in ranks:
            self.assertEqual(rank.stdout.readline(), "ready\n")
        await_asleep(ranks[0].pid)
        ranks[0].send_signal(signal.SIGINT)
        ranks[0].wait(60)
        outputs = [rank.communicate(timeout=60)[0] for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [10, 11], "\n".join(outputs))

    def test_ctrl_c_ends_a_wait_here_and_for_the_others(self):
        self.interrupt(IS_INTERRUPTED)

    def test_ctrl_c_ends_the_adding_of_a_process_set(self):
        self.interrupt(IS_INTERRUPTED_ADDING)

    def test_ctrl_c_ends_init(self):
        self.interrupt(IS_INTERRUPTED_BEGINNING)

    def test_a_rank_stays_away(self):
        rank = start(STAYS_AWAY, 0, 2, ports.hold(self))
        output = rank.communicate(timeout=60)[0]
        self.assertEqual(rank.returncode, 0, output)


if __name__ == "__main__":
    unittest.main()
