"""nccl4py over all GPUs, driven by one process; arrays are CuPy's."""

import cupy
import nccl.core as nccl

n = cupy.cuda.runtime.getDeviceCount()


def on(device, make):
    with cupy.cuda.Device(device):
        result = make()
        cupy.cuda.Device(device).synchronize()
        return result


def every(comms, call):
    """Calls for each communicator in one group, with its device current, and waits for the GPUs."""
    with nccl.group():
        for rank, comm in enumerate(comms):
            with cupy.cuda.Device(rank):
                call(rank, comm)
    for rank in range(n):
        cupy.cuda.Device(rank).synchronize()


def check(what, got, wanted):
    with got.device:
        assert bool((got == wanted).all()), f"{what}: {got[:4]}, not {wanted}"


def main():
    comms = nccl.Communicator.init_all(n)
    mine = [on(d, lambda d=d: cupy.full(1_000_000, d + 1, dtype=cupy.float32)) for d in range(n)]
    sums = [on(d, lambda: cupy.empty(1_000_000, dtype=cupy.float32)) for d in range(n)]
    everyone = [on(d, lambda: cupy.empty(n * 1_000_000, dtype=cupy.float32)) for d in range(n)]
    streams = [on(d, cupy.cuda.Stream) for d in range(n)]
    configs = [None]
    if nccl.get_version().libnccl.version.release >= (2, 31):  # older libraries have no configuration for a call
        configs.append(nccl.NCCLCollConfig(max_ctas=8, user_profiler_tag=7))
    for config in configs:
        every(comms, lambda r, comm, config=config: comm.allreduce(mine[r], sums[r], nccl.SUM, stream=streams[r].ptr,
                                                                   config=config))
        for x in sums:
            check("allreduce", x, n * (n + 1) // 2)
    every(comms, lambda r, comm: comm.allgather(mine[r], everyone[r], stream=streams[r].ptr))
    for x in everyone:
        check("allgather", x[-5:], n)
    every(comms, lambda r, comm: comm.reduce_scatter(everyone[r], sums[r], nccl.SUM, stream=streams[r].ptr))
    for rank, x in enumerate(sums):
        check("reduce_scatter", x, n * (rank + 1))
    for comm in comms:
        comm.destroy()


main()
