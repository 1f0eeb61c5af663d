"""Runs the torch.distributed backend `tutti` on tensors in GPUs, and compares every result with arithmetic.

torch_backend.py LIBRARY RANKS [HOSTS]
  LIBRARY  libtutti.so.0
  HOSTS    the ranks take themselves to be on so many hosts

One process a GPU. Prints a line for each part, and in the end DDP's losses beside those that one process gets from all
of the data, and what an all_reduce takes, beside PyTorch's own backend. Exits with 1 where anything is wrong.
"""

import os
import pathlib
import socket
import subprocess
import sys
import time

from coordinator_ranks import ONE_THREAD

ROOT = pathlib.Path(__file__).resolve().parents[2]
failures = []


def expect(name, got, wanted):
    """Notes a failure where a tensor is not what it must be, exactly."""
    if got.shape != wanted.shape or not bool((got.cpu() == wanted.cpu()).all()):
        failures.append(f"{name}: {got.flatten()[:4].tolist()} instead of {wanted.flatten()[:4].tolist()}")


def reductions(torch, dist, rank, n, device):
    types = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int32, torch.int64]
    for dtype in types:
        for count in (1, 1000, 300_001):
            mine = (torch.arange(count) % 5 + rank + 1).to(dtype)
            every = [(torch.arange(count) % 5 + r + 1).to(dtype) for r in range(n)]
            # All of this is exact: small whole numbers.
            for op, function in ((dist.ReduceOp.SUM, sum), (dist.ReduceOp.MAX, lambda all: torch.stack(all).max(0).values),
                                 (dist.ReduceOp.MIN, lambda all: torch.stack(all).min(0).values)):
                tensor = mine.to(device, copy=True)
                dist.all_reduce(tensor, op=op)
                expect(f"all_reduce {op} {dtype} {count}", tensor, function(every).to(dtype))
    for op, function in ((dist.ReduceOp.BOR, lambda a, b: a | b), (dist.ReduceOp.BAND, lambda a, b: a & b)):
        tensor = torch.tensor([5 + rank, 6], device=device, dtype=torch.int32)
        wanted = torch.tensor([5, 6], dtype=torch.int32)
        for r in range(1, n):
            wanted = function(wanted, torch.tensor([5 + r, 6], dtype=torch.int32))
        dist.all_reduce(tensor, op=op)
        expect(f"all_reduce {op}", tensor, wanted)
    tensor = torch.full((7,), float(rank), device=device)
    dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
    expect("all_reduce AVG", tensor, torch.full((7,), sum(range(n)) / n))
    tensor = torch.full((7,), float(rank + 1), device=device)
    dist.reduce(tensor, dst=n - 1)
    if rank == n - 1:
        expect("reduce", tensor, torch.full((7,), float(sum(range(1, n + 1)))))


def movements(torch, dist, rank, n, device):
    of = lambda r, count=1003: torch.arange(count, dtype=torch.float32) + 10_000 * r
    tensor = of(rank).to(device)
    dist.broadcast(tensor, src=1)
    expect("broadcast", tensor, of(1))
    out = torch.empty(n * 1003, device=device)
    dist.all_gather_into_tensor(out, of(rank).to(device))
    expect("all_gather_into_tensor", out, torch.cat([of(r) for r in range(n)]))
    parts = [torch.empty(1003, device=device) for _ in range(n)]
    dist.all_gather(parts, of(rank).to(device))
    expect("all_gather", torch.cat(parts), torch.cat([of(r) for r in range(n)]))
    block = torch.empty(500, device=device)
    dist.reduce_scatter_tensor(block, of(rank, n * 500).to(device))
    expect("reduce_scatter_tensor", block, sum(of(r, n * 500) for r in range(n))[rank * 500:(rank + 1) * 500])
    out = torch.empty(n * 100, device=device)
    dist.all_to_all_single(out, of(rank, n * 100).to(device))
    expect("all_to_all_single", out, torch.cat([of(r, n * 100)[rank * 100:(rank + 1) * 100] for r in range(n)]))
    got = [torch.empty(300, device=device) for _ in range(n)] if rank == 0 else None
    dist.gather(of(rank, 300).to(device), got, dst=0)
    if rank == 0:
        expect("gather", torch.cat(got), torch.cat([of(r, 300) for r in range(n)]))
    mine = torch.empty(300, device=device)
    dist.scatter(mine, [of(r, 300).to(device) for r in range(n)] if rank == 0 else None, src=0)
    expect("scatter", mine, of(rank, 300))


def messages(torch, dist, rank, n, device):
    right, left = (rank + 1) % n, (rank - 1) % n
    for count in (1, 100_000):
        sent, got = torch.full((count,), float(rank), device=device), torch.empty(count, device=device)
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, sent, right), dist.P2POp(dist.irecv, got, left)]):
            work.wait()
        expect(f"batch_isend_irecv {count}", got, torch.full((count,), float(left)))
    if rank < 2:
        tensor = torch.full((9,), float(rank), device=device)
        if rank == 0:
            dist.send(tensor, 1)
        else:
            dist.recv(tensor, 0)
            expect("recv", tensor, torch.zeros(9))
    pair = dist.new_group([0, n - 1])
    if rank in (0, n - 1):
        tensor = torch.ones(5, device=device)
        dist.all_reduce(tensor, group=pair)
        expect("all_reduce of a group", tensor, torch.full((5,), 2.0))
    dist.barrier()
    # The stream that asked goes on behind an operation that is not waited for on the host.
    tensor = torch.ones(1 << 20, device=device)
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    expect("async all_reduce", tensor * 2, torch.full((1 << 20,), 2.0 * n))


def arrays(torch, dist, rank, n, device):
    """tutti.Communicator on tensors, and on CuPy's arrays where it is there."""
    import tutti
    ids = [tutti.Communicator.unique_id() if rank == 0 else None]
    dist.broadcast_object_list(ids, 0, device=torch.device("cpu"))
    with tutti.Communicator(rank, n, ids[0], device=device.index) as comm:
        expect("Communicator.allreduce", comm.allreduce(torch.arange(1000.0, device=device)), torch.arange(1000.0) * n)
        rows = comm.allgather_rows(torch.full((rank, 3), rank, device=device))
        expect("Communicator.allgather_rows", rows, torch.cat([torch.full((r, 3), r) for r in range(n)]))
        comm.barrier()
        try:
            import cupy
        except ImportError:
            return
        with cupy.cuda.Device(device.index), cupy.cuda.Stream(non_blocking=True):
            reduced = comm.allreduce(cupy.arange(1000, dtype=cupy.float32) + rank)
            expect("Communicator.allreduce of CuPy", torch.from_numpy(cupy.asnumpy(reduced)),
                   torch.arange(1000.0) * n + n * (n - 1) // 2)


def losses(torch, dist, rank, n, device, distributed):
    """Returns the losses of a small model, of this rank's part of the data or of all of it."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)).to(device).double()
    if distributed:
        model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[device.index], bucket_cap_mb=0.05)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data = torch.randn(n * 32, 64, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    wanted = data.sum(1, keepdim=True).tanh()
    part = slice(rank * 32, (rank + 1) * 32) if distributed else slice(None)
    data, wanted = data[part].to(device), wanted[part].to(device)
    result = []
    for _ in range(8):
        loss = torch.nn.functional.mse_loss(model(data), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss = loss.detach()
        if distributed:
            dist.all_reduce(loss, op=dist.ReduceOp.AVG)
        result.append(loss.item())
    return result


def training(torch, dist, rank, n, device):
    together, alone = losses(torch, dist, rank, n, device, True), losses(torch, dist, rank, n, device, False)
    if any(abs(a - b) > 1e-9 for a, b in zip(together, alone)):
        failures.append(f"DDP's losses are {together}, and one process gets {alone}")
    if rank == 0:
        print("losses:", " ".join(f"{loss:.6f}" for loss in together), flush=True)


def speed(torch, dist, rank, device):
    """Prints what an all_reduce takes, of calls that follow one another, beside PyTorch's own backend over NVIDIA's NCCL."""
    groups = [dist.group.WORLD, dist.new_group(backend="nccl")]
    for count in (1, 16 << 10, 1 << 20, 16 << 20):
        tensor = torch.zeros(count, device=device)
        least = [float("inf")] * len(groups)
        for _ in range(5):
            for i, group in enumerate(groups):
                for _ in range(10):
                    dist.all_reduce(tensor, group=group)
                torch.cuda.synchronize()
                began = time.perf_counter()
                for _ in range(50):
                    dist.all_reduce(tensor, group=group)
                torch.cuda.synchronize()
                least[i] = min(least[i], (time.perf_counter() - began) / 50 * 1e6)
        if rank == 0:
            print(f"all_reduce of {4 * count} B: {least[0]:.1f} us, NVIDIA's {least[1]:.1f} us", flush=True)


def run_rank():
    import torch
    import torch.distributed as dist

    import tutti.torch.distributed  # noqa: F401  makes the name known
    rank, n = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("tutti")
    for part in (reductions, movements, messages, arrays, training):
        began = time.perf_counter()
        part(torch, dist, rank, n, device)
        if rank == 0:
            print(f"{part.__name__}: {time.perf_counter() - began:.1f} s", flush=True)
    speed(torch, dist, rank, device)
    dist.destroy_process_group()
    for failure in failures[:20]:
        print(f"rank {rank}: {failure}", flush=True)
    return 1 if failures else 0


def main():
    if sys.argv[1:] == ["rank"]:
        return run_rank()
    try:
        import torch
    except ImportError:
        print("skipped: there is no PyTorch")
        return 77
    library, ranks = os.path.abspath(sys.argv[1]), int(sys.argv[2])
    hosts = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    if torch.cuda.device_count() < ranks:
        print(f"skipped: PyTorch sees {torch.cuda.device_count()} GPUs, and {ranks} are needed")
        return 77
    started = []
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    for rank in range(ranks):
        own = dict(ONE_THREAD, **os.environ)
        own.update(RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
                   TUTTI_LIBRARY=library, TUTTI_TORCH_BACKEND="cpp", PYTHONPATH=str(ROOT / "python"))
        if hosts > 1:
            own.update(NCCL_HOSTID=f"host{rank * hosts // ranks}", NCCL_SOCKET_IFNAME="lo")
        started.append(subprocess.Popen([sys.executable, __file__, "rank"], env=own))
    statuses = [process.wait() for process in started]
    print("all passed" if not any(statuses) else f"FAILED: the ranks ended with {statuses}")
    return 1 if any(statuses) else 0


if __name__ == "__main__":
    sys.exit(main())
