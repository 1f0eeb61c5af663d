#!/usr/bin/env python3
"""Measures ncclCommSuspend and ncclCommResume of a communicator of GPUs, and what memory is free in between.

Usage: bench/suspend_time.py LIBRARY [--ranks N] [--rounds I]

LIBRARY has NCCL's interface. In each round every rank checks an AllReduce, suspends, asks CUDA how much memory is free,
and resumes. Prints the time of the slowest rank in each round, and how much more of rank 0's GPU was free while the
communicator rested. Fails where a result is wrong. PyTorch has the memory of the AllReduce.
"""

import ctypes
import sys
import time

from gpu_ranks import Library, join, run_bench

FLOAT64, MAX, SUM, SUSPEND_MEM = 8, 2, 0, 1
COUNT = 1 << 20


def run_rank(options) -> int:
    import torch
    torch.cuda.set_device(options.rank)
    library = Library(options.library)
    comm = join(library, options.rank, options.ranks, options.folder)
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)

    def reduce(values: torch.Tensor, operator: int) -> torch.Tensor:
        result = values.to("cuda", torch.float64)
        library.ncclAllReduce(ctypes.c_void_p(result.data_ptr()), ctypes.c_void_p(result.data_ptr()),
                              ctypes.c_size_t(result.numel()), FLOAT64, operator, comm, stream)
        return result.cpu()

    wrong = False
    for number in range(options.rounds):
        wrong |= not bool((reduce(torch.full((COUNT,), options.rank + 1.0), SUM)
                           == options.ranks * (options.ranks + 1) / 2).all())
        free = torch.cuda.mem_get_info()[0]
        reduce(torch.ones(1), SUM)  # The ranks begin together.
        torch.cuda.synchronize()
        begun = time.perf_counter()
        library.ncclCommSuspend(comm, SUSPEND_MEM)
        suspended = time.perf_counter()
        more = torch.cuda.mem_get_info()[0] - free
        time.sleep(0.05)  # Whoever asks CUDA may be held up by others that do.
        asked = time.perf_counter()
        library.ncclCommResume(comm)
        resumed = time.perf_counter()
        slowest = reduce(torch.tensor([suspended - begun, resumed - asked]), MAX) * 1e3
        if options.rank == 0:
            print(f"  round {number}: suspend {slowest[0]:.2f} ms, resume {slowest[1]:.2f} ms, "
                  f"{more / 2**20:.0f} MiB more were free")
    library.ncclCommDestroy(comm)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(run_bench(__doc__, run_rank, lambda parser: parser.add_argument("--rounds", type=int, default=5)))
