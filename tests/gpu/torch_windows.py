"""Windows over tensors of PyTorch's expandable segments, which consist of several allocations that the driver maps side by side:
torch_windows.py LIBRARY_FOLDER RANKS

One process a GPU. Each rank registers tensors that cross borders of segments, calls AllReduce, AllGather and Broadcast within
them, and compares the results with arithmetic. Prints "all right" on rank 0 when nothing was wrong there.
"""

import ctypes
import os
import pathlib
import sys

from coordinator_ranks import failures, open_gpu, read_arguments, start, tell_failures

MIB = 1 << 20
SYMMETRIC = 1  # NCCL_WIN_COLL_SYMMETRIC
FLOAT32, SUM = 7, 0


class UniqueId(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_byte * 128)]


def check(library, result, call):
    if result != 0:
        library.ncclGetLastError.restype = ctypes.c_char_p
        raise RuntimeError(f"{call}: {result}: {library.ncclGetLastError(None).decode()}")


def segments_within(torch, tensor):
    """Returns of how many allocations of 20 MiB, as PyTorch makes them, the segment of this tensor consists."""
    for segment in torch.cuda.memory_snapshot():
        if segment["address"] <= tensor.data_ptr() < segment["address"] + segment["total_size"]:
            assert segment.get("is_expandable"), "PyTorch has not taken expandable segments"
            return segment["total_size"] / (20 * MIB)
    raise RuntimeError("PyTorch does not know the segment of its tensor")


def expect(what, tensor, wanted):
    wrong = int((tensor != wanted).sum())
    if wrong:
        failures.append(f"{what}: {wrong} of {tensor.numel()} elements are wrong, the first is {tensor[tensor != wanted][0].item()}")


def rank_main():
    import torch  # pylint: disable=import-outside-toplevel
    import torch.distributed as dist  # pylint: disable=import-outside-toplevel

    device = open_gpu(torch)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    library = ctypes.CDLL(os.environ["TUTTI_LIBRARY"])
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), ranks, rank == 0)
    unique_id = UniqueId()
    if rank == 0:
        check(library, library.ncclGetUniqueId(ctypes.byref(unique_id)), "ncclGetUniqueId")
        store.set("id", bytes(unique_id).hex())
    unique_id = UniqueId.from_buffer_copy(bytes.fromhex(store.get("id").decode()))
    comm = ctypes.c_void_p()
    check(library, library.ncclCommInitRank(ctypes.byref(comm), ranks, unique_id, rank), "ncclCommInitRank")
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)

    count = 12 * MIB  # 48 MiB: more than two segments' worth of 20 MiB
    source, out = torch.empty(count, device=device), torch.empty(count, device=device)
    if rank == 0:
        print(f"tensors of {count * 4 // MIB} MiB in a segment of {segments_within(torch, out):.1f} allocations", flush=True)
    windows = []
    for tensor in (source, out):
        window = ctypes.c_void_p()
        check(library, library.ncclCommWindowRegister(comm, ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(count * 4),
                                                      ctypes.byref(window), SYMMETRIC), "ncclCommWindowRegister")
        windows.append(window)
    numbers = torch.arange(count, device=device) % 1000
    pointer = lambda tensor, first=0: ctypes.c_void_p(tensor.data_ptr() + 4 * first)
    size = ctypes.c_size_t
    # Whole, and pieces that cross the borders of allocations at 20 and 40 MiB by a few elements.
    for first, n in [(0, count), (5 * MIB - 4, 1024), (10 * MIB - 1000, 5000), (0, 1000), (count - 4096, 4096)]:
        source.copy_(numbers + rank)
        out.fill_(-1)
        check(library, library.ncclAllReduce(pointer(source, first), pointer(out, first), size(n), FLOAT32, SUM, comm, stream), "ncclAllReduce")
        torch.cuda.synchronize()
        expect(f"AllReduce of {n} elements from {first} on", out[first:first + n],
               numbers[first:first + n] * ranks + ranks * (ranks - 1) // 2)
        out.fill_(-1)
        check(library, library.ncclBroadcast(pointer(source, first), pointer(out, first), size(n), FLOAT32, ranks - 1, comm, stream),
              "ncclBroadcast")
        torch.cuda.synchronize()
        expect(f"Broadcast of {n} elements from {first} on", out[first:first + n], numbers[first:first + n] + ranks - 1)
    part = count // ranks
    check(library, library.ncclAllGather(pointer(source), pointer(out), size(part), FLOAT32, comm, stream), "ncclAllGather")
    torch.cuda.synchronize()
    expect("AllGather", out, (numbers[:part].repeat(ranks) + torch.arange(ranks, device=device).repeat_interleave(part)))
    for window in windows:
        check(library, library.ncclCommWindowDeregister(comm, window), "ncclCommWindowDeregister")
    check(library, library.ncclCommDestroy(comm), "ncclCommDestroy")
    tell_failures()
    if rank == 0 and not failures:
        print("all right")
    sys.exit(1 if failures else 0)


def main():
    (ranks,), _ = read_arguments(2)
    return max(map(abs, start(pathlib.Path(__file__).resolve(), ranks, 29514, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})))


if __name__ == "__main__":
    if sys.argv[1] == "rank":
        rank_main()
    else:
        sys.exit(main())
