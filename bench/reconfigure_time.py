#!/usr/bin/env python3
"""Measures how long the ranks of a group need after the death of a rank, with torch.distributed's reconfigure: until the
others have the error of the operation under way, and from there until they have done an all_reduce in a group without the
dead rank.

Usage: bench/reconfigure_time.py [-n RANKS] [--trials N] [BACKEND...]      (tutti gloo)
Run it with a Python that has PyTorch 2.14 or newer and the package. The ranks are forked from one process.
"""

import argparse
import os
import signal
import statistics
import time
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist

from tutti import _torch_autoload
from tutti.torch import _native

_torch_autoload.load()


def rank_of_trial(backend, rank, size, port):
    """Runs a rank, which begins alone, and leaves its times in the store."""
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, timeout=timedelta(seconds=100))
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, enable_reconfigure=True,
                            timeout=timedelta(seconds=60))

    def meet(uuid, ranks):
        store.set(f"handle/{uuid}/{rank}", dist._get_reconfigure_handle())
        handles = [store.get(f"handle/{uuid}/{one}").decode() for one in ranks]
        dist._reconfigure(uuid, handles, timeout=timedelta(seconds=30)).wait()

    meet(1, range(size))
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)
    dead = size // 2
    if rank == dead:
        store.wait([f"waits/{one}" for one in range(size) if one != dead])
        store.set("died", str(time.monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)
    work = dist.all_reduce(tensor, async_op=True)
    store.set(f"waits/{rank}", "")
    try:
        work.wait()
    except RuntimeError:
        told = time.monotonic()
    meet(2, [one for one in range(size) if one != dead])
    dist.all_reduce(tensor)
    done = time.monotonic()
    store.set(f"times/{rank}", f"{told - float(store.get('died'))} {done - told}")
    store.wait([f"times/{one}" for one in range(size) if one != dead])
    dist.destroy_process_group()


def trial(backend, size):
    """Returns the longest times of a rank: until the error, and from the error until the operation."""
    children, (out, into) = [], os.pipe()
    for rank in range(size):
        child = os.fork()
        if child == 0:
            try:
                rank_of_trial(backend, rank, size, int(os.read(out, 6)))
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            os._exit(1)
        children.append(child)
    # The store has threads, whose locks a fork would copy.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.write(into, f"{store.port:6}".encode() * size)
    os.close(into)
    os.close(out)
    ended = [os.waitpid(child, 0)[1] for child in children]
    if [status for status in ended if status] != [signal.SIGKILL]:
        raise SystemExit(f"ranks of {backend} ended with {ended}")
    times = [store.get(f"times/{rank}").decode().split() for rank in range(size) if rank != size // 2]
    return [max(float(one[part]) for one in times) for part in range(2)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=4)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("backends", nargs="*", default=["tutti", "gloo"])
    options = parser.parse_args()
    if reason := _native._load():
        raise SystemExit(f"there is no backend in C++: {reason}")
    print(f"PyTorch {torch.__version__}, {options.n} ranks, {options.trials} deaths; milliseconds, median (longest)\n\n"
          "| backend | until the error | from the error to the end of an all_reduce of the others |\n|---|---|---|")
    for backend in options.backends:
        times = list(zip(*[trial(backend, options.n) for _ in range(options.trials)]))
        print(f"| {backend} | " + " | ".join(
            f"{statistics.median(part) * 1e3:.0f} ({max(part) * 1e3:.0f})" for part in times) + " |", flush=True)


if __name__ == "__main__":
    main()
