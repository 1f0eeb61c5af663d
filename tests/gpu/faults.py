"""What must end well on GPUs: an abort while peers are missing, the death of a process in the middle, bad arguments.

Usage: faults.py LIBRARY_FOLDER. Talks to the C interface of NCCL by ctypes, and to the driver for memory.
"""

import ctypes
import os
import signal
import sys
import threading
import time

folder = sys.argv[1]
FLOAT, SUM = 7, 0
SUCCESS, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR = 0, 4, 5, 6


class UniqueId(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]


class Rank:
    """A rank of this process: a GPU, a buffer on it, and a communicator."""

    def __init__(self, number, ranks, uid, device=None):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.nccl = ctypes.CDLL(os.path.join(folder, "libtutti.so.0"))
        self.nccl.ncclGetLastError.restype = ctypes.c_char_p
        self.cuda.cuInit(0)
        context = ctypes.c_void_p()
        self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), number if device is None else device)
        self.cuda.cuCtxSetCurrent(context)
        self.memory = ctypes.c_uint64()
        self.cuda.cuMemAlloc_v2(ctypes.byref(self.memory), ctypes.c_size_t(1 << 20))
        self.comm = ctypes.c_void_p()
        self.result = self.nccl.ncclCommInitRank(ctypes.byref(self.comm), ranks, uid, number)

    def error(self):
        return (self.nccl.ncclGetLastError(self.comm) or b"").decode()

    def all_reduce(self, buffer=None, count=1000):
        pointer = ctypes.c_void_p(buffer if buffer is not None else self.memory.value)
        return self.nccl.ncclAllReduce(pointer, pointer, ctypes.c_size_t(count), FLOAT, SUM, self.comm, None)

    def synchronize(self):
        return self.cuda.cuCtxSynchronize()

    def async_error(self):
        code = ctypes.c_int()
        self.nccl.ncclCommGetAsyncError(self.comm, ctypes.byref(code))
        return code.value


def new_id():
    nccl = ctypes.CDLL(os.path.join(folder, "libtutti.so.0"))
    uid = UniqueId()
    assert nccl.ncclGetUniqueId(ctypes.byref(uid)) == SUCCESS
    return uid


def together(ranks, body, devices=None):
    """Runs body(rank) on a thread for each rank; the exceptions come out here."""
    uid, problems = new_id(), []

    def run(number):
        try:
            body(Rank(number, ranks, uid, devices[number] if devices else None))
        except Exception as problem:  # pylint: disable=broad-except
            problems.append(problem)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a rank does not come back"
    if problems:
        raise problems[0]


def abort_ends_kernels():
    barrier = threading.Barrier(2)

    def body(rank):
        assert rank.result == SUCCESS, rank.error()
        number = ctypes.c_int()
        rank.nccl.ncclCommUserRank(rank.comm, ctypes.byref(number))
        assert rank.all_reduce() == SUCCESS and rank.synchronize() == 0
        if number.value == 0:
            assert rank.all_reduce(count=200000) == SUCCESS  # rank 1 never joins
            time.sleep(0.3)
            begin = time.monotonic()
            assert rank.nccl.ncclCommAbort(rank.comm) == SUCCESS
            assert rank.synchronize() == 0
            assert time.monotonic() - begin < 5, "the abort took too long"
        barrier.wait()
        if number.value == 1:
            rank.nccl.ncclCommAbort(rank.comm)

    together(2, body)


def same_gpu_twice():
    def body(rank):
        assert rank.result == INVALID_USAGE, rank.result
        assert "the same GPU" in rank.error(), rank.error()

    together(2, body, devices=[0, 0])


def host_memory():
    os.environ["NCCL_CHECK_POINTERS"] = "1"
    keep = (ctypes.c_float * 1000)()

    def body(rank):
        assert rank.result == SUCCESS, rank.error()
        assert rank.all_reduce(buffer=ctypes.addressof(keep)) == INVALID_ARGUMENT
        assert "memory of the host" in rank.error(), rank.error()
        assert rank.all_reduce() == SUCCESS and rank.synchronize() == 0
        rank.nccl.ncclCommDestroy(rank.comm)

    together(2, body)
    del os.environ["NCCL_CHECK_POINTERS"]


def death_of_a_process():
    uid = new_id()
    child = os.fork()
    if child == 0:
        # A process of its own from here: it has not used CUDA.
        os.execv(sys.executable, [sys.executable, __file__, folder, "victim", bytes(uid).hex()])
    rank = Rank(0, 2, uid)
    assert rank.result == SUCCESS, rank.error()
    assert rank.all_reduce() == SUCCESS and rank.synchronize() == 0
    assert rank.all_reduce(count=100000) == SUCCESS  # the other one hangs, then dies
    time.sleep(0.5)
    os.kill(child, signal.SIGKILL)
    begin = time.monotonic()
    assert rank.synchronize() == 0
    assert time.monotonic() - begin < 10, "the survivor waited too long"
    deadline = time.monotonic() + 5
    while rank.async_error() == SUCCESS and time.monotonic() < deadline:
        time.sleep(0.01)
    assert rank.async_error() == REMOTE_ERROR, rank.async_error()
    assert "rank 1" in rank.error(), rank.error()
    assert rank.all_reduce() == REMOTE_ERROR
    rank.nccl.ncclCommAbort(rank.comm)
    os.waitpid(child, 0)
    assert rank.cuda.cuMemsetD8_v2(rank.memory, 0, ctypes.c_size_t(1000)) == 0, "the GPU is not usable any more"


def victim(hexadecimal):
    uid = UniqueId.from_buffer_copy(bytes.fromhex(hexadecimal))
    rank = Rank(1, 2, uid)
    rank.all_reduce()
    rank.synchronize()
    time.sleep(60)


def main():
    if len(sys.argv) > 2:
        victim(sys.argv[3])
        return
    death_of_a_process()  # first: it forks, so nothing may have used CUDA here
    for test in (abort_ends_kernels, same_gpu_twice, host_memory):
        test()
        print(test.__name__, "ok", flush=True)


if __name__ == "__main__":
    main()
