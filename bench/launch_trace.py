#!/usr/bin/env python3
"""Shows which threads of a process run between the launch of an operation of GPUs and its end.

Usage: bench/launch_trace.py LIBRARY [--ranks N] [--hosts H] [--size BYTES]

LIBRARY has NCCL's interface. Each rank queues a kernel of some half a second and behind it an AllReduce of SIZE bytes, and
sleeps until both must have ended. From the return of the launch to then, it reads what each of its threads ran
(/proc/self/task/*/schedstat). Prints rank 0's threads that ran for more than 20 microseconds, and fails where the
result is wrong. PyTorch has the kernel that waits and the memory.
"""

import ctypes
import os
import sys
import time
from pathlib import Path

from gpu_ranks import Library, join, run_bench

FLOAT32, SUM = 7, 0


def read_threads() -> dict[int, tuple[str, float]]:
    """Returns the name of each thread of this process and for how many microseconds it has run."""
    threads = {}
    for task in Path("/proc/self/task").iterdir():
        try:
            name = (task / "comm").read_text().strip()
            threads[int(task.name)] = (name, int((task / "schedstat").read_text().split()[0]) / 1e3)
        except OSError:  # The thread has ended.
            pass
    return threads


def run_rank(options) -> int:
    import torch
    torch.cuda.set_device(options.rank)
    library = Library(options.library)
    comm = join(library, options.rank, options.ranks, options.folder)
    data = torch.full((options.size // 4,), float(options.rank + 1), device="cuda")
    sums = torch.zeros_like(data)
    stream = torch.cuda.current_stream().cuda_stream

    def reduce() -> None:
        library.ncclAllReduce(ctypes.c_void_p(data.data_ptr()), ctypes.c_void_p(sums.data_ptr()),
                              ctypes.c_size_t(data.numel()), FLOAT32, SUM, comm, ctypes.c_void_p(stream))

    for _ in range(3):  # What is made at first use is there afterwards.
        reduce()
    torch.cuda.synchronize()
    sums.zero_()
    torch.cuda._sleep(1_000_000_000)  # cycles
    reduce()
    before = read_threads()
    time.sleep(2)
    after = read_threads()
    torch.cuda.synchronize()
    right = bool((sums == options.ranks * (options.ranks + 1) / 2).all())
    if options.rank == 0:
        ran = {number: (name, us - before.get(number, ("", 0))[1]) for number, (name, us) in after.items()}
        for number, (name, us) in sorted(ran.items(), key=lambda item: -item[1][1]):
            if us > 20:
                own = " (launched, read this and slept)" if number == os.getpid() else ""
                print(f"  {name}: {us:.0f} us{own}")
        print(f"  of {len(ran)} threads; the result is {'right' if right else 'WRONG'}")
    library.ncclCommDestroy(comm)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(run_bench(__doc__, run_rank, lambda parser: parser.add_argument("--size", type=int, default=4 << 20)))
