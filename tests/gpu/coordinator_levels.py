"""Operations of the coordinator on GPUs in one level and in two: tutti.torch, one process a GPU, as one host and as several by NCCL_HOSTID.

Usage: coordinator_levels.py LIBRARY_FOLDER [RANKS] [HOSTS] [--nccl]      LIBRARY_FOLDER has libtutti.so.0
Checks what coordinator_torch.py checks, Adasum by its formula, and the rows of the timeline. With --nccl the tensors go through
NVIDIA's NCCL (HOROVOD_GPU_OPERATIONS=NCCL) and not through Tutti's communicators. Ranks may share GPUs, but not with --nccl.
With ONLY=adasum in the environment only the parts whose names begin so are run.
Exits with 77 and a word where there are no GPUs, or no PyTorch.
"""

import collections
import json
import os
import pathlib
import sys
import tempfile
import time

import coordinator_ranks as job
import coordinator_torch as single

HERE = pathlib.Path(__file__).resolve()
HOSTS = int(os.environ.get("HOSTS", "1"))
IN_LEVELS = os.environ.get("HOROVOD_HIERARCHICAL_ALLREDUCE") == "1" and 1 < HOSTS < int(os.environ.get("WORLD_SIZE", "1"))
COUNTS = (1, 3, 1000, 70_001, 1_000_001)  # some that the ranks of a host cannot share evenly


def values(torch, rank, count, dtype):
    """Small whole numbers, of which every order of adding makes the same sum, also in 16 bits."""
    return ((torch.arange(count, dtype=torch.int64) * 7 + 3 * rank) % 11 - 5).to(dtype)


def levels(hvd, torch, device):
    rank, n = hvd.rank(), hvd.size()
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8):
        for count in COUNTS:
            all_ranks = [values(torch, r, count, dtype) for r in range(n)]
            mine = all_ranks[rank].to(device)
            total = torch.stack(all_ranks).sum(0, dtype=dtype)
            single.expect(f"sum of {count} {dtype}", hvd.allreduce(mine, op=hvd.Sum, name="sum"), total)
            single.expect(f"max of {count} {dtype}", hvd.allreduce(mine, op=hvd.Max, name="max"), torch.stack(all_ranks).max(0).values)
            if dtype.is_floating_point:
                single.expect(f"average of {count} {dtype}", hvd.allreduce(mine, op=hvd.Average, name="average"),
                              (total.double() / n).to(dtype), 1e-2 if dtype.itemsize == 2 else 1e-6)
            rows = [all_ranks[r][:max(1, count // (r + 1))] for r in range(n)]
            single.expect(f"rows of {count} {dtype}", hvd.allgather(rows[rank].to(device), name="rows"), torch.cat(rows))
    many = [values(torch, rank, 500 + 3 * i, torch.float32).to(device) for i in range(100)]
    summed = hvd.grouped_allreduce(many, op=hvd.Sum, name="many")
    for i, got in enumerate(summed):
        single.expect("fused", got, sum(values(torch, r, 500 + 3 * i, torch.float32) for r in range(n)))


def combine(a, b):
    """Adasum of two vectors (arXiv:2006.02924)."""
    dot = a.dot(b)
    return a * (1 - dot / (2 * a.dot(a))) + b * (1 - dot / (2 * b.dot(b)))


def adasum(hvd, torch, device):
    """Of all ranks, by pairs; in two levels of the averages of hosts. Tensors in the host's memory give the same bits, as long as there
    is only one order in which a host can add."""
    n, rank = hvd.size(), hvd.rank()
    for dtype, tolerance in ((torch.float16, 2e-3), (torch.bfloat16, 2e-2), (torch.float32, 1e-5), (torch.float64, 1e-9)):
        vectors, wanted = [], []
        for count in (1, 1001, 300_000, 5, 2_000_003):
            generator = torch.Generator().manual_seed(count)
            vectors.append((torch.rand(n, count, generator=generator, dtype=torch.float64) + 0.5).to(dtype))
            parts = list(vectors[-1].double())
            if IN_LEVELS:
                parts = [sum(parts[h * n // HOSTS:(h + 1) * n // HOSTS]) / (n // HOSTS) for h in range(HOSTS)]
            core = 1 << (len(parts).bit_length() - 1)
            parts = [combine(parts[i], parts[i + core]) if i + core < len(parts) else parts[i] for i in range(core)]
            while len(parts) > 1:
                parts = [combine(*parts[i:i + 2]) for i in range(0, len(parts), 2)]
            wanted.append(parts[0].to(dtype))
        mine = [v[rank] for v in vectors]
        on_gpu = hvd.grouped_allreduce([v.to(device) for v in mine], op=hvd.Adasum, name="adasum")
        on_host = hvd.grouped_allreduce(mine, op=hvd.Adasum, name="host")
        for got, host, formula in zip(on_gpu, on_host, wanted):
            single.expect(f"Adasum of {len(formula)} {dtype}", got, formula, tolerance)
            if not IN_LEVELS or n // HOSTS <= 2:
                single.expect(f"Adasum of {len(formula)} {dtype} beside the host's", got, host)


def adasum_speed(hvd, torch, device):
    """30 gradients, 60 MB, combined on the GPUs and in the host's memory."""
    for place, times in ((device, 12), ("cpu", 3)):
        gradients = [torch.full((500_000,), 1.0 + hvd.rank(), device=place) for _ in range(30)]
        taken = []
        for _ in range(times):
            torch.cuda.synchronize()
            hvd.barrier()
            began = time.perf_counter()
            hvd.grouped_allreduce(gradients, op=hvd.Adasum, name="gradients")
            torch.cuda.synchronize()
            taken.append(time.perf_counter() - began)
        if hvd.rank() == 0:
            print(f"Adasum of 30 gradients, 60 MB, on {place}: {sorted(taken)[times // 2] * 1e3:.2f} ms (median of {times})", flush=True)


def traced(hvd, torch, device):
    """What the rows of the timeline must show: two tensors reduced together, of which one is made late."""
    a = torch.randn(8192, 8192, device=device)
    early = torch.ones(1000, device=device)
    # What is made or loaded when it is first used may wait for kernels that run.
    side = torch.cuda.Stream()
    torch.mm(a, a)
    torch.ones(2000, device=device) * 2
    with torch.cuda.stream(side):
        torch.empty_like(early)
    torch.cuda.synchronize()
    for _ in range(20):
        torch.mm(a, a)
    late = torch.ones(2000, device=device) * 2
    with torch.cuda.stream(side):
        first = hvd.allreduce_async(early, op=hvd.Sum, name="early")
    second = hvd.allreduce_async(late, op=hvd.Sum, name="late")
    for handle in (first, second):
        hvd.synchronize(handle)
    # A fused batch, so that there is a fusion buffer in any case.
    hvd.grouped_allreduce([early, late], op=hvd.Sum, name="pair")
    torch.cuda.synchronize()


def rows_of(path):
    """Returns the spans of each row: a list of [activity, microseconds or None], in the order in which they began."""
    events = json.loads(path.read_text(encoding="utf-8"))
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    rows, open_spans = collections.defaultdict(list), collections.defaultdict(list)
    for event in events:
        stack = open_spans[event["tid"]]
        if event["ph"] == "B":
            span = [event["name"], None]
            rows[names[event["tid"]]].append(span)
            stack.append((span, event["ts"]))
        elif event["ph"] == "E":
            span, began = stack.pop()
            span[1] = event["ts"] - began
    return rows


def unended(rows):
    return [row for row, spans in rows.items() if any(us is None for _, us in spans)]


def check_timeline(path, through_nccl):
    rows = rows_of(path)
    shown = collections.Counter(name for spans in rows.values() for name, _ in spans)

    def fail(sentence):
        single.failures.append(f"timeline: {sentence}")

    for name in ("INIT_NCCL", "INIT_FUSION_BUFFER", "MEMCPY_IN_FUSION_BUFFER", "MEMCPY_OUT_FUSION_BUFFER", "WAIT_FOR_DATA",
                 "WAIT_FOR_OTHER_TENSOR_DATA"):
        if not shown[name]:
            fail(f"{name} is missing; there are {dict(shown)}")
    mover = "hierarchical" if IN_LEVELS else "nccl" if through_nccl else "tutti"
    for row in ("allreduce.sum (GPU)", "allgather.rows (GPU)"):
        if mover not in [name for name, _ in rows.get(row, [])]:
            fail(f"{row} has {rows.get(row)}, and must have {mover}")
    # 22 TFLOP stand before it, which no GPU does in 5 ms.
    waits = [us for name, us in rows.get("allreduce.late (GPU)", []) if name == "WAIT_FOR_DATA"]
    if not waits or waits[0] is None or waits[0] < 5000:
        fail(f"the wait for what makes \"late\" is {waits} us")
    if unended(rows):
        fail(f"spans without an end: {unended(rows)[:5]}")


def run_rank():
    import torch

    import tutti.torch as hvd
    rank = int(os.environ["RANK"])
    device = job.open_gpu(torch)
    hvd.init()
    if hvd.cross_size() != HOSTS:
        single.failures.append(f"{hvd.cross_size()} hosts, and not {HOSTS}")
    timeline = pathlib.Path(os.environ["TIMELINES"], "timeline.json")
    hvd.start_timeline(str(timeline), mark_cycles=True)
    parts = (levels, adasum, adasum_speed, traced, single.reductions, single.movements, single.training)
    only = os.environ.get("ONLY")
    job.work([part for part in parts if only is None or part.__name__.startswith(only)], hvd, torch, device)
    own = timeline if rank == 0 else timeline.with_name(f"{timeline.name}.{rank}")
    until = time.monotonic() + 10
    while unended(rows_of(own)) and time.monotonic() < until:  # The GPU's rows are written a moment after the GPU was done.
        time.sleep(0.05)
    hvd.stop_timeline()
    if only is None:
        check_timeline(own, os.environ.get("HOROVOD_GPU_OPERATIONS") == "NCCL")
        single.speed(hvd, torch, device)
    hvd.shutdown()
    job.leave()


def start(ranks, hosts, port, extra):
    """Runs one job. Returns whether all of its ranks ended well."""
    def own(rank):
        host = f"host{rank * hosts // ranks}"
        return dict(NCCL_HOSTID=host, HOROVOD_HOSTNAME=host, NCCL_SOCKET_IFNAME="lo") if hosts > 1 else {}

    with tempfile.TemporaryDirectory() as folder:
        return not any(job.start(HERE, ranks, port, dict(extra, HOSTS=str(hosts), TIMELINES=folder), own))


def main():
    if sys.argv[1:] == ["rank"]:
        run_rank()
    numbers, with_nccl = job.read_arguments(1)
    ranks, hosts = (numbers + [4, 2][len(numbers):])[:2]
    both = {"HOROVOD_HIERARCHICAL_ALLREDUCE": "1", "HOROVOD_HIERARCHICAL_ALLGATHER": "1"}
    library = "NCCL" if with_nccl else "tutti"
    good, port = True, 29551
    for name, over, extra in (("one host", 1, {}), (f"{hosts} hosts, one level", hosts, {}), (f"{hosts} hosts, two levels", hosts, both)):
        began = time.perf_counter()
        well = start(ranks, over, port, dict(extra, HOROVOD_GPU_OPERATIONS=library))
        print(f"{'ok' if well else 'FAILED'}: {library}, {ranks} GPUs, {name} ({time.perf_counter() - began:.0f} s)", flush=True)
        good, port = good and well, port + 5
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
