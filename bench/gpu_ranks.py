"""What benches of a library with NCCL's interface share: ranks that are processes of this machine, each with a GPU."""

import argparse
import ctypes
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path


class UniqueId(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]


class Library:
    """A library with NCCL's interface: calls that fail end the program with the library's sentence."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        self._library.ncclGetLastError.restype = ctypes.c_char_p

    def __getattr__(self, name: str):
        function = getattr(self._library, name)

        def call(*arguments) -> None:
            if function(*arguments) != 0:
                raise SystemExit(f"{name}: {self._library.ncclGetLastError(None).decode()}")

        return call


def join(library: Library, rank: int, num_ranks: int, folder: Path) -> ctypes.c_void_p:
    """Makes the communicator of all ranks, which meet by a file in the folder."""
    path = folder / "id"
    if rank == 0:
        unique_id = UniqueId()
        library.ncclGetUniqueId(ctypes.byref(unique_id))
        (folder / "new").write_bytes(bytes(unique_id))
        (folder / "new").rename(path)
    while not path.exists():
        time.sleep(0.01)
    comm = ctypes.c_void_p()
    library.ncclCommInitRank(ctypes.byref(comm), num_ranks, UniqueId.from_buffer_copy(path.read_bytes()), rank)
    return comm


def parse(description: str, add_arguments=lambda parser: None) -> argparse.Namespace:
    """Returns the options of the program. In the process of a rank they have its number and the folder."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--hosts", type=int, default=1)
    add_arguments(parser)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def run_ranks(options: argparse.Namespace) -> int:
    """Runs this program once for each rank, and returns the greatest of their exit statuses.

    The ranks act as if they were on so many hosts (NCCL_HOSTID), whose data passes loopback sockets.
    """
    with tempfile.TemporaryDirectory() as folder:
        ranks = []
        for rank in range(options.ranks):
            own = dict(os.environ)
            if options.hosts > 1:
                own |= {"NCCL_SOCKET_IFNAME": "lo", "NCCL_HOSTID": f"host{rank * options.hosts // options.ranks}"}
            ranks.append(subprocess.Popen([sys.executable, *sys.argv, "--rank", str(rank), "--folder", folder], env=own))
        return max(rank.wait() for rank in ranks)


def run_bench(description: str, run_rank, add_arguments=lambda parser: None) -> int:
    """The main function of a bench: in the process of a rank it runs `run_rank` with the options, else all ranks."""
    options = parse(description, add_arguments)
    if options.rank is not None:
        return run_rank(options)
    own = "".join(f", {name} {value}" for name, value in vars(options).items()
                  if name not in ("library", "ranks", "hosts", "rank", "folder"))
    print(f"{options.library}: {options.ranks} ranks, {options.hosts} hosts{own}", flush=True)
    return run_ranks(options)
