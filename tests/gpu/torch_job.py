"""Runs torch_ranks.py, one process a GPU, on this library in NCCL's place.

torch_job.py [--compare] [--by-path] LIBRARY_FOLDER|nccl RANKS [HOSTS]
  --compare   runs NVIDIA's library as well, where PyTorch has it, and fails where the losses of DDP differ
  --by-path   LD_LIBRARY_PATH in place of LD_PRELOAD; skipped (77) by a PyTorch that has the path to its own copy built in
  HOSTS       the ranks take themselves to be on so many hosts
"""

import argparse
import os
import pathlib
import subprocess
import sys

from coordinator_ranks import ONE_THREAD

# What the last printed digit may differ by where two ranks add (in any order the same), and what more may, whose order of
# adding is the library's.
TWO_RANKS, MORE_RANKS = 1.5e-6, 1e-4


def without_tutti():
    """The environment less what would put this library in NCCL's place."""
    environment = dict(ONE_THREAD, **os.environ)
    environment.pop("LD_PRELOAD", None)
    folders = environment.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    environment["LD_LIBRARY_PATH"] = os.pathsep.join(f for f in folders if f and not os.path.exists(os.path.join(f, "libtutti.so.0")))
    return environment


def run(library, ranks, hosts, by_path=False):
    """The exit status, and what all ranks printed."""
    script = pathlib.Path(__file__).with_name("torch_ranks.py")
    environment = without_tutti()
    environment.update(WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT="29511", EXPECT_LIBRARY="nccl")
    if library is not None:  # also for the library that libnccl.so.2 needs
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, [library, environment["LD_LIBRARY_PATH"]]))
        environment["EXPECT_LIBRARY"] = "tutti or skip" if by_path else "tutti"
        if not by_path:
            environment["LD_PRELOAD"] = os.path.join(library, "libnccl.so.2")
    started = []
    for rank in range(ranks):
        own = dict(environment, RANK=str(rank))
        if hosts > 0:
            own["NCCL_HOSTID"] = f"host{rank * hosts // ranks}"
        started.append(subprocess.Popen([sys.executable, str(script)], env=own, stdout=subprocess.PIPE, text=True))
    texts = [process.communicate()[0] for process in started]
    text = "".join(texts)
    sys.stdout.write(text)
    sys.stdout.flush()
    return max(abs(process.returncode) for process in started), text


def losses(text):
    for line in text.splitlines():
        if line.startswith("DDP losses "):
            return [float(word) for word in line.split()[2:]]
    return []


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--by-path", action="store_true")
    parser.add_argument("library")
    parser.add_argument("ranks", type=int)
    parser.add_argument("hosts", type=int, nargs="?", default=0)
    options = parser.parse_args()
    library = None if options.library == "nccl" else os.path.abspath(options.library)
    status, text = run(library, options.ranks, options.hosts, options.by_path)
    if status != 0 or not options.compare:
        return status
    if subprocess.run([sys.executable, "-c", "import torch"], env=without_tutti(), check=False).returncode != 0:
        print("nothing to compare with: this PyTorch has no library of NVIDIA's")
        return 0
    print("the same on NVIDIA's library:", flush=True)
    peer_status, peer_text = run(None, options.ranks, options.hosts)
    ours, theirs = losses(text), losses(peer_text)
    print("losses of DDP:", ours, "and on NVIDIA's library:", theirs)
    if peer_status != 0 or not theirs:
        print(f"the job on NVIDIA's library ended with {peer_status}")
        return 1
    bound = TWO_RANKS if options.ranks == 2 else MORE_RANKS
    if len(ours) != len(theirs) or any(abs(a - b) > bound for a, b in zip(ours, theirs)):
        print(f"the losses differ by more than {bound}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
