#!/usr/bin/env python3
"""Measures short operations of GPUs: how long calls take the thread that makes them, and the operations themselves.

Usage: bench/gpu_calls.py LIBRARY [--ranks N] [--hosts H] [--bytes B]

LIBRARY has NCCL's interface. Each rank, a process, makes 200 calls in a row without waiting, five times; those of rank 0
are shown, in microseconds: of an operation on the GPU (by CUDA's events), and of a call. B bytes are what a rank gives,
or gives each other one. Results are not looked at; `tutti perf` compares them. PyTorch has the memory.
"""

import ctypes
import sys
import time

from gpu_ranks import Library, join, run_bench

FLOAT32, SUM, CALLS, TIMES = 7, 0, 200, 5


def run_rank(options) -> int:
    import torch
    torch.cuda.set_device(options.rank)
    library = Library(options.library)
    comm = join(library, options.rank, options.ranks, options.folder)
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    count = options.bytes // 4
    given, taken = (torch.zeros(count * options.ranks, device="cuda") for _ in range(2))
    buffers = ctypes.c_void_p(given.data_ptr()), ctypes.c_void_p(taken.data_ptr()), ctypes.c_size_t(count), FLOAT32
    calls = {
        "AllReduce": lambda: library.ncclAllReduce(*buffers, SUM, comm, stream),
        "AllGather": lambda: library.ncclAllGather(*buffers, comm, stream),
        "ReduceScatter": lambda: library.ncclReduceScatter(*buffers, SUM, comm, stream),
        "Broadcast": lambda: library.ncclBroadcast(*buffers, 0, comm, stream),
        "AlltoAll": lambda: library.ncclAlltoAll(*buffers, comm, stream),
    }
    for name, call in calls.items():
        measured = []
        for _ in range(1 + TIMES):
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            begun = time.perf_counter()
            for _ in range(CALLS):
                call()
            called = time.perf_counter() - begun
            last.record()
            torch.cuda.synchronize()
            measured.append((first.elapsed_time(last) * 1e3 / CALLS, called * 1e6 / CALLS))
        if options.rank == 0:
            operations, callers = ("  ".join(f"{us:5.1f}" for us in column) for column in zip(*measured[1:]))
            print(f"  {name:14} operation {operations}   call {callers}", flush=True)
    library.ncclCommDestroy(comm)
    return 0


if __name__ == "__main__":
    sys.exit(run_bench(__doc__, run_rank, lambda parser: parser.add_argument("--bytes", type=int, default=256)))
