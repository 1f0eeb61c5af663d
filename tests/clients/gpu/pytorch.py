"""One rank of a PyTorch job on GPUs: collectives, then a network trained by DDP, by FSDP and by FSDP2 to the same losses.

Started with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, one process a GPU. An argument names the backend ("nccl").
"""

import datetime
import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = torch.device("cuda", rank % torch.cuda.device_count())


def expect(what, got, wanted):
    if not torch.equal(got.cpu(), wanted.cpu()):
        raise AssertionError(f"rank {rank}: {what}: {got.flatten()[:4].tolist()}, not {wanted.flatten()[:4].tolist()}")


def collectives(group=None, me=rank, n=size):
    for count in (1, 5000, 3_000_000):
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            x = torch.full((count,), me + 1, dtype=dtype, device=device)
            dist.all_reduce(x, group=group)
            expect(f"all_reduce of {dtype}", x, torch.full((count,), n * (n + 1) // 2, dtype=dtype))
        mine = torch.arange(count, device=device) + me * count
        everyone = torch.empty(n * count, dtype=mine.dtype, device=device)
        dist.all_gather_into_tensor(everyone, mine, group=group)
        expect("all_gather", everyone, torch.arange(n * count))
        part = torch.empty_like(mine)
        dist.reduce_scatter_tensor(part, everyone, group=group)
        expect("reduce_scatter", part, mine * n)
        turned = torch.empty_like(everyone)
        dist.all_to_all_single(turned, everyone + me, group=group)
        expect("all_to_all", turned, torch.cat([mine.cpu() + peer for peer in range(n)]))
        x = torch.full((count,), float(me), device=device)
        dist.broadcast(x, group=group, group_src=n - 1)
        expect("broadcast", x, torch.full((count,), n - 1.0))


def messages():
    out, into = torch.full((70_000,), float(rank), device=device), torch.empty(70_000, device=device)
    both = [dist.P2POp(dist.isend, out, (rank + 1) % size), dist.P2POp(dist.irecv, into, (rank - 1) % size)]
    for work in dist.batch_isend_irecv(both):
        work.wait()
    expect("send and receive", into, torch.full((70_000,), float((rank - 1) % size)))


def train(wrap):
    """Returns the mean losses of a small training."""
    torch.manual_seed(1)
    model = wrap(torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.ReLU(),
                                     torch.nn.Linear(512, 10)).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    generator = torch.Generator().manual_seed(100 + rank)
    losses = []
    for _ in range(20):
        x = torch.randn(128, 64, generator=generator)
        loss = torch.nn.functional.cross_entropy(model(x.to(device)), x[:, :10].argmax(1).to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / size)
    return losses


def shard(model):
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer)
    return fully_shard(model)


def main():
    torch.cuda.set_device(device)
    backend = sys.argv[1] if len(sys.argv) > 1 else "nccl"
    dist.init_process_group(backend, timeout=datetime.timedelta(seconds=60), device_id=device)
    collectives()
    messages()
    halves = [dist.new_group([r for r in range(size) if r % 2 == half]) for half in range(min(size, 2))]
    mine = halves[rank % 2] if size > 1 else halves[0]
    collectives(mine, dist.get_rank(mine), dist.get_world_size(mine))
    ddp = train(lambda model: DistributedDataParallel(model, device_ids=[device.index]))
    if not ddp[-1] < 0.9 * ddp[0]:
        raise AssertionError(f"the training does not learn: {ddp[0]} to {ddp[-1]}")
    for name, wrap in (("FSDP", lambda model: FullyShardedDataParallel(model, device_id=device)), ("FSDP2", shard)):
        losses = train(wrap)
        if max(abs(a - b) for a, b in zip(ddp, losses)) > 2e-3:
            raise AssertionError(f"{name} trains otherwise than DDP: {losses[-1]}, not {ddp[-1]}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
