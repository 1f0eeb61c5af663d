"""PyTorch gives up a collective for which a rank does not come: torch_timeout.py LIBRARY_FOLDER

The watchdog of PyTorch aborts the communicator of the rank that waits and ends its process; that must happen after the time-out of
5 s that begins when rank 1 has said that it stays away, not before, and soon; and by the watchdog, as its text says. Prints "all right"
when it has. (PyTorch may end rank 1 as well, which hears of it.)
"""

import datetime
import os
import subprocess
import sys
import tempfile
import time

TIMEOUT_S = 5


def rank_main():
    import torch  # pylint: disable=import-outside-toplevel
    import torch.distributed as dist  # pylint: disable=import-outside-toplevel

    rank = int(os.environ["RANK"])
    device = torch.device("cuda", rank % torch.cuda.device_count())  # Ranks may share GPUs.
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=TIMEOUT_S), device_id=device)
    x = torch.ones(1_000_000, device="cuda")
    dist.all_reduce(x)
    torch.cuda.synchronize()
    if rank == 1:
        print("rank 1 stays away", flush=True)
        time.sleep(60)
    dist.all_reduce(x)
    torch.cuda.synchronize()


def judge(code, text, stayed_away, took):
    """What is wrong about the end of rank 0, or nothing."""
    if stayed_away is None:
        return "rank 1 never said that it stays away, so that the job had failed before"
    if code is None:
        return f"rank 0 has not been given up after {took:.0f} s"
    if code == 0:
        return f"rank 0 ended well after {took:.0f} s, and should have been given up"
    if "Watchdog caught collective operation timeout" not in text:
        return f"rank 0 ended with {code}, but not by the watchdog of PyTorch"
    if took < TIMEOUT_S - 0.5:
        return f"rank 0 was given up after {took:.1f} s, before the time-out of {TIMEOUT_S} s"
    return None


def main():
    environment = dict(os.environ, WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="29512",
                       TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC="1000",  # four times that pass before PyTorch gives up
                       LD_PRELOAD=os.path.join(os.path.abspath(sys.argv[1]), "libnccl.so.2"))
    logs = [tempfile.TemporaryFile() for _ in range(2)]
    ranks = [subprocess.Popen([sys.executable, __file__, "rank"], env=dict(environment, RANK=str(rank)), stdout=log,
                              stderr=subprocess.STDOUT) for rank, log in enumerate(logs)]

    def text_of(rank):
        return os.pread(logs[rank].fileno(), 1 << 20, 0).decode(errors="replace")

    begin, stayed_away = time.monotonic(), None
    while ranks[0].poll() is None and time.monotonic() < (stayed_away or begin) + 50:
        if stayed_away is None and "rank 1 stays away" in text_of(1):
            stayed_away = time.monotonic()
        time.sleep(0.1)
    took = time.monotonic() - (stayed_away or begin)
    problem = judge(ranks[0].poll(), text_of(0), stayed_away, took)
    for rank in ranks:
        rank.kill()
        rank.wait()
    if problem is not None:
        print(problem)
        print("rank 0 said:", text_of(0)[-3000:])
        print("rank 1 said:", text_of(1)[-1000:])
        return 1
    print(f"rank 0 was given up {took:.1f} s after rank 1 stayed away")
    print("all right")
    return 0


if __name__ == "__main__":
    if sys.argv[1] == "rank":
        rank_main()
    else:
        sys.exit(main())
