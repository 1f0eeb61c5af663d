"""PyTorch's Gloo backend under measurement: the conversation and the loop of bench_common.c, in Python.

The barrier, the pin and the layout of the buffers are those of bench_common.c, through its shared library
(BENCH_LIBRARY). What a call costs includes Python and PyTorch, as it does for anyone who uses this backend.
torch.distributed reduces in place only, so its all_reduce is spared the copy that the others' out-of-place call makes.
"""

import ctypes
import os
import socket
import sys
import time

FLOAT_BYTES = 4
PATTERN_PERIOD = 1021
IN_PLACE = ("allreduce", "broadcast")


class Rank:
    """One rank of the group: joins, then obeys the driver until told to quit."""

    def __init__(self):
        self.rank = int(os.environ["RANK"])
        self.ranks = int(os.environ["BENCH_RANKS"])
        self.pool_bytes = int(os.environ["BENCH_POOL_BYTES"])
        self.common = ctypes.CDLL(os.environ["BENCH_LIBRARY"])
        for name in ("BenchStride", "BenchSlots"):
            getattr(self.common, name).restype = ctypes.c_size_t
        self.common.BenchStride.argtypes = [ctypes.c_size_t]
        self.common.BenchSlots.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
        self.common.BenchBarrierOpen.restype = ctypes.c_void_p
        self.common.BenchBarrierWait.argtypes = [ctypes.c_void_p]
        if os.environ["BENCH_PIN"] == "1":
            self.common.BenchPin(self.rank)
        self.barrier = ctypes.c_void_p(
            self.common.BenchBarrierOpen(
                os.environ["BENCH_BARRIER"].encode(), self.ranks, int(os.environ["BENCH_YIELD"])))
        self.driver = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.driver.connect(os.environ["BENCH_SOCKET"])
        self.lines = self.driver.makefile("r")

    def join(self):
        """Imports torch only now: after the pin, so that its threads inherit it."""
        import torch
        import torch.distributed

        self.torch = torch
        self.dist = torch.distributed
        torch.set_num_threads(1)
        self.dist.init_process_group(
            "gloo", init_method="file://" + os.environ["BENCH_ID_FILE"], rank=self.rank, world_size=self.ranks)
        count = self.pool_bytes // FLOAT_BYTES
        self.send_pool = self.pattern(self.rank, 0, count)
        self.recv_pool = torch.zeros(count, dtype=torch.float32)

    def pattern(self, rank, first, count):
        """What elements first .. first + count of a rank's send pool hold (Pattern() of bench_common.c)."""
        index = self.torch.arange(first, first + count, dtype=self.torch.int32)
        return index.remainder_(PATTERN_PERIOD).float().add_(3.0 * rank)

    def say(self, line):
        self.driver.sendall((line + "\n").encode())

    def shape(self, collective, bytes_):
        """Elements of a rank's shard, and the bytes of the larger buffer (ParseCommand() of bench_common.c)."""
        count = bytes_ // FLOAT_BYTES // (1 if collective in IN_PLACE else self.ranks)
        return (count, bytes_) if count > 0 else (1, FLOAT_BYTES * self.ranks)

    def views(self, collective, bytes_):
        """The (send, recv) tensors of each slot, made before the clock runs."""
        count, bytes_ = self.shape(collective, bytes_)
        stride = self.common.BenchStride(bytes_) // FLOAT_BYTES
        send_count = count * self.ranks if collective in ("reduce_scatter", "alltoall") else count
        recv_count = count * self.ranks if collective in ("allgather", "alltoall") else count
        return [(self.send_pool[slot * stride:slot * stride + send_count],
                 self.recv_pool[slot * stride:slot * stride + recv_count])
                for slot in range(self.common.BenchSlots(bytes_, self.pool_bytes))]

    def caller(self, collective):
        dist, root = self.dist, self.rank == 0
        return {
            "allreduce": lambda send, recv: dist.all_reduce(recv),
            "allgather": lambda send, recv: dist.all_gather_into_tensor(recv, send),
            "reduce_scatter": lambda send, recv: dist.reduce_scatter_tensor(recv, send),
            "broadcast": lambda send, recv: dist.broadcast(send if root else recv, 0),
            "alltoall": lambda send, recv: dist.all_to_all_single(recv, send),
        }[collective]

    def expected(self, collective, count, offset):
        mine = offset + self.rank * count
        everyone = range(self.ranks)
        if collective == "allgather":
            return self.torch.cat([self.pattern(r, offset, count) for r in everyone])
        if collective == "alltoall":
            return self.torch.cat([self.pattern(r, mine, count) for r in everyone])
        if collective == "broadcast":
            return self.pattern(0, offset, count)
        return sum(self.pattern(r, mine if collective == "reduce_scatter" else offset, count) for r in everyone)

    def check(self, collective, bytes_, views):
        """One call whose result is looked at; returns a sentence if it is wrong."""
        send, recv = views[1 % len(views)]
        count, bytes_ = self.shape(collective, bytes_)
        offset = 1 % len(views) * (self.common.BenchStride(bytes_) // FLOAT_BYTES)
        if collective == "allreduce":
            recv.copy_(send)
        else:
            recv.fill_(float("nan"))
        self.caller(collective)(send, recv)
        in_place_root = collective == "broadcast" and self.rank == 0
        right = in_place_root or self.torch.equal(recv, self.expected(collective, count, offset))
        recv.zero_()  # all_reduce goes on summing in place: zeros stay zeros
        return None if right else f"{collective} of {bytes_} bytes on rank {self.rank} is not what it should be"

    def measure(self, collective, warmup, iterations, batch, views):
        """Measure() of bench_common.c."""
        call, wait, barrier, now = self.caller(collective), self.common.BenchBarrierWait, self.barrier, time.monotonic_ns
        times, slot = [], 0
        for i in range(-warmup, iterations):
            wait(barrier)
            start = now()
            for _ in range(batch):
                call(*views[slot])
                slot = slot + 1 if slot + 1 < len(views) else 0
            if i >= 0:
                times.append(now() - start)
        return times

    def obey(self, line):
        _, collective, bytes_, warmup, iterations, batch, check = line.split()
        views = self.views(collective, int(bytes_))
        trouble = self.check(collective, int(bytes_), views) if check == "1" else None
        # Even with a wrong result: the other ranks will wait at the barrier.
        times = self.measure(collective, int(warmup), int(iterations), int(batch), views)
        self.say("wrong " + trouble if trouble else " ".join(["times", *map(str, times)]))

    def run(self):
        self.join()
        self.say(f"hello {self.rank}")
        for line in self.lines:
            if line.startswith("quit"):
                break
            self.obey(line)


def main():
    rank = Rank()
    try:
        rank.run()
    except Exception as error:  # the driver must hear of it, whatever it is
        rank.say("error " + " ".join(f"{type(error).__name__}: {error}".split())[:200])
        return 1
    # Gloo's threads may outlive an orderly end of the interpreter; nothing is left to lose.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
