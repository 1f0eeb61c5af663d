#!/usr/bin/env python3
"""torch.distributed on Tutti and on Gloo, by turns in one run: ratios of medians.

    tutti run -n 2 python3 bench/torch_backend.py

A step of gradients is what DistributedDataParallel moves for a ResNet-50-like model: 160 tensors, about 100 MB, in
buckets of 25 MB, begun one after another and then waited for.
"""

import os
import platform
import statistics
import subprocess
import time

import torch
import torch.distributed as dist

import tutti.torch.distributed  # noqa: F401, registers the backend

SIZES = (4, 1024, 64 * 1024, 1 << 20, 16 << 20)  # bytes
ROUNDS = 9
BUCKET_BYTES = 25 << 20


def gradients():
    """160 tensors of about 100 MB: many small ones (norms, biases), few large."""
    counts = [64 * (1 + i % 8) for i in range(106)] + [460_000] * 50 + [512 * 1000] * 4
    return [torch.ones(count) for count in counts]


def buckets(tensors):
    """Flat buckets of neighbours, last tensors first, as DDP makes them."""
    made, size = [[]], 0
    for tensor in reversed(tensors):
        if size > BUCKET_BYTES:
            made.append([])
            size = 0
        made[-1].append(tensor)
        size += tensor.numel() * 4
    return [torch.cat(bucket) for bucket in made]


def step(group, flats):
    works = [dist.all_reduce(flat, group=group, async_op=True) for flat in flats]
    for work in works:
        work.wait()


def measure(groups, action):
    """Medians of the elapsed seconds and of this rank's CPU seconds, by name; the groups take turns, and all ranks
    begin together. CPU time is what other work on the machine disturbs least."""
    times = {name: [] for name in groups}
    for turn in range(ROUNDS + 2):
        for name, group in groups.items():
            dist.barrier(group=group)
            began, cpu_began = time.perf_counter(), time.process_time()
            action(group)
            if turn >= 2:
                times[name].append((time.perf_counter() - began, time.process_time() - cpu_began))
    return {name: tuple(statistics.median(column) for column in zip(*values)) for name, values in times.items()}


def many(tensor, count):
    def action(group):
        for _ in range(count):
            dist.all_reduce(tensor, group=group)
    return action


def report(what, times):
    if dist.get_rank() == 0:
        elapsed, cpu = zip(times["tutti"], times["gloo"])
        print(f"| {what} | {dist.get_world_size()} | {elapsed[0] * 1e6:.0f} us | {elapsed[1] * 1e6:.0f} us | "
              f"{elapsed[1] / elapsed[0]:.2f} | {cpu[1] / cpu[0]:.2f} |", flush=True)


def model_step(group):
    torch.manual_seed(1)
    model = torch.nn.Sequential(*[layer for _ in range(12) for layer in
                                  (torch.nn.Linear(1024, 1024), torch.nn.ReLU())])
    parallel = torch.nn.parallel.DistributedDataParallel(model, process_group=group)
    data = torch.randn(4, 1024)

    def action():
        parallel.zero_grad()
        parallel(data).sum().backward()
    return action


def main():
    torch.set_num_threads(1)
    dist.init_process_group("tutti")
    groups = {"tutti": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    if dist.get_rank() == 0:
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True,
                                cwd=os.path.dirname(__file__)).stdout.strip()
        print(f"PyTorch {torch.__version__}, Python {platform.python_version()}, {os.cpu_count()} cores, load "
              f"{os.getloadavg()[0]:.1f}, commit {commit}\n")
        print("| what | ranks | tutti | Gloo | Gloo / tutti | CPU time, Gloo / tutti |\n|---|---|---|---|---|---|",
              flush=True)
    for size in SIZES:
        count = max(1, min(100, (4 << 20) // size))
        times = measure(groups, many(torch.ones(size // 4), count))
        report(f"all_reduce of {size} B", {name: [t / count for t in both] for name, both in times.items()})
    flats = buckets(gradients())
    report(f"a step of gradients, {sum(f.numel() for f in flats) * 4 / 1e6:.0f} MB in {len(flats)} buckets",
           measure(groups, lambda group: step(group, flats)))
    steps = {group: model_step(group) for group in groups.values()}
    report("forward and backward of DDP, 50 MB of weights", measure(groups, lambda group: steps[group]()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
