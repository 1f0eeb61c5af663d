"""The torch.distributed backend where a rank does not come, leaves or fails, or ends with something
pending; starts the ranks itself. TUTTI_TORCH_BACKEND chooses the form that is tried."""

import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import torch.distributed as dist

from tutti.torch import _native

IN_PYTHON = os.environ.get("TUTTI_TORCH_BACKEND") == "python" or _native._VERSION < _native._OLDEST

# At least the time-outs of 1 s and 1.5 s, and far less than every other time-out. A busy machine
# needs longer than the time-out.
SECONDS = r"[1-9]\d?\.\d s"

BEGIN = """
import os, signal, sys, time
from datetime import timedelta
import torch, torch.distributed as dist
import tutti.torch.distributed

def begin():
    dist.init_process_group("tutti")
    return dist.get_rank()

def error_of(call):
    begun = time.monotonic()
    try:
        call()
    except RuntimeError as error:
        return f"after {time.monotonic() - begun:.1f} s: {error}\\n"
    return "no error\\n"
"""

TIME_OUT = BEGIN + """
rank = begin()
group = dist.new_group(timeout=timedelta(seconds=1))
tensor = torch.full((4,), float(rank))
if rank == 1:
    print("recv", error_of(lambda: dist.recv(tensor, 2, group=group)))
    print("any", error_of(lambda: dist.recv(tensor, tag=1, group=group)))
    print("send", error_of(lambda: dist.send(tensor, 2, tag=2, group=group)))
dist.barrier()
if rank == 2:  # The same messages pass now.
    dist.send(tensor, 1, group=group)
elif rank == 1:
    dist.recv(tensor, 2, group=group)
    assert tensor.tolist() == [2.0] * 4
    print("warm", error_of(lambda: dist.recv(tensor, 2, group=group)))
dist.barrier()
dist.destroy_process_group()
"""

LIBRARYS_TIME_OUT = BEGIN + """
rank, store = begin(), dist.distributed_c10d._get_default_store()
if rank == 1:
    print(error_of(lambda: dist.recv(torch.zeros(4), 0)))
    store.set("rank 1 has waited", "")
store.wait(["rank 1 has waited"])
"""

# Rank 1 is the one that goes. The store is the test's.
PEER_GOES = BEGIN + """
rank, store = begin(), dist.distributed_c10d._get_default_store()
dist.all_reduce(torch.ones(1))  # The form in Python meets now, and knows nobody before.
if rank == 1:
    store.wait(["rank 0 waits"])
    os.kill(os.getpid(), signal.SIGKILL) if sys.argv[1] == "dies" else sys.exit()
work = dist.irecv(torch.zeros(4), 1)
store.set("rank 0 waits", "")
print(error_of(work.wait))
"""

PENDING = BEGIN + """
rank = begin()
tensors = [torch.zeros(4) for _ in range(4)]
(dist.recv if rank == 0 else dist.send)(tensors[0], 1 - rank, tag=1)
if rank == 0:
    works = [dist.irecv(tensors[0], 1), dist.irecv(tensors[1], 1, tag=1), dist.irecv(tensors[2], tag=2),
             dist.isend(torch.zeros(1 << 20), 1, tag=3), dist.all_reduce(tensors[3], async_op=True)]
    if sys.argv[1] == "destroy":
        dist.destroy_process_group()
        error = error_of(works[-1].wait)
        assert "no error" not in error, error
    elif sys.argv[1] == "exception":
        raise KeyError("my own")
    else:
        sys.exit(3)
"""

NO_ID = BEGIN + """
def work():
    begin()
    dist.all_reduce(torch.ones(1))  # The form in Python meets now.

print(error_of(work))
"""

# In the first generation a rank dies between the decision on the form and the meeting.
STALE = BEGIN + """
from tutti.torch import _meeting, _native
rank = int(os.environ["RANK"])
if sys.argv[1] == "first" and rank == 1:
    _native.create = lambda *arguments: os.kill(os.getpid(), signal.SIGKILL)
    tutti.torch.distributed.ProcessGroupTutti = _native.create
begin()
tensor = torch.ones(1)
dist.all_reduce(tensor)
print("sum", tensor.item())
dist.destroy_process_group()
"""

# Rank 0 waits for rank 1, after both have changed the time-out of the group.
SET_TIMEOUT = BEGIN + """
rank, store = begin(), dist.distributed_c10d._get_default_store()
group = dist.distributed_c10d._get_default_group()
for call in (lambda: dist.all_reduce(torch.ones(1)),
             lambda: dist.send(torch.ones(1), 1) if rank == 0 else dist.recv(torch.ones(1), 0)):
    call()  # The connections are made before.
# Before PyTorch 2.14 only the form in Python can be told.
(dist.set_timeout if hasattr(dist, "set_timeout") else group.set_timeout)(timedelta(seconds=1))
if rank == 0:
    print("send", error_of(lambda: dist.send(torch.ones(5_000_000), 1)))
    print("all_reduce", error_of(lambda: dist.all_reduce(torch.ones(1))))
    store.set("done", "")
store.wait(["done"])
dist.destroy_process_group()
"""

THREADS = BEGIN + """
import threading
rank, store = begin(), dist.distributed_c10d._get_default_store()
calls = {"all_reduce": lambda: dist.all_reduce(torch.ones(2)), "barrier": dist.barrier}
if rank == 0:
    outcomes = {}
    def run(name):
        outcomes[name] = error_of(calls[name])
        if outcomes[name] != "no error\\n":
            store.set("told", name)  # The other call still waits for rank 1.
    threads = [threading.Thread(target=run, args=(name,)) for name in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(outcomes)
else:
    told = store.get("told").decode()
    next(call for name, call in calls.items() if name != told)()
dist.destroy_process_group()
"""


class Absent(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.script = os.path.join(folder.name, "train.py")
        # The store outlives all ranks, as under torchrun.
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def start(self, rank, size, script, *arguments, **environment):
        with open(self.script, "w", encoding="utf-8") as file:
            file.write(script)
        where = {"RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1",
                 "MASTER_PORT": self.store.port, "TORCHELASTIC_USE_AGENT_STORE": "True",
                 "TORCHELASTIC_RESTART_COUNT": "0"}
        process = subprocess.Popen(
            [sys.executable, "-u", self.script, *arguments], stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
            env={**os.environ, **{name: str(value) for name, value in where.items()}, **environment})
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def finish(self, *processes):
        """Returns what the processes print, and their statuses."""
        said = [process.communicate(timeout=240)[0] for process in processes]
        return said, [process.returncode for process in processes]

    def run_ranks(self, size, script, *arguments, **environment):
        return self.finish(*[self.start(rank, size, script, *arguments, **environment)
                             for rank in range(size)])

    def assert_no_reason_stays(self):
        """The next start of the job must not read why the earlier start has failed."""
        self.assertEqual([key for key in self.store.list_keys()
                          if key.endswith(("/id", "/there", "/reason"))], [])

    def test_the_first_use_of_a_pair_has_the_groups_time_out(self):
        said, ended = self.run_ranks(3, TIME_OUT)
        self.assertEqual(ended, [0] * 3, said)
        for what in ("recv", "send"):
            self.assertRegex(said[1], rf"{what} after {SECONDS}: an operation came to the timeout of "
                             rf"its group: rank 1 of the group has waited {SECONDS} for rank 2 to make the "
                             "connection of their first message; the timeout of the group")
        self.assertRegex(said[1], rf"any after {SECONDS}: an operation came to the timeout")
        # A connection that stands names the ranks of the group, too.
        self.assertRegex(said[1], rf"warm after {SECONDS}: .*rank 1 \(host .* has waited {SECONDS} for "
                         r"rank 2 \(host")

    def test_the_library_sets_the_time_out_of_a_group_without_one(self):
        said, ended = self.run_ranks(2, LIBRARYS_TIME_OUT, TUTTI_TIMEOUT_S="1.5")
        self.assertEqual(ended, [0, 0], said)
        self.assertRegex(said[1], rf"after {SECONDS}: .* has waited {SECONDS} for rank 0 .*; "
                         "TUTTI_TIMEOUT_S sets")

    @unittest.skipUnless(hasattr(dist, "set_timeout") or IN_PYTHON, "PyTorch before 2.14")
    def test_a_groups_time_out_is_changed(self):
        said, ended = self.run_ranks(2, SET_TIMEOUT)
        self.assertEqual(ended, [0, 0], said)
        for call in ("send", "all_reduce"):
            self.assertRegex(said[0], rf"{call} after {SECONDS}: .* has waited {SECONDS} for rank 1")

    def test_the_first_use_of_a_pair_ends_with_the_peer(self):
        said, ended = self.run_ranks(2, PEER_GOES, "leaves")
        self.assertEqual(ended, [0, 0], said)
        self.assertIn("rank 1 of the group has left the group", said[0])
        said, ended = self.run_ranks(2, PEER_GOES, "dies")
        self.assertEqual(ended, [0, -signal.SIGKILL], said)
        self.assertIn("rank 1 of the group is lost", said[0])

    def test_ends_with_everything_pending(self):
        for way, status in (("exit", 3), ("exception", 1), ("destroy", 0)):
            with self.subTest(way):
                said, ended = self.run_ranks(2, PENDING, way)
                self.assertEqual(ended, [status, 0], said)
                self.assertEqual("my own" in said[0], way == "exception")

    def test_a_rank_0_without_an_id_tells_the_others(self):
        ranks = [self.start(0, 2, NO_ID, NCCL_SOCKET_IFNAME="=none0"), self.start(1, 2, NO_ID)]
        said, ended = self.finish(*ranks)
        self.assertEqual(ended, [0, 0], said)
        self.assertIn("no network interface fits NCCL_SOCKET_IFNAME", said[0])
        self.assertIn("rank 0 cannot begin to make the group: ", said[1])
        self.assert_no_reason_stays()

    def test_a_rank_that_fails_before_the_meeting_tells_the_others(self):
        ranks = [self.start(0, 2, NO_ID), self.start(1, 2, NO_ID, TUTTI_TORCH_BACKEND="cpp", CXX="none",
                                                     TUTTI_CACHE_DIR=os.path.dirname(self.script))]
        said, ended = self.finish(*ranks)
        self.assertEqual(ended, [0, 0], said)
        self.assertIn("rank 1 of the group cannot take part: the tutti backend in C++ is not to be had",
                      said[0])
        self.assert_no_reason_stays()

    def test_an_id_of_an_earlier_start_is_not_taken(self):
        first = [self.start(rank, 2, STALE, "first") for rank in range(2)]
        first[1].wait(240)
        while not any(key.endswith("id") for key in self.store.list_keys()):
            self.assertIsNone(first[0].poll())
            time.sleep(0.01)
        first[0].kill()
        first[0].wait()
        other = self.start(1, 2, STALE, "second")
        for line in other.stdout:
            if "cannot reach the root" in line:
                break
        else:
            self.fail("rank 1 has ended without meeting the id of the earlier start")
        said, ended = self.finish(self.start(0, 2, STALE, "second"), other)
        self.assertEqual(ended, [0, 0], said)
        self.assertEqual([text.count("sum 2.0") for text in said], [1, 1], said)
        self.assertEqual([key for key in self.store.list_keys() if "tutti" in key or "cpu" in key], [])

    @unittest.skipUnless(hasattr(dist.distributed_c10d.AllreduceOptions(), "asyncOp"), "PyTorch does not tell who waits")
    def test_a_second_thread_is_told(self):
        said, ended = self.run_ranks(2, THREADS)
        self.assertEqual(ended, [0, 0], said)
        self.assertEqual(said[0].count("two threads of this process use one group: a thread waits in"),
                         1, said)


if __name__ == "__main__":
    unittest.main()
