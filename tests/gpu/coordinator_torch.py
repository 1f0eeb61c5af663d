"""The coordinator with tensors on GPUs: tutti.torch, one process a GPU, results compared with what they must be.

Usage: coordinator_torch.py LIBRARY_FOLDER [RANKS] [--nccl]      LIBRARY_FOLDER has libtutti.so.0
With --nccl everything runs once more through NVIDIA's NCCL (HOROVOD_GPU_OPERATIONS=NCCL), and the results are compared with Tutti's: bit for
bit, but where sums may be taken in another order.
Exits with 77 and a word where there are fewer than two GPUs, or no PyTorch.
"""

import hashlib
import json
import os
import pathlib
import signal
import sys
import tempfile
import time

import coordinator_ranks as job
from coordinator_ranks import failures

HERE = pathlib.Path(__file__).resolve()
# Where no communicator of GPUs is to be made, everything goes through the host's memory.
THROUGH_HOST = os.environ.get("TUTTI_BACKEND") == "host"
THROUGH_NCCL = os.environ.get("HOROVOD_GPU_OPERATIONS") == "NCCL"
RECORDS = os.environ.get("RECORDS")  # the folder where a run leaves what its results were
records = []  # of each result: what it is, its bits' hash, and whether another library must have the same


def record(what, got, due):
    import torch
    bits = got.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    records.append([what, hashlib.sha256(bits).hexdigest(), due])


def expect(what, got, wanted, tolerance=0.0):
    import torch
    got, wanted = got.cpu(), torch.as_tensor(wanted).cpu()
    record(what, got, tolerance == 0)
    same = got.shape == wanted.shape and got.dtype == wanted.dtype
    if not same or not torch.allclose(got.double(), wanted.double(), rtol=tolerance, atol=tolerance):
        failures.append(f"{what}: got {got.flatten()[:6].tolist()} of {tuple(got.shape)} {got.dtype}, wanted "
                        f"{wanted.flatten()[:6].tolist()} of {tuple(wanted.shape)} {wanted.dtype}")


def reductions(hvd, torch, device):
    rank, n = hvd.rank(), hvd.size()
    total = n * (n + 1) // 2
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
                  torch.float32, torch.float64):
        for count in (1, 1000, 300_000):
            x = torch.full((count,), rank + 1, dtype=dtype, device=device)
            expect(f"sum of {dtype}", hvd.allreduce(x, op=hvd.Sum), torch.full((count,), total, dtype=dtype))
            hvd.allreduce_(x, op=hvd.Max)
            expect(f"max of {dtype}", x, torch.full((count,), n, dtype=dtype))
    flags = torch.tensor([rank == 0, True, False], device=device)
    expect("or", hvd.allreduce(flags, op=hvd.Sum), torch.tensor([True, True, False]))
    x = torch.full((5000,), float(rank + 1), device=device)
    expect("average", hvd.allreduce(x), torch.full((5000,), total / n), 1e-6)
    expect("scaled", hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0),
           torch.full((5000,), 2.0 * total), 1e-6)
    expect("scaled min", hvd.allreduce(x, op=hvd.Min, prescale_factor=3.0), torch.full((5000,), 3.0))
    expect("fp16", hvd.allreduce(x, op=hvd.Sum, compression=hvd.Compression.fp16), torch.full((5000,), float(total)))
    expect("adasum", hvd.allreduce(torch.full((100,), 2.0, device=device), op=hvd.Adasum), torch.full((100,), 2.0), 1e-5)
    for step in range(3):
        tensors = [torch.full((100 + 7 * i,), float(rank + i), device=device) for i in range(200)]
        handles = [hvd.allreduce_async_(t, name=f"small.{i}", op=hvd.Sum) for i, t in enumerate(tensors)]
        for i, handle in enumerate(handles):
            expect("fused", hvd.synchronize(handle), torch.full((100 + 7 * i,), float(n * i + n * (n - 1) / 2)))
    grouped = hvd.grouped_allreduce([torch.ones(10, device=device), torch.ones(3_000_000, device=device)], op=hvd.Sum)
    for part in grouped:
        expect("grouped", part, torch.full(part.shape, float(n)))


def movements(hvd, torch, device):
    rank, n = hvd.rank(), hvd.size()
    mine = torch.full((rank + 1, 3), rank, dtype=torch.int64, device=device)
    expect("allgather", hvd.allgather(mine), torch.cat([torch.full((r + 1, 3), r) for r in range(n)]))
    expect("even allgather", hvd.allgather(torch.full((4,), float(rank), device=device)),
           torch.arange(n).repeat_interleave(4).float())
    many = hvd.grouped_allgather([torch.full((2,), rank, device=device), torch.full((rank,), rank, device=device)])
    expect("grouped allgather", many[1], torch.cat([torch.full((r,), r) for r in range(n)]))
    x = torch.full((100_000,), rank, dtype=torch.bfloat16, device=device)
    expect("broadcast", hvd.broadcast(x, n - 1), torch.full((100_000,), n - 1, dtype=torch.bfloat16))
    hvd.broadcast_(x, 0)
    expect("broadcast_", x, torch.zeros(100_000, dtype=torch.bfloat16))
    splits = [rank + i for i in range(n)]
    rows, received = hvd.alltoall(torch.full((sum(splits),), rank, device=device), splits=splits)
    expect("alltoall", rows, torch.cat([torch.full((r + rank,), r) for r in range(n)]))
    expect("splits", received, torch.tensor([r + rank for r in range(n)], dtype=torch.int32))
    for rows in (3 * n, 3 * n + 1):
        got = hvd.reducescatter(torch.ones(rows, 5, device=device), op=hvd.Sum)
        expect("reducescatter", got, torch.full((rows // n + (rank < rows % n), 5), float(n)))
    even = hvd.add_process_set(list(range(0, n, 2)))
    if even.included():
        # With a name: the others would count one unnamed operation less.
        expect("process set", hvd.allreduce(torch.ones(1000, device=device), op=hvd.Sum, process_set=even, name="even"),
               torch.full((1000,), float(even.size())))
    hvd.remove_process_set(even)
    x = torch.ones(4, device=device, requires_grad=True)
    hvd.allreduce(x * (rank + 1), op=hvd.Sum).sum().backward()
    expect("gradient", x.grad, torch.full((4,), float((rank + 1) * n)))
    objects = hvd.allgather_object({"rank": rank})
    if [o["rank"] for o in objects] != list(range(n)):
        failures.append(f"objects: {objects}")
    if rank == 0:
        joined = hvd.join()
    else:
        expect("beside one that joined", hvd.allreduce(torch.full((10,), 5.0, device=device), op=hvd.Min, name="join"),
               torch.full((10,), 5.0))
        joined = hvd.join()
    if not 0 <= joined < n:
        failures.append(f"join: {joined}")


def noise(hvd, torch, device):
    """Bits without order, for the comparison of two libraries. A sum of two ranks can be rounded in one way only."""
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8):
        for count in (1, 999, 70_001, 3_000_001):
            generator = torch.Generator().manual_seed(1000 * hvd.rank() + count)
            x = (torch.randn(count, generator=generator, dtype=torch.float64) * 20).abs().to(dtype).to(device)
            for op in (hvd.Sum, hvd.Average, hvd.Min, hvd.Max):
                due = hvd.size() == 2 or op in (hvd.Min, hvd.Max) or not dtype.is_floating_point
                record(f"{op} of {count} {dtype}", hvd.allreduce(x, op=op, name="noise"), due)
            record(f"scaled {count} {dtype}", hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.3, name="scaled")
                   if dtype.is_floating_point else x, False)
            record(f"rows of {dtype}", hvd.allgather(x[:max(1, count // (hvd.rank() + 1))], name="rows"), True)
            record(f"root's {dtype}", hvd.broadcast(x, hvd.size() - 1, name="root"), True)
            record(f"exchanged {dtype}", hvd.alltoall(x, name="exchanged") if count % hvd.size() == 0 else x, True)
            record(f"scattered {dtype}", hvd.reducescatter(x, op=hvd.Sum, name="scattered"),
                   hvd.size() == 2 or not dtype.is_floating_point)


def order(hvd, torch, device):
    """What comes before and after on the user's streams, and that no thread waits for the GPU."""
    a = torch.randn(8192, 8192, device=device)
    side = torch.cuda.Stream()
    for step in range(20):
        x = torch.zeros(1 << 20, device=device)
        for _ in range(4):
            torch.mm(a, a)
        x.add_(step + 1)
        handle = hvd.allreduce_async_(x, op=hvd.Sum, name="order")
        with torch.cuda.stream(side if step % 2 else torch.cuda.current_stream()):
            y = hvd.synchronize(handle) * 2
        torch.cuda.current_stream().wait_stream(side)
        expect("order", y[:1000], torch.full((1000,), 2.0 * hvd.size() * (step + 1)))
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(40):
        torch.mm(a, a)
    hvd.synchronize(hvd.allreduce_async_(x, name="order", op=hvd.Sum))
    asked = time.perf_counter() - began
    torch.cuda.synchronize()
    whole = time.perf_counter() - began
    if hvd.rank() == 0:
        print(f"asked and synchronized after {asked * 1e3:.1f} ms; the GPU was done after {whole * 1e3:.1f} ms")
    if asked > whole / 2 and not THROUGH_HOST:
        failures.append(f"synchronize waited for the GPU: {asked * 1e3:.1f} of {whole * 1e3:.1f} ms")


def errors(hvd, torch, device):
    try:
        place = device if hvd.rank() == 0 else "cpu"
        hvd.allreduce(torch.ones(3, device=place), name="apart")
        failures.append("a CPU tensor met a GPU tensor")
    except hvd.HorovodInternalError as error:
        if "where the tensor lies" not in str(error):
            failures.append(str(error))
    if torch.cuda.device_count() > 1:
        try:
            other = torch.device("cuda", (device.index + 1) % torch.cuda.device_count())
            hvd.allreduce(torch.ones(3, device=other), name="second")
            failures.append("a second GPU was taken")
        except ValueError as error:
            if "a rank has one GPU" not in str(error):
                failures.append(str(error))
    expect("afterwards", hvd.allreduce(torch.ones(3, device=device), op=hvd.Sum), torch.full((3,), float(hvd.size())))


def training(hvd, torch, device):
    """The losses of all ranks together are those of one process with all the data."""
    def model():
        torch.manual_seed(1)
        return torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)).to(device).double()

    torch.manual_seed(5)
    data = torch.randn(64, 20, dtype=torch.float64)
    target = data.pow(2).sum(1, keepdim=True)
    data, target = data.to(device), target.to(device)
    alone, shared = model(), model()
    if hvd.rank() > 0:
        with torch.no_grad():
            for p in shared.parameters():
                p.mul_(3)
    reference = torch.optim.SGD(alone.parameters(), lr=0.01, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(shared.parameters(), lr=0.01, momentum=0.9),
                                         named_parameters=shared.named_parameters())
    hvd.broadcast_parameters(shared.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    part = slice(hvd.rank() * 64 // hvd.size(), (hvd.rank() + 1) * 64 // hvd.size())
    for step in range(30):
        reference.zero_grad()
        loss = torch.nn.functional.mse_loss(alone(data), target)
        loss.backward()
        reference.step()
        optimizer.zero_grad()
        own = torch.nn.functional.mse_loss(shared(data[part]), target[part])
        own.backward()
        optimizer.step()
        expect(f"loss of step {step}", hvd.allreduce(own.detach(), name="loss"), loss.detach(), 1e-9)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)  # now with a state that lies on the GPU
    state = optimizer.state_dict()["state"]
    if not all(s["momentum_buffer"].is_cuda for s in state.values()):
        failures.append("the optimizer's state left the GPU")


def speed(hvd, torch, device):
    """160 gradients, 100 MB: each asked for by itself, and the same bytes as one tensor."""
    sizes = [64 * 3 * 49] + [256 * 1024 if i % 3 else 64 * 64 for i in range(158)] + [2048 * 1000]
    gradients = [torch.ones(size, device=device) for size in sizes]
    whole = torch.ones(sum(sizes), device=device)

    def step():
        handles = [hvd.allreduce_async_(g, name=f"g.{i}") for i, g in enumerate(gradients)]
        for handle in handles:
            hvd.synchronize(handle)

    for what, once in (("160 gradients", step), ("one tensor", lambda: hvd.allreduce_(whole, name="whole"))):
        times = []
        for _ in range(12):
            torch.cuda.synchronize()
            hvd.barrier()
            began = time.perf_counter()
            once()
            torch.cuda.synchronize()
            times.append(time.perf_counter() - began)
        if hvd.rank() == 0:
            print(f"{what}, {sum(sizes) * 4 / 1e6:.0f} MB: {sorted(times)[6] * 1e3:.2f} ms (median of 12)")


def death(hvd, torch, device):
    """The last rank dies; the others' operation, queued or not, ends with a sentence, and nothing hangs."""
    if hvd.rank() == hvd.size() - 1:
        if failures:
            job.leave()
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        for i in range(1000):
            hvd.allreduce(torch.ones(1000, device=device), name="death")
            torch.cuda.synchronize()
            time.sleep(0.01)
        failures.append("nobody noticed that a rank died")
    except hvd.HorovodInternalError as error:
        if f"rank {hvd.size() - 1}" not in str(error):
            failures.append(f"the error names nobody: {error}")
    torch.cuda.synchronize()


def run_rank():
    import torch

    import tutti.torch as hvd
    rank = int(os.environ["RANK"])
    device = job.open_gpu(torch)
    torch.zeros(1, device=device)  # a context before init: the job's own ranks stay the host's all the same
    hvd.init()
    expect("on the host", hvd.allreduce(torch.ones(5), op=hvd.Sum), torch.full((5,), float(hvd.size())))
    if THROUGH_NCCL:
        if hvd.nccl_built() != version_code(torch.cuda.nccl.version()):
            print(f"rank {rank}: nccl_built() is {hvd.nccl_built()}, PyTorch has {torch.cuda.nccl.version()}")
        timeline = os.path.join(RECORDS, "timeline.json")
        hvd.start_timeline(timeline)
    job.work((reductions, movements, noise, order, errors, training, speed), hvd, torch, device)
    if THROUGH_NCCL:
        hvd.stop_timeline()
        own = pathlib.Path(timeline if rank == 0 else f"{timeline}.{rank}").read_text(encoding="utf-8")
        if '"nccl"' not in own.lower():
            failures.append("the timeline does not know of NVIDIA's library")
    if RECORDS:
        pathlib.Path(RECORDS, f"{'nccl' if THROUGH_NCCL else 'tutti'}.{rank}").write_text(json.dumps(records), encoding="utf-8")
    hvd.shutdown()
    hvd.init()
    expect("a second job", hvd.allreduce(torch.ones(5, device=device), op=hvd.Sum),
           torch.full((5,), float(hvd.size())))
    death(hvd, torch, device)
    if rank == 0 and not failures:
        print("all right" + (", through the host's memory" if THROUGH_HOST else ", through NVIDIA's NCCL" if THROUGH_NCCL else ""))
    job.leave()


def version_code(version):
    major, minor, patch = version
    return major * 10000 + minor * 100 + patch


def compare(folder, ranks):
    """Tutti's results and NVIDIA's, rank by rank."""
    good = True
    for rank in range(ranks):
        both = [json.loads(pathlib.Path(folder, f"{name}.{rank}").read_text(encoding="utf-8")) for name in ("tutti", "nccl")]
        if [r[0] for r in both[0]] != [r[0] for r in both[1]]:
            print(f"rank {rank}: the two runs did not do the same")
            return False
        other = [(a[0], a[2]) for a, b in zip(*both) if a[1] != b[1]]
        wrong = [what for what, due in other if due]
        print(f"rank {rank}: {len(both[0])} results, {len(both[0]) - len(other)} of them bit for bit NVIDIA's; of {sum(r[2] for r in both[0])} "
              f"that must be, {len(wrong)} are not" + "".join(f"\n    {what}" for what in wrong[:20]))
        good = good and not wrong
    return good


def start(ranks, port, extra):
    status = job.start(HERE, ranks, port, extra)
    # The last one dies by its own hand.
    return all(code == 0 for code in status[:-1]) and status[-1] == -signal.SIGKILL


def main():
    if sys.argv[1:] == ["rank"]:
        run_rank()
    numbers, with_nccl = job.read_arguments(1 if os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1" else 2)
    ranks = numbers[0] if numbers else 2
    with tempfile.TemporaryDirectory() as folder:
        good = start(ranks, 29521, {"RECORDS": folder})
        good = start(ranks, 29531, {"TUTTI_BACKEND": "host"}) and good
        if with_nccl:
            good = start(ranks, 29541, {"RECORDS": folder, "HOROVOD_GPU_OPERATIONS": "NCCL"}) and good
            good = compare(folder, ranks) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
