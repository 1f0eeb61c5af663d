"""What coordinator_torch.py and coordinator_levels.py share: a job of ranks that are processes, and what a rank does with the parts of its test."""

import os
import pathlib
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
failures = []  # of this rank
# As torchrun has it: PyTorch would start as many threads as there are processors for each rank, and these wait for one another.
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def read_arguments(least_gpus):
    """Returns the numbers behind the library's folder, and whether there is --nccl. Ends with 77 and a word where PyTorch sees fewer GPUs."""
    try:
        import torch
    except ImportError:
        print("skipped: there is no PyTorch")
        sys.exit(77)
    if torch.cuda.device_count() < least_gpus:
        print(f"skipped: PyTorch sees {torch.cuda.device_count()} GPUs, and {least_gpus} are needed")
        sys.exit(77)
    os.environ["TUTTI_LIBRARY"] = os.path.join(os.path.abspath(sys.argv[1]), "libtutti.so.0")
    return [int(argument) for argument in sys.argv[2:] if argument != "--nccl"], "--nccl" in sys.argv[2:]


def start(script, ranks, port, extra, own=lambda rank: {}):
    """Runs a job of `script rank`, with more variables for all and own(rank) for each. Returns what its ranks ended with."""
    environment = dict(ONE_THREAD, **os.environ)
    environment.update(WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), **extra)
    started = [subprocess.Popen([sys.executable, str(script), "rank"], env=dict(environment, RANK=str(rank), **own(rank)))
               for rank in range(ranks)]
    return [process.wait() for process in started]


def open_gpu(torch):
    """Makes this rank's GPU the current one. Ranks may share GPUs."""
    device = torch.device("cuda", int(os.environ["RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def work(parts, hvd, torch, device):
    for part in parts:
        began = time.perf_counter()
        part(hvd, torch, device)
        if hvd.rank() == 0:
            print(f"{part.__name__}: {time.perf_counter() - began:.1f} s", flush=True)


def tell_failures():
    for failure in failures[:20]:
        print(f"rank {os.environ['RANK']}: {failure}", flush=True)


def leave():
    """Ends this rank, without what the interpreter does at its end: its GPU may be broken by then."""
    tell_failures()
    sys.stdout.flush()
    os._exit(1 if failures else 0)
