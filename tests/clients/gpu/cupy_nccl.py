"""CuPy's module for NCCL over all GPUs, driven by one process, then as ranks that are threads."""

import threading

import cupy
from cupy.cuda import nccl

n = cupy.cuda.runtime.getDeviceCount()


def stream(device):
    with cupy.cuda.Device(device):
        return cupy.cuda.Stream(non_blocking=True)


def check(what, got, wanted):
    with got.device:
        assert bool((got == wanted).all()), f"{what}: {got[:4]}, not {wanted}"


def one_process():
    comms = nccl.NcclCommunicator.initAll(n)
    streams = [stream(d) for d in range(n)]
    values = []
    for d in range(n):
        with cupy.cuda.Device(d):
            values.append(cupy.full(1_000_000, d + 1, dtype=cupy.float32))
            cupy.cuda.Device(d).synchronize()
    nccl.groupStart()
    for comm, x, s in zip(comms, values, streams):
        with x.device:
            comm.allReduce(x.data.ptr, x.data.ptr, x.size, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, s.ptr)
    nccl.groupEnd()
    for s, x in zip(streams, values):
        s.synchronize()
        check("allReduce", x, n * (n + 1) // 2)
    for comm in comms:
        comm.destroy()


def rank(r, unique_id, failures):
    try:
        cupy.cuda.Device(r).use()
        s = stream(r)
        comm = nccl.NcclCommunicator(n, unique_id, r)
        assert (comm.rank_id(), comm.size()) == (r, n)
        mine, everyone = cupy.full(3000, r, dtype=cupy.int64), cupy.empty(3000 * n, dtype=cupy.int64)
        cupy.cuda.Device(r).synchronize()
        comm.allGather(mine.data.ptr, everyone.data.ptr, mine.size, nccl.NCCL_INT64, s.ptr)
        comm.reduceScatter(everyone.data.ptr, mine.data.ptr, mine.size, nccl.NCCL_INT64, nccl.NCCL_SUM, s.ptr)
        s.synchronize()
        check("allGather and reduceScatter", mine, r * n)
        into = cupy.empty_like(mine)
        nccl.groupStart()
        comm.send(everyone.data.ptr, mine.size, nccl.NCCL_INT64, (r + 1) % n, s.ptr)
        comm.recv(into.data.ptr, mine.size, nccl.NCCL_INT64, (r - 1) % n, s.ptr)
        nccl.groupEnd()
        s.synchronize()
        check("send and recv", into, 0)
        comm.destroy()
    except Exception as error:  # told by the main thread
        failures.append(f"rank {r}: {error}")


def threads():
    failures, unique_id = [], nccl.get_unique_id()
    ranks = [threading.Thread(target=rank, args=(r, unique_id, failures)) for r in range(n)]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join()
    assert not failures, failures


one_process()
threads()
