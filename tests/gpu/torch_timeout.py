"""PyTorch gives up a collective for which a rank does not come: torch_timeout.py LIBRARY_FOLDER

The watchdog of PyTorch aborts the communicator of the rank that waits and ends its process; that must happen soon after the
time-out of 5 s. Prints "all right" when it has.
"""

import datetime
import os
import subprocess
import sys
import time


def rank_main():
    import torch  # pylint: disable=import-outside-toplevel
    import torch.distributed as dist  # pylint: disable=import-outside-toplevel

    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=5), device_id=torch.device("cuda", rank))
    x = torch.ones(1_000_000, device="cuda")
    dist.all_reduce(x)
    torch.cuda.synchronize()
    if rank == 1:
        print("rank 1 stays away", flush=True)
        time.sleep(60)
    dist.all_reduce(x)
    torch.cuda.synchronize()


def main():
    environment = dict(os.environ, WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="29512",
                       TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC="1000",  # four times that pass before PyTorch gives up
                       LD_PRELOAD=os.path.join(sys.argv[1], "libnccl.so.2"))
    ranks = [subprocess.Popen([sys.executable, __file__, "rank"], env=dict(environment, RANK=str(rank)))
             for rank in range(2)]
    begin = time.monotonic()
    try:
        code = ranks[0].wait(50)
    except subprocess.TimeoutExpired:
        code = None
    took = time.monotonic() - begin
    for rank in ranks:
        rank.kill()
    if not code:
        print(f"rank 0 ended with {code} after {took:.0f} s, and should have been given up")
        return 1
    print(f"rank 0 was given up after {took:.0f} s in all")
    print("all right")
    return 0


if __name__ == "__main__":
    if sys.argv[1] == "rank":
        rank_main()
    else:
        sys.exit(main())
