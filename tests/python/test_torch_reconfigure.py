"""Groups of torch.distributed whose members change (enable_reconfigure), on the backend in C++; starts
the ranks itself. Skips with a PyTorch that has no such groups."""

import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import unittest

import torch
import torch.distributed as dist

import needs

if not hasattr(dist.distributed_c10d, "ReconfigureOptions"):
    print(f"skipped: PyTorch {torch.__version__} has no groups whose members change; scripts/setup reconfigure "
          "unpacks one that has, in build/torch-reconfigure")
    sys.exit(needs.SKIPPED)

# Every worker begins alone. A handle is asked for once, and given to the others by the store.
BEGIN = """
import os, signal, sys, threading, time
from datetime import timedelta
import torch, torch.distributed as dist
import tutti.torch.distributed
from torch._C._distributed_c10d import ErrorType

ME, COUNT = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]),
                      timeout=timedelta(seconds=60))
rounds = 0

def begin(**options):
    dist.init_process_group("tutti", store=store, rank=0, world_size=1, enable_reconfigure=True, **options)

def handles(of=None):
    global rounds
    rounds += 1
    store.set(f"handle/{rounds}/{ME}", dist._get_reconfigure_handle())
    return [store.get(f"handle/{rounds}/{one}").decode() for one in of or range(COUNT)]

def meet(uuid, members, seconds=60):
    dist._reconfigure(uuid, members, timeout=timedelta(seconds=seconds)).wait()

def sum_of(value):
    tensor = torch.full((3,), float(value))
    dist.all_reduce(tensor)
    return tensor[0].item()

def workers():
    all = [torch.zeros(1) for _ in range(dist.get_world_size())]
    dist.all_gather(all, torch.full((1,), float(ME)))
    return [int(one.item()) for one in all]

def barrier(name):
    store.set(f"{name}/{ME}", "")
    for one in range(COUNT):
        store.get(f"{name}/{one}")

def error_of(call, *arguments):
    begun = time.monotonic()
    try:
        call(*arguments)
    except RuntimeError as error:
        return f"after {time.monotonic() - begun:.1f} s: {error}"
    return "no error"

def expect(words, call, *arguments):
    error = error_of(call, *arguments)
    assert words in error, (words, error)
    return error
"""

MEMBERS = BEGIN + """
begin()
assert dist._supports_reconfigure() and dist.get_world_size() == 1
expect("reconfigure gives it members", sum_of, 1)
expect("reconfigure gives it members", dist.barrier)

# The caller's order.
meet(1, handles()[::-1])
assert (dist.get_rank(), dist.get_world_size()) == (3 - ME, 4)
assert workers() == [3, 2, 1, 0] and sum_of(ME) == 6
# A set gives all members one order.
meet(2, set(handles()))
order = workers()
assert sorted(order) == [0, 1, 2, 3] and order[dist.get_rank()] == ME
# Two groups at once, with messages, and together again.
pair = [0, 2] if ME % 2 == 0 else [3, 1]
mine = handles(pair)
meet(3 + ME % 2, mine)
assert workers() == pair
other = torch.full((2,), float(ME))
if dist.get_rank() == 0:
    dist.send(other, 1)
else:
    dist.recv(other, 0)
    assert other.tolist() == [pair[0]] * 2
meet(5, handles())
assert workers() == [0, 1, 2, 3]
# Without a rank in the middle, whose operation in the old group fails, and which comes back.
old = handles()
if ME == 1:
    work = dist.all_reduce(torch.ones(4), async_op=True)
    store.set("waits", "")
    error = expect("rank", work.wait)
    assert dist.get_world_size() == 4
else:
    store.wait(["waits"])
    meet(6, [old[0], old[2], old[3]])
    assert workers() == [0, 2, 3] and sum_of(1) == 3
meet(7, handles())
assert workers() == [0, 1, 2, 3]
# After an abort, which is no error.
backend = dist.get_backend_impl(dist.group.WORLD, torch.device("cpu"))
backend.abort()
assert backend.get_error() == ErrorType.SUCCESS
expect("reconfigure gives it members", sum_of, 1)
meet(8, handles())
assert sum_of(1) == 4 and backend.get_error() == ErrorType.SUCCESS
barrier("end")
dist.destroy_process_group()
"""

FAILURES = BEGIN + """
begin()
members = handles()
meet(1, members)
members = handles()

def still_works():
    assert (dist.get_rank(), dist.get_world_size()) == (ME, COUNT)
    assert dist._get_reconfigure_handle() == members[ME]
    assert sum_of(1) == COUNT

# A member does not come. An operation of the old group that is under way does not notice.
work = dist.all_reduce(torch.ones(4), async_op=True) if ME != 3 else None
if ME != 3:
    error = expect("waited", meet, 2, members, 1.0)
    print("absent", error)
barrier("absent")
if ME == 3:
    work = dist.all_reduce(torch.ones(4), async_op=True)
work.wait()
still_works()
# The same handles serve again; the uuid does not, on any rank, nor one of others.
expect("already used", meet, 2, members)
expect("already used", meet, 1, members)
still_works()
# Other orders, and other numbers of members, are told at once.
error = expect("handles", meet, 3, members[::-1] if ME == 0 else members)
print("order", error)
expect("handles", meet, 4, members[:3] if ME == 2 else members) if ME != 3 else None
barrier("lists")
if ME == 3:
    expect("already used with this store, by an attempt that failed", meet, 4, members)
still_works()
# Wrong lists are told without the others.
for uuid, wrong, words in ((5, [], "at least one"), (6, [members[ME]] * 2, "twice"),
                           (7, [members[ME], "gloo:0:-1:0:"], "is no handle of the tutti"),
                           (8, [members[1 - min(ME, 1)]], "is not among")):
    expect(words, meet, uuid, wrong)
expect("must be positive", meet, 9, members, 0)
# A second thread is told. The first one meets.
if ME == 0:
    thread = threading.Thread(target=meet, args=(10, members))
    thread.start()
    while not any(key.endswith("reconfigure/10/came/0") for key in store.list_keys()):
        time.sleep(0.01)
    expect("another thread", meet, 11, members)
    store.set("told", "")
    thread.join()
else:
    store.wait(["told"])
    meet(10, members)
members = handles()
still_works()
# What waits in the old group ends when the new group is there: in this thread's messages, in a
# collective of another thread, and in the background.
if ME == 0:
    errors = []
    pending = [dist.irecv(torch.zeros(4), 1), dist.all_reduce(torch.ones(4), async_op=True)]
    thread = threading.Thread(target=lambda: errors.append(error_of(dist.all_reduce, torch.ones(4))))
    thread.start()
meet(12, members)
if ME == 0:
    thread.join(60)
    assert not thread.is_alive() and errors[0] != "no error", errors
    assert all(error_of(work.wait) != "no error" for work in pending)
members = handles()
still_works()
barrier("end")
dist.destroy_process_group()
"""

DEATH = BEGIN + """
begin()
meet(1, handles())
members = handles()
assert sum_of(1) == COUNT
if ME == 2:
    store.wait([f"waits/{one}" for one in (0, 1, 3)])
    store.set("killed", str(time.monotonic()))
    os.kill(os.getpid(), signal.SIGKILL)
work = dist.all_reduce(torch.ones(4), async_op=True)
store.set(f"waits/{ME}", "")
print("error", expect("rank 2", work.wait))
lost = time.monotonic()
# The handle of the dead rank is in nobody's way for longer than the time-out.
if ME == 0 or ME == 1:
    print("dead", expect("rank 2", meet, 2, [members[0], members[1], members[2]], 1.0))
begun = time.monotonic()
meet(3, [members[0], members[1], members[3]])
assert sum_of(1) == 3
took = time.monotonic() - begun
assert took < 10, took
print(f"took {took:.3f} s, {begun - float(store.get('killed')):.3f} s after the death")
dist.destroy_process_group()
"""

# A member comes and then does nothing: as one that dies between two steps. `step` is the last key of its.
STOPS = BEGIN + """
begin()
members = handles()
step = sys.argv[1]
if ME == 2:
    def keys(ending):
        while not any(key.endswith(ending) for key in store.list_keys()):
            time.sleep(0.005)
        return next(key for key in store.list_keys() if key.endswith(ending))
    prefix = keys("reconfigure/1/came/0")[:-len("came/0")]
    if step == "before":
        sys.exit()
    plain = dist.PrefixStore(prefix[:-1].removeprefix("/"), store)
    plain.set("came/2", "came")
    if step == "id":
        plain.add("id/came", 1)
    sys.exit()
print(expect("reconfigure with uuid 1 failed", meet, 1, members, 2.0))
pair = handles([0, 1])
meet(2, pair)
assert workers() == [0, 1]
dist.destroy_process_group()
"""

# The last step of a member fails, when all of them have the new communicator.
STUMBLES = BEGIN + """
class Store(dist.Store):
    def add(self, key, value):
        if ME == 2 and key.endswith("reconfigure/2/ready"):
            raise RuntimeError("rank 2 stumbles")
        return plain.add(key, value)
    set = lambda self, key, value: plain.set(key, value)
    get = lambda self, key: plain.get(key)
    check = lambda self, keys: plain.check(keys)
    compare_set = lambda self, key, expected, desired: plain.compare_set(key, expected, desired)
    delete_key = lambda self, key: plain.delete_key(key)

plain, store = store, Store()
begin()
meet(1, handles())
members = handles()
expect("rank 2 stumbles", meet, 2, members)
assert dist._get_reconfigure_handle() == members[ME]
assert sum_of(1) == 3
meet(3, members)
assert workers() == [0, 1, 2]
barrier("end")
dist.destroy_process_group()
"""

# A rank is killed at some moment of an attempt, again and again. The ranks of a trial are forked, and go
# on below.
TRIALS = """
import os, random, signal, sys
import torch, torch.distributed as dist
import tutti.torch.distributed
from tutti.torch import _native
assert _native._load() is None
chance = random.Random(int(sys.argv[1]))
for trial in range(8):
    dead, delay = chance.randrange(4), chance.random() * 0.03
    ranks = []
    for rank in range(4):
        ranks.append(os.fork())
        if ranks[-1] == 0:
            os.environ["RANK"] = str(rank)
            break
    if ranks[-1] == 0:
        break
    statuses = [os.waitpid(rank, 0)[1] for rank in ranks]
    assert statuses == [signal.SIGKILL if rank == dead else 0 for rank in range(4)], (sys.argv[1], trial, statuses)
else:
    sys.exit()
""" + BEGIN + """
store, COUNT = dist.PrefixStore(str(trial), store), 4
begin()
meet(1, handles())
members = handles()
barrier("begin")
if ME == dead:
    threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
begun = time.monotonic()
outcome = error_of(meet, 2, members, 3).split(" s: ")[-1]
if ME == dead:
    time.sleep(60)
assert time.monotonic() - begun < 20, outcome
others = [one for one in range(4) if one != dead]
store.set(f"outcome/{ME}", outcome)
assert {store.get(f"outcome/{one}").decode() for one in others} == {outcome}
meet(3, handles(others))
assert workers() == others
dist.destroy_process_group()
"""

# The newcomer starts when the others have a group, and brings them no state.
NEWCOMER = BEGIN + """
begin(timeout=timedelta(seconds=30))
if ME < 2:
    members = handles([0, 1])
    meet(1, members)
    assert sum_of(1) == 2
    store.set(f"grown/{ME}", "")
rounds = 1
meet(2, handles([2, 0, 1]))
assert workers() == [2, 0, 1]
dist.destroy_process_group()
"""

IN_PYTHON = BEGIN + """
print(error_of(begin))
dist.init_process_group("tutti", store=dist.HashStore(), rank=0, world_size=1)
assert not dist._supports_reconfigure()
print(error_of(dist._get_reconfigure_handle), error_of(meet, 1, ["tutti:0:0"]))
"""


class Reconfigure(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.script = os.path.join(folder.name, "train.py")
        # The store outlives all ranks.
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def start(self, rank, size, script, *arguments, **environment):
        with open(self.script, "w", encoding="utf-8") as file:
            file.write(script)
        where = {"RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": self.store.port}
        process = subprocess.Popen(
            [sys.executable, "-u", self.script, *arguments], stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
            env={**os.environ, **{name: str(value) for name, value in where.items()}, **environment})
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def run_ranks(self, size, script, *arguments, ended=None, **environment):
        ranks = [self.start(rank, size, script, *arguments, **environment) for rank in range(size)]
        said = [rank.communicate(timeout=300)[0] for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], ended or [0] * size, "\n\n".join(said))
        return said

    def test_members_change(self):
        self.run_ranks(4, MEMBERS)
        # An outcome refuses a second use of its uuid; nothing else stays.
        keys = [key.rsplit("reconfigure/", 1)[1] for key in self.store.list_keys() if "cpu" in key]
        self.assertEqual(sorted(keys), [f"{uuid}/outcome" for uuid in range(1, 9)])

    def test_a_failed_attempt_leaves_the_old_group(self):
        said = self.run_ranks(4, FAILURES)
        for rank in range(3):
            self.assertRegex(said[rank], r"absent after [12]\.\d s: reconfigure with uuid 2 failed: rank \d of the "
                             r"new group has waited 1\.\d s for rank 3 \(tutti:1-[0-9a-f]{16}:3\); the timeout of "
                             "reconfigure sets how long is waited")
        self.assertEqual(len({re.search("order.*: (reconfigure .*)", text)[1] for text in said}), 1, said)

    def test_survivors_go_on(self):
        said = self.run_ranks(4, DEATH, ended=[0, 0, -signal.SIGKILL, 0])
        for rank in (0, 1):
            self.assertIn("rank 2 (tutti:1-", said[rank])

    def test_a_member_that_stops_ends_the_attempt(self):
        for step in ("before", "came", "id"):
            with self.subTest(step):
                self.setUp()
                said = self.run_ranks(3, STOPS, step)
                self.assertEqual(len({re.search("(reconfigure with.*)", said[rank])[1] for rank in (0, 1)}), 1, said)
                for rank in (0, 1):
                    self.assertRegex(said[rank], r"after [23]\.\d s")

    def test_the_last_step_of_a_member_fails(self):
        self.run_ranks(3, STUMBLES)

    def test_deaths_during_attempts(self):
        seed = random.randrange(1 << 30)
        said = self.run_ranks(1, TRIALS, str(seed))[0]
        self.assertNotIn("Error", said, f"seed {seed}")

    def test_a_newcomer_is_taken_in(self):
        first = [self.start(rank, 3, NEWCOMER) for rank in range(2)]
        self.store.wait(["grown/0", "grown/1"])
        ranks = [*first, self.start(2, 3, NEWCOMER)]
        said = [rank.communicate(timeout=300)[0] for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [0] * 3, "\n\n".join(said))

    def test_the_form_in_python_refuses(self):
        said = self.run_ranks(1, IN_PYTHON, TUTTI_TORCH_BACKEND="python")
        self.assertIn('enable_reconfigure needs the tutti backend in C++, which is not to be had: '
                      'TUTTI_TORCH_BACKEND is "python"', said[0])
        self.assertEqual(said[0].count("a group of the tutti backend in Python has fixed members"), 2, said[0])

    def test_the_name_gloo(self):
        script = BEGIN.replace('"tutti", store', '"gloo", store') + """
from tutti import _torch_gloo
_torch_gloo.take_its_place()
begin()
meet(1, handles())
assert dist.get_backend_impl(dist.group.WORLD, torch.device("cpu")).name() == "tutti"
assert sum_of(1) == 2
dist.destroy_process_group()
"""
        self.run_ranks(2, script)

    def test_the_example(self):
        example = os.path.join(os.path.dirname(__file__), "..", "..", "python", "examples", "ddp_reconfigure.py")
        ran = subprocess.run([sys.executable, example], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                             timeout=300, check=False)
        self.assertEqual(ran.returncode, 0, ran.stdout)
        self.assertRegex(ran.stdout, r"4 ranks.*\n(.*\n)*.*3 ranks(.*\n)*.*4 ranks")


if __name__ == "__main__":
    unittest.main()
