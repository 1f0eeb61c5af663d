"""The NIC of one of three GPUs of the stand-in, each of a process of its own, goes down while their kernels use it: every
rank is told so by a sentence, kernels end, the GPUs stay of use, and a communicator of the others goes on.

Usage: nic_that_goes.py LIBRARY_FOLDER, with the stand-ins for CUDA's driver and libibverbs, and no way between GPUs but the
network.
"""

import ctypes
import os
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "gpu"))
from faults import SUCCESS, Rank, UniqueId, new_id  # pylint: disable=wrong-import-position

RANKS = 3
LAST = RANKS - 1  # whose NIC goes
SHRINK_ABORT = 1


def body(rank, number):
    assert rank.result == SUCCESS, rank.error()
    done, begin = 0, time.monotonic()
    while rank.all_reduce(count=100000) == SUCCESS and time.monotonic() - begin < 60:
        assert rank.synchronize() == 0
        if rank.async_error() != SUCCESS:
            break
        done += 1
    assert time.monotonic() - begin < 60, f"{done} operations have been done, and it is still there"
    assert done > 0, "it went down before anything was done"
    assert rank.await_error() != SUCCESS, f"nothing is wrong after {done} operations"
    print(f"rank {number} after {done} operations: {rank.error()}", flush=True)
    assert f"rank {LAST}" in rank.error() and "fake0" in rank.error() and "port" in rank.error(), rank.error()
    assert rank.cuda.cuMemsetD8_v2(rank.memory, 0, ctypes.c_size_t(1000)) == 0, "the GPU is not usable any more"
    if number == LAST:
        assert rank.nccl.ncclCommAbort(rank.comm) == SUCCESS
        return
    whole, left_out = rank.comm, (ctypes.c_int * 1)(LAST)
    rank.comm = ctypes.c_void_p()
    result = rank.nccl.ncclCommShrink(whole, left_out, 1, ctypes.byref(rank.comm), None, SHRINK_ABORT)
    assert result == SUCCESS, (rank.nccl.ncclGetLastError(whole) or b"").decode()
    rank.fill(0, float(number + 1))
    assert rank.all_reduce() == SUCCESS and rank.synchronize() == 0, rank.error()
    assert rank.first_of(0) == sum(range(1, RANKS)), rank.first_of(0)
    rank.nccl.ncclCommDestroy(rank.comm)
    rank.nccl.ncclCommAbort(whole)


def main():
    if len(sys.argv) > 2:
        number = int(sys.argv[3])
        body(Rank(number, RANKS, UniqueId.from_buffer_copy(bytes.fromhex(sys.argv[2]))), number)
        return
    uid = new_id()
    others = []
    for number in range(1, RANKS):
        environment = dict(os.environ, FAKE_VERBS_DOWN_AFTER="300") if number == LAST else None
        others.append(subprocess.Popen([sys.executable, __file__, sys.argv[1], bytes(uid).hex(), str(number)], env=environment))
    try:
        body(Rank(0, RANKS, uid), 0)
        for number, other in enumerate(others, 1):
            assert other.wait(60) == 0, f"rank {number} failed"
    finally:
        for other in others:
            other.kill()
    print("all right")


main()
