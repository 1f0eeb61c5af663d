#!/usr/bin/env python3
"""The communication of a data-parallel training step: the gradients of ResNet-50 (161 tensors, 102 MB) averaged
over the ranks of this machine, by Tutti's coordinator and by PyTorch's Gloo backend, step by step in turns.

  bench/ddp_step.py [--ranks 2] [--steps 20]

Four ways: Tutti, each tensor asked for as its gradient would become ready; Tutti, the same bytes as one tensor; Gloo, each
tensor an asynchronous allreduce; Gloo as DistributedDataParallel uses it, in buckets of 25 MB that are filled and emptied by copies. Needs PyTorch, and
TUTTI_LIBRARY with the path of libtutti.so where it is not installed.
"""

import argparse
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import time

BUCKET_BYTES = 25 << 20
ONE_TENSOR = "tutti, one tensor"


def resnet50_shapes():
    shapes = [(64, 3, 7, 7), (64,), (64,)]
    channels = 64
    for blocks, width in ((3, 64), (4, 128), (6, 256), (3, 512)):
        for block in range(blocks):
            if block == 0:
                shapes += [(4 * width, channels, 1, 1), (4 * width,), (4 * width,)]
            for shape in ((width, channels, 1, 1), (width, width, 3, 3), (4 * width, width, 1, 1)):
                shapes += [shape, (shape[0],), (shape[0],)]
            channels = 4 * width
    return shapes + [(1000, 2048), (1000,)]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def launch(ranks, arguments):
    port = free_port()
    processes = []
    for rank in range(ranks):
        environment = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank),
                           LOCAL_WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                           OMP_NUM_THREADS="1", GLOO_PORT=str(free_port()))
        if rank > 0:
            environment["GLOO_PORT"] = gloo_port
        gloo_port = environment["GLOO_PORT"]
        processes.append(subprocess.Popen([sys.executable, __file__] + arguments, env=environment))
    sys.exit(max(process.wait() for process in processes))


def buckets_of(gradients):
    buckets, held = [[]], 0
    for gradient in gradients:
        size = gradient.numel() * gradient.element_size()
        if held + size > BUCKET_BYTES and buckets[-1]:
            buckets.append([])
            held = 0
        buckets[-1].append(gradient)
        held += size
    return buckets


def ways_of(gradients, torch, dist, hvd):
    """The ways to average the gradients in place, by name. "one tensor" averages as many bytes elsewhere."""
    ranks = hvd.size()
    buckets = buckets_of(gradients)
    flat = [torch.empty(sum(g.numel() for g in bucket)) for bucket in buckets]
    whole = torch.full((sum(g.numel() for g in gradients),), 1.0)

    def by_tutti():
        handles = [hvd.allreduce_async_(gradient, name=f"gradient.{i}", op=hvd.Average)
                   for i, gradient in enumerate(gradients)]
        for handle in handles:
            hvd.synchronize(handle)

    def by_tutti_as_one():
        hvd.allreduce_(whole, name="whole", op=hvd.Average)

    def by_gloo():
        works = [dist.all_reduce(gradient, async_op=True) for gradient in gradients]
        for work, gradient in zip(works, gradients):
            work.wait()
            gradient.div_(ranks)

    def by_gloo_in_buckets():
        works = []
        for bucket, memory in zip(buckets, flat):
            at = 0
            for gradient in bucket:
                memory[at:at + gradient.numel()].copy_(gradient.view(-1))
                at += gradient.numel()
            memory.div_(ranks)
            works.append(dist.all_reduce(memory, async_op=True))
        for work, bucket, memory in zip(works, buckets, flat):
            work.wait()
            at = 0
            for gradient in bucket:
                gradient.view(-1).copy_(memory[at:at + gradient.numel()])
                at += gradient.numel()

    return {"tutti": by_tutti, ONE_TENSOR: by_tutti_as_one, "gloo": by_gloo, "gloo, in buckets": by_gloo_in_buckets}


def measure(ways, gradients, steps, rank, ranks, barrier):
    """The times of each way in seconds, one a step; the ways take turns, and their results are checked."""
    times = {name: [] for name in ways}
    for step in range(steps + 2):
        for name, way in ways.items():
            for gradient in gradients:
                gradient.fill_(rank + 1)
            barrier()
            begin = time.perf_counter()
            way()
            elapsed = time.perf_counter() - begin
            if step >= 2:
                times[name].append(elapsed)
            if name == ONE_TENSOR:
                continue
            worst = max((gradient - (ranks + 1) / 2).abs().max().item() for gradient in gradients)
            assert worst < 1e-6, f"{name} is wrong by {worst}"
    return times


def report(times):
    for name, values in times.items():
        fastest = sorted(values)[len(values) // 10] / sorted(times["tutti"])[len(values) // 10]
        print(f"  {name:18} median {statistics.median(values) * 1e3:7.1f} ms   ratio "
              f"{statistics.median(values) / statistics.median(times['tutti']):.2f} "
              f"(fastest tenth {fastest:.2f})")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    if "GLOO_PORT" not in os.environ:
        launch(options.ranks, sys.argv[1:])

    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
    import torch
    import torch.distributed as dist

    import tutti.torch as hvd

    torch.set_num_threads(1)
    hvd.init()
    rank, ranks = hvd.rank(), hvd.size()
    dist.init_process_group("gloo", rank=rank, world_size=ranks,
                            init_method=f"tcp://127.0.0.1:{os.environ['GLOO_PORT']}")
    # Gradients become ready from the last layer to the first.
    gradients = [torch.full(shape, float(rank + 1)) for shape in reversed(resnet50_shapes())]
    times = measure(ways_of(gradients, torch, dist, hvd), gradients, options.steps, rank, ranks, dist.barrier)
    if rank == 0:
        megabytes = sum(g.numel() * 4 for g in gradients) / 1e6
        print(f"{len(gradients)} tensors, {megabytes:.0f} MB, {ranks} ranks, PyTorch {torch.__version__}, "
              f"{options.steps} steps; ratios to tutti")
        report(times)
    dist.barrier()
    hvd.shutdown()


if __name__ == "__main__":
    main()
