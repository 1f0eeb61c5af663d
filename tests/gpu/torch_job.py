"""Runs torch_ranks.py, one process a GPU, on this library in NCCL's place.

torch_job.py LIBRARY_FOLDER|nccl RANKS [HOSTS]      HOSTS: the ranks take themselves to be on so many hosts
"""

import os
import pathlib
import subprocess
import sys


def main():
    library, ranks = sys.argv[1], int(sys.argv[2])
    hosts = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    script = pathlib.Path(__file__).with_name("torch_ranks.py")
    environment = dict(os.environ, WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")
    if library != "nccl":
        environment["LD_PRELOAD"] = os.path.join(library, "libnccl.so.2")
    started = []
    for rank in range(ranks):
        own = dict(environment, RANK=str(rank))
        if hosts > 0:
            own["NCCL_HOSTID"] = f"host{rank * hosts // ranks}"
        started.append(subprocess.Popen([sys.executable, str(script)], env=own))
    return max(abs(process.wait()) for process in started)


if __name__ == "__main__":
    sys.exit(main())
