"""One rank of a PyTorch job on GPUs, for tests/gpu/run: every collective of torch.distributed, several groups at once,
then a small training by DistributedDataParallel and by FSDP whose losses are printed, so that runs on two libraries can be
compared.

Started with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, one process a GPU. Says "all right" on rank 0 at the end.
"""

import datetime
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.fsdp

rank = int(os.environ["RANK"])
size = int(os.environ["WORLD_SIZE"])
device = torch.device("cuda", rank % torch.cuda.device_count())  # Ranks may share GPUs.
torch.cuda.set_device(device)
failures = []


def expect(what, got, wanted):
    if not torch.equal(got.cpu(), wanted.cpu()):
        failures.append(f"rank {rank}: {what}: got {got.flatten()[:8].tolist()}, wanted {wanted.flatten()[:8].tolist()}")


def collectives(group_name, group, me, n):
    for count in (1, 1000, 300_000, 3_000_000):
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            x = torch.full((count,), me + 1, dtype=dtype, device=device)
            dist.all_reduce(x, group=group)
            expect(f"{group_name} all_reduce", x, torch.full((count,), n * (n + 1) // 2, dtype=dtype))
        mine = torch.arange(count, device=device) + me * count
        gathered = torch.empty(n * count, dtype=mine.dtype, device=device)
        dist.all_gather_into_tensor(gathered, mine, group=group)
        expect(f"{group_name} all_gather", gathered, torch.arange(n * count))
        scattered = torch.empty(count, dtype=mine.dtype, device=device)
        dist.reduce_scatter_tensor(scattered, torch.arange(n * count, device=device) * (me + 1), group=group)
        expect(f"{group_name} reduce_scatter", scattered, (torch.arange(count) + me * count) * (n * (n + 1) // 2))
        sent = torch.arange(n * count, device=device) + me * 10
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=group)
        wanted = torch.cat([torch.arange(count) + me * count + peer * 10 for peer in range(n)])
        expect(f"{group_name} all_to_all", received, wanted)
    root = dist.get_global_rank(group, n - 1) if group is not None else n - 1
    x = torch.full((100_000,), me, device=device)
    dist.broadcast(x, root, group=group)
    expect(f"{group_name} broadcast", x, torch.full((100_000,), n - 1))
    x = torch.full((100_000,), me + 1, device=device)
    dist.reduce(x, root, group=group)
    if me == n - 1:
        expect(f"{group_name} reduce", x, torch.full((100_000,), n * (n + 1) // 2))
    lists = [torch.empty(10 + i, dtype=torch.float32, device=device) for i in range(n)]
    dist.all_gather(lists, torch.full((10 + me,), float(me), device=device), group=group)
    for i, part in enumerate(lists):
        expect(f"{group_name} uneven all_gather", part, torch.full((10 + i,), float(i)))


def rooted(group_name, group, me, n):
    """gather and scatter, from and to the last rank."""
    root = dist.get_global_rank(group, n - 1) if group is not None else n - 1
    for count in (1, 70_000):
        mine = torch.arange(count, device=device) + 1000 * me
        parts = [torch.empty_like(mine) for _ in range(n)] if me == n - 1 else None
        dist.gather(mine, parts, dst=root, group=group)
        for i, part in enumerate(parts or []):
            expect(f"{group_name} gather", part, torch.arange(count) + 1000 * i)
        into = torch.empty_like(mine)
        sent = [torch.arange(count, device=device) + 7 * i for i in range(n)] if me == n - 1 else None
        dist.scatter(into, sent, src=root, group=group)
        expect(f"{group_name} scatter", into, torch.arange(count) + 7 * me)


def uneven(group_name, group, me, n):
    """all_to_all by splits and by lists, reduce_scatter by lists, even and uneven."""
    splits = [me + 2 * i for i in range(n)]  # what this rank has for each
    sent = torch.cat([torch.full((rows, 3), 100.0 * me + i) for i, rows in enumerate(splits)]).to(device)
    theirs = [i + 2 * me for i in range(n)]
    into = torch.empty(sum(theirs), 3, device=device)
    dist.all_to_all_single(into, sent, theirs, splits, group=group)
    expect(f"{group_name} uneven all_to_all", into, torch.cat([torch.full((r, 3), 100.0 * i + me) for i, r in enumerate(theirs)]))
    for rows in (lambda a, b: 5000, lambda a, b: 1 + a + 3 * b):
        out = [torch.full((rows(me, i),), float(10 * me + i), device=device) for i in range(n)]
        got = [torch.empty(rows(i, me), device=device) for i in range(n)]
        dist.all_to_all(got, out, group=group)
        for i, part in enumerate(got):
            expect(f"{group_name} list all_to_all", part, torch.full((rows(i, me),), float(10 * i + me)))
    for rows in (lambda i: 4000, lambda i: 5 + 3 * i):
        parts = [torch.full((rows(i),), float((me + 1) * (i + 1)), device=device) for i in range(n)]
        got = torch.empty(rows(me), device=device)
        dist.reduce_scatter(got, parts, group=group)
        expect(f"{group_name} list reduce_scatter", got, torch.full((rows(me),), float((me + 1) * n * (n + 1) // 2)))


def operators(group_name, group, me, n):
    product = 1
    for i in range(n):
        product *= i % 2 + 1
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.uint8):
        for name, mine, wanted in (("MIN", me + 1, 1), ("MAX", me + 1, n), ("PRODUCT", me % 2 + 1, product)):
            x = torch.full((5000,), mine, dtype=dtype, device=device)
            dist.all_reduce(x, op=getattr(dist.ReduceOp, name), group=group)
            expect(f"{group_name} {name} of {dtype}", x, torch.full((5000,), wanted, dtype=dtype))


def plain_messages():
    """send and recv, which make communicators of two; a rank without a partner has none."""
    partner = rank ^ 1
    if partner >= size:
        return
    for count in (1, 5000, 2_000_000):
        mine, into = torch.full((count,), float(rank), device=device), torch.empty(count, device=device)
        if rank < partner:
            dist.send(mine, partner)
            dist.recv(into, partner)
        else:
            dist.recv(into, partner)
            dist.send(mine, partner)
        expect("plain send and receive", into, torch.full((count,), float(partner)))


def expect_equal(what, got, wanted):
    if got != wanted:
        failures.append(f"rank {rank}: {what}: got {got}, wanted {wanted}")


def objects():
    mine = {"rank": rank, "text": "x" * (1000 * rank)}
    everyone = [{"rank": r, "text": "x" * (1000 * r)} for r in range(size)]
    gathered = [None] * size
    dist.all_gather_object(gathered, mine)
    expect_equal("all_gather_object", gathered, everyone)
    shared = ["from the last", 7] if rank == size - 1 else [None, None]
    dist.broadcast_object_list(shared, src=size - 1, device=device)
    expect_equal("broadcast_object_list", shared, ["from the last", 7])
    at_root = [None] * size if rank == 0 else None
    dist.gather_object(mine, at_root, dst=0)
    if rank == 0:
        expect_equal("gather_object", at_root, everyone)
    part = [None]
    dist.scatter_object_list(part, everyone if rank == 0 else None, src=0)
    expect_equal("scatter_object_list", part, [mine])


def messages():
    after, before = (rank + 1) % size, (rank - 1) % size
    for count in (1, 5000, 2_000_000):
        out = torch.full((count,), float(rank), device=device)
        into = torch.empty(count, device=device)
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, out, after), dist.P2POp(dist.irecv, into, before)]):
            work.wait()
        expect("send and receive", into, torch.full((count,), float(before)))


def coalesced():
    tensors = [torch.full((1000 * (i + 1),), float(rank + i), device=device) for i in range(5)]
    with dist._coalescing_manager(device=device, async_ops=True) as works:
        for x in tensors:
            dist.all_reduce(x)
    works.wait()
    for i, x in enumerate(tensors):
        expect("coalesced all_reduce", x, torch.full((1000 * (i + 1),), float(sum(range(size)) + size * i)))


def graph():
    x = torch.ones(50_000, device=device)
    y = torch.empty(size * 50_000, device=device)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        dist.all_reduce(x)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    x.fill_(1)
    with torch.cuda.graph(captured):
        dist.all_reduce(x)
        dist.all_gather_into_tensor(y, x)
        x.mul_(1.0 / size)
    for _ in range(3):
        captured.replay()
    torch.cuda.synchronize()
    expect("graph all_reduce", x, torch.ones(50_000))
    expect("graph all_gather", y, torch.full((size * 50_000,), float(size)))


def several_groups():
    """Operations of two groups under way at the same time, on streams of their own."""
    groups = [dist.new_group(list(range(size))) for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in groups]
    tensors = [torch.full((300_000 + i,), float(rank + i), device=device) for i in range(2)]
    torch.cuda.synchronize()
    works = []
    for _ in range(5):
        for group, stream, x in zip(groups, streams, tensors):
            with torch.cuda.stream(stream):
                works.append(dist.all_reduce(x, group=group, async_op=True))
    for work in works:
        work.wait()
    torch.cuda.synchronize()
    for i, x in enumerate(tensors):
        wanted = (sum(range(size)) + size * i) * size**4
        expect("two groups at once", x, torch.full((300_000 + i,), float(wanted)))
    alone = [dist.new_group([r]) for r in range(size)][rank]
    x = torch.full((10,), 3.0, device=device)
    dist.all_reduce(x, group=alone)
    expect("a group of one", x, torch.full((10,), 3.0))


def train(name, wrap):
    torch.manual_seed(1)
    model = wrap(torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512),
                                     torch.nn.ReLU(), torch.nn.Linear(512, 10)).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(100 + rank)
    weights = torch.randn(64, 10, generator=torch.Generator().manual_seed(7))
    losses = []
    for _ in range(60):
        x = torch.randn(128, 64, generator=generator)
        labels = (x @ weights).argmax(1).to(device)
        loss = torch.nn.functional.cross_entropy(model(x.to(device)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        losses.append(mean.item())
    if rank == 0:
        print(name, "losses", " ".join(f"{loss:.6f}" for loss in losses[::10] + losses[-1:]), flush=True)
    if not losses[-1] < 0.7 * losses[0]:
        failures.append(f"rank {rank}: the training by {name} does not learn: {losses[0]} to {losses[-1]}")
    return model, losses


def train_both():
    model, losses = train("DDP", lambda m: torch.nn.parallel.DistributedDataParallel(m, device_ids=[device.index]))
    total = torch.cat([p.detach().flatten() for p in model.parameters()])
    reference = total.clone()
    dist.broadcast(reference, 0)
    expect("equal weights after training", total, reference)
    _, sharded = train("FSDP", lambda m: torch.distributed.fsdp.FullyShardedDataParallel(m, device_id=device))
    if max(abs(a - b) for a, b in zip(losses, sharded)) > 2e-3:
        failures.append(f"rank {rank}: FSDP trains otherwise than DDP: {sharded[-1]} and {losses[-1]}")


def library_in_use():
    """Whether this process has Tutti in NCCL's place, by what is mapped."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return "tutti" if "libtutti.so" in maps.read() else "nccl"


def main():
    begin = time.monotonic()
    wanted, used = os.environ.get("EXPECT_LIBRARY"), library_in_use()
    if wanted is not None and not wanted.startswith(used):
        print(f"rank {rank} runs on {used}, not on {wanted}: this PyTorch has the path to its own library built in"
              if used == "nccl" else f"rank {rank} runs on {used}, not on {wanted}", flush=True)
        return 77 if wanted != "tutti" else 1
    dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=60), device_id=device)
    torch.cuda.synchronize()
    ready = time.monotonic()
    dist.all_reduce(torch.ones(1, device=device))
    torch.cuda.synchronize()
    first = time.monotonic()
    if rank == 0:
        print(f"NCCL version {torch.cuda.nccl.version()}; process group {1e3 * (ready - begin):.0f} ms, first all_reduce "
              f"{1e3 * (first - ready):.0f} ms", flush=True)
    collectives("world", None, rank, size)
    for part in (rooted, uneven, operators):
        part("world", None, rank, size)
    messages()
    plain_messages()
    objects()
    coalesced()
    graph()
    if size == 2:
        collectives("split", dist.new_group([0, 1]), rank, 2)
    if size >= 4:
        halves = [dist.new_group([r for r in range(size) if r % 2 == half]) for half in range(2)]
        group, me, n = halves[rank % 2], rank // 2, dist.get_world_size(halves[rank % 2])
        for part in (collectives, rooted, uneven, operators):
            part("half", group, me, n)
    several_groups()
    train_both()
    dist.barrier()
    for failure in failures[:5]:
        print(failure, flush=True)
    bad = torch.tensor([len(failures)], device=device)
    dist.all_reduce(bad)
    if rank == 0 and bad.item() == 0:
        print("all right", flush=True)
    dist.destroy_process_group()
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
