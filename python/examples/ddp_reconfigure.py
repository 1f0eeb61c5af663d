# SPDX-License-Identifier: Apache-2.0
"""A training by DistributedDataParallel that loses one of four workers, goes on with three within a
moment, and takes a newcomer in. No process is started again. Needs PyTorch 2.14 or newer.

    python3 python/examples/ddp_reconfigure.py

The first process serves the store, starts the workers and decides who takes part: each decision is a
round, whose number is the uuid of the workers' reconfigure. A round begins when a worker has died,
when a newcomer is ready, and when the workers of a round could not meet.
"""

import subprocess
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import tutti.torch.distributed  # noqa: F401  Makes the backend known where tutti is not installed.

WORKERS = 4
STEPS_BEFORE, STEPS_ALONE, STEPS_AFTER = 20, 20, 20
TARGET = torch.arange(8.0)  # what the model has to find


# The workers

def members_of(store, number):
    """Waits for the round, and returns its workers, by rank."""
    return store.get(f"round/{number}").decode().split()


def handles_of(store, members, number):
    """Waits for the handles of all members, by rank. RuntimeError where the next round begins."""
    keys = [f"handle/{number}/{member}" for member in members]
    while not store.check(keys):
        if store.check([f"round/{number + 1}"]):
            raise RuntimeError("a member has died")
        time.sleep(0.002)
    return [handle.decode() for handle in store.multi_get(keys)]


def meet(store, worker, number):
    """Joins the first round from this number on that succeeds, and returns its number."""
    while True:
        members = members_of(store, number)
        store.set(f"handle/{number}/{worker}", dist._get_reconfigure_handle())
        try:
            handles = handles_of(store, members, number)
            dist._reconfigure(number, handles, timeout=timedelta(seconds=5)).wait()
            return number
        except RuntimeError as error:
            print(f"worker {worker}: round {number} failed: {error}", flush=True)
            store.set(f"failed/{number}", worker)
        number += 1


def share_state(model, optimizer, step):
    """Brings all ranks to the state of rank 0, and returns its step. When a worker dies, the others
    may be a step apart."""
    state = [step, model.state_dict(), optimizer.state_dict()]
    dist.broadcast_object_list(state, src=0)
    model.load_state_dict(state[1])
    optimizer.load_state_dict(state[2])
    return state[0]


def train_step(model, optimizer, step):
    rank, size = dist.get_rank(), dist.get_world_size()
    samples = torch.randn(4 * 64, 8, generator=torch.Generator().manual_seed(step))[rank::size]
    optimizer.zero_grad()
    loss = (model(samples).squeeze(1) - samples @ TARGET).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def next_round(store, number):
    """Returns whether rank 0 sees the next round; all ranks stop at the same step."""
    told = torch.zeros(1)
    if dist.get_rank() == 0:
        told += store.check([f"round/{number + 1}"])
    dist.broadcast(told, src=0)
    return bool(told.item())


def work(store, worker):
    dist.init_process_group("tutti", store=store, rank=0, world_size=1, enable_reconfigure=True)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    store.set(f"ready/{worker}", "")
    number, step, loss = 0, 0, 0.0
    if int(worker) >= WORKERS:  # A newcomer waits for the first round that names it.
        while worker not in members_of(store, number):
            number += 1
    while True:
        number = meet(store, worker, number)
        try:
            step = share_state(model, optimizer, step)
            parallel = DistributedDataParallel(model)
            report = True
            while True:
                loss = train_step(parallel, optimizer, step)
                step += 1
                if report and dist.get_rank() == 0:
                    store.set(f"begun/{number}", str(time.monotonic()))
                    print(f"round {number}: {dist.get_world_size()} ranks go on at step {step}", flush=True)
                report = False
                if dist.get_rank() == 0:
                    store.set("step", str(step))
                if next_round(store, number):
                    break
        except RuntimeError as error:  # A worker is lost.
            print(f"worker {worker}, step {step}: {str(error).splitlines()[0][:100]}", flush=True)
        number += 1
        if members_of(store, number) == ["end"]:
            break
    print(f"worker {worker} ends at step {step}, loss {loss:.2g}", flush=True)
    dist.destroy_process_group()
    assert loss < 1e-3, loss


# The first process

class Job:
    def __init__(self):
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.store.set("step", "0")
        self.workers, self.number = {}, -1

    def start(self):
        worker = str(len(self.workers))
        self.workers[worker] = subprocess.Popen(
            [sys.executable, __file__, "worker", worker, str(self.store.port)])
        return worker

    def begin_round(self, members):
        """Survivors come before newcomers, since rank 0 has the state."""
        self.number += 1
        self.store.set(f"round/{self.number}", " ".join(members))

    def alive(self):
        return [worker for worker, process in self.workers.items() if process.poll() is None]

    def await_step(self, more):
        """Waits until the round has done so many steps. A round that failed is tried again."""
        begun = None
        while True:
            members = members_of(self.store, self.number)
            left = [worker for worker in members if self.workers[worker].poll() is None]
            if left != members or self.store.check([f"failed/{self.number}"]):
                self.begin_round(left)
                begun = None
            step = int(self.store.get("step"))
            begun = step if begun is None and self.store.check([f"begun/{self.number}"]) else begun
            if begun is not None and step >= begun + more:
                return
            time.sleep(0.01)

    def run(self):
        first = [self.start() for _ in range(WORKERS)]
        self.begin_round(first)
        self.await_step(STEPS_BEFORE)

        self.workers["2"].kill()
        killed = time.monotonic()
        self.workers["2"].wait()
        self.await_step(STEPS_ALONE)
        print(f"the training went on {float(self.store.get(f'begun/{self.number}')) - killed:.2f} s after the "
              "death of worker 2", flush=True)

        newcomer = self.start()
        while not self.store.check([f"ready/{newcomer}"]):  # The others go on meanwhile.
            time.sleep(0.05)
        self.begin_round([worker for worker in self.alive() if worker != newcomer] + [newcomer])
        self.await_step(STEPS_AFTER)

        self.begin_round(["end"])
        statuses = {worker: process.wait(60) for worker, process in self.workers.items()}
        print("statuses:", statuses, flush=True)
        return 0 if [worker for worker, status in statuses.items() if status] == ["2"] else 1


def main():
    if sys.argv[1:2] != ["worker"]:
        return Job().run()
    torch.set_num_threads(1)
    work(dist.TCPStore("127.0.0.1", int(sys.argv[3])), sys.argv[2])
    return 0


if __name__ == "__main__":
    sys.exit(main())
