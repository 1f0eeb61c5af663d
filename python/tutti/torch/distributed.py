# SPDX-License-Identifier: Apache-2.0
"""A backend of torch.distributed for tensors in host memory.

    import tutti.torch.distributed
    torch.distributed.init_process_group("tutti")

Everything built on torch.distributed (DistributedDataParallel and others) then runs on Tutti's
communicators. Tensors are contiguous. Collectives of a group run in the order in which they are
asked for, on a thread of the library, while Python goes on. Sends and receives between two ranks in
one direction and with one tag keep their order, too, and wait for nothing else.

Errors: ValueError for what is wrong in itself; a lost rank or what else the library reports is a
RuntimeError from wait(). Threads: as torch.distributed, one at a time for each group.
"""

from __future__ import annotations

import ctypes
import itertools
import queue
import threading
import time
import weakref
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import (AllgatherOptions, AllreduceOptions, BarrierOptions,
                                        BroadcastOptions, ReduceScatterOptions,
                                        _create_work_from_future)

from tutti import _library
from tutti.communicator import _BYTES, _NCCL_TYPES
from tutti.torch._adapter import ELEMENT_TYPES

Tensors = Sequence[torch.Tensor]
_UINT8 = 1
_SUM, _PRODUCT, _MAX, _MIN, _AVERAGE = range(5)  # ncclRedOp_t
_BOOL = 9  # tuttiElementType_t
# The time that a function on a stream may take to return when it has nothing left to do; a busy
# machine needs longer than 20 ms.
_RETURN_S = 2.0


def _check(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        raise ValueError(f"the tutti backend takes dense tensors in host memory, not "
                         f"{tensor.layout} on {tensor.device}")
    if not tensor.is_contiguous():
        raise ValueError("the tensor must be contiguous; use tensor.contiguous()")
    return tensor


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _reduction(tensor: torch.Tensor, op: Any) -> Tuple[int, int]:
    """Returns the library's numbers for a type and an operator."""
    kinds = {dist.ReduceOp.SUM: _SUM, dist.ReduceOp.PRODUCT: _PRODUCT, dist.ReduceOp.MAX: _MAX,
             dist.ReduceOp.MIN: _MIN, dist.ReduceOp.AVG: _AVERAGE, dist.ReduceOp.BAND: _MIN,
             dist.ReduceOp.BOR: _MAX}
    kind = next((number for known, number in kinds.items() if op == known), None)
    bitwise = op in (dist.ReduceOp.BAND, dist.ReduceOp.BOR)
    number = ELEMENT_TYPES.get(tensor.dtype, -1)
    if number == _BOOL:
        # Of bytes that are 0 or 1, "or" is the largest and "and" the smallest.
        kind = _MAX if kind == _SUM else _MIN if kind == _PRODUCT else kind
        return _UINT8, _MAX if kind is None else kind
    if kind is None or bitwise or number not in _NCCL_TYPES:
        raise ValueError(f"the tutti backend does not reduce {tensor.dtype} with {op}")
    return _NCCL_TYPES[number], kind


def _work(future: torch.futures.Future) -> Any:
    return _create_work_from_future(future)


def _done(value: Any) -> Any:
    future: torch.futures.Future = torch.futures.Future()
    future.set_result(value)
    return _work(future)


def _new_communicator(store: Any, key: str, rank: int, size: int) -> ctypes.c_void_p:
    """Makes a communicator. Blocks until all ranks have come. There is no limit until rank 0 has
    come, because messages may be asked for late."""
    library, unique_id = _library.load(), _library.UniqueId()
    if rank == 0:
        if library.ncclGetUniqueId(ctypes.byref(unique_id)) != _library.SUCCESS:
            raise RuntimeError(_library.nccl_error(None))
        store.set(key, bytes(unique_id).hex())
        store.add(key + "/there", 1)
    else:
        # A get that waits would keep other threads of this process from the store, and one of them
        # may be about to set what another rank waits for.
        pause_s = 0.001
        while store.add(key + "/there", 0) == 0:
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, 0.05)
        unique_id = _library.UniqueId.from_buffer_copy(bytes.fromhex(store.get(key).decode()))
    comm = ctypes.c_void_p()
    made = library.tuttiCommInitRankOn(ctypes.byref(comm), size, unique_id, rank, _library.HOST)
    if made != _library.SUCCESS:
        raise RuntimeError(_library.nccl_error(None))
    return comm


class _Lane:
    """A communicator with a stream on which its operations run one after another."""

    def __init__(self, comm: ctypes.c_void_p) -> None:
        self._library = _library.load()
        self._comm, self._stream = comm, ctypes.c_void_p()
        if self._library.tuttiStreamCreate(ctypes.byref(self._stream)) != _library.SUCCESS:
            raise RuntimeError(_library.nccl_error(None))
        self._pending: Dict[int, Tuple[torch.futures.Future, Any, Any]] = {}
        self._numbers = itertools.count(1)
        # It must outlive every operation, and refers to nothing that refers to this object.
        self._callback = _library.HOST_FUNCTION(
            _finisher(self._library, self._comm, self._pending))
        self._lock = threading.Lock()
        self.close = weakref.finalize(self, _end, self._library, self._comm, self._stream,
                                      self._callback, self._pending)

    def run(self, calls: Sequence[Tuple[Any, ...]], value: Any, keep: Any, wait: bool) -> Any:
        """Returns a Work for these calls, which run as one group; each is a function and its
        arguments without communicator and stream. `wait` says that the caller waits for it at
        once."""
        here = wait and not self._pending
        stream = ctypes.c_void_p() if here else self._stream
        with self._lock:
            self._ask(calls, stream)
            if here:
                return _done(value)
            future: torch.futures.Future = torch.futures.Future()
            number = next(self._numbers)
            self._pending[number] = (future, value, keep)
            self._library.tuttiStreamLaunchHostFunc(self._stream, self._callback, number)
        return _work(future)

    def _ask(self, calls: Sequence[Tuple[Any, ...]], stream: ctypes.c_void_p) -> None:
        grouped = len(calls) > 1
        result = self._library.ncclGroupStart() if grouped else _library.SUCCESS
        for function, *arguments in calls:
            if result == _library.SUCCESS:
                result = getattr(self._library, function)(*arguments, self._comm, stream)
        if grouped:
            result = self._library.ncclGroupEnd() or result
        if result != _library.SUCCESS:
            raise RuntimeError(_library.nccl_error(self._comm))


def _finisher(library: Any, comm: ctypes.c_void_p, pending: Dict[int, Any]
              ) -> Callable[[int], None]:
    def finish(number: int) -> None:
        future, value, _ = pending.pop(number)
        state = ctypes.c_int()
        library.ncclCommGetAsyncError(comm, ctypes.byref(state))
        if state.value in (_library.SUCCESS, _library.IN_PROGRESS):
            future.set_result(value)
        else:
            future.set_exception(RuntimeError(_library.nccl_error(comm)))
    return finish


def _end(library: Any, comm: ctypes.c_void_p, stream: ctypes.c_void_p, callback: Any,
         pending: Dict[int, Any]) -> None:
    """Ends it in good order where nothing is under way; else gives up what is waited for."""
    idle = library.tuttiStreamQuery(stream) == _library.SUCCESS
    # A thread that waited for the last operation may come here before the function that woke it
    # has returned.
    until = time.monotonic() + _RETURN_S
    while not idle and not pending and time.monotonic() < until:
        time.sleep(0.001)
        idle = library.tuttiStreamQuery(stream) == _library.SUCCESS
    if idle:
        library.tuttiStreamDestroy(stream)
        library.ncclCommDestroy(comm)
    else:
        library.ncclCommAbort(comm)
        library.tuttiStreamDestroy(stream)
    del callback


class _Pipe:
    """Messages from one rank to another with one tag. Both make it when they first need it, on a
    thread of its own, since the other may come late."""

    def __init__(self, store: Any, source: int, target: int, tag: int, rank: int) -> None:
        self._waiting: queue.SimpleQueue = queue.SimpleQueue()
        side = int(rank == target)
        # A daemon thread, so that a message that is never received does not keep the process alive.
        self._thread = threading.Thread(
            target=_serve, name="tutti-pipe", daemon=True,
            args=(self._waiting, lambda: _new_communicator(
                store, f"pipe/{source}/{target}/{tag}", side, 2), side))
        self._thread.start()

    def move(self, tensor: torch.Tensor) -> Any:
        future: torch.futures.Future = torch.futures.Future()
        self._waiting.put((tensor, future))
        return _work(future)

    def close(self) -> None:
        self._waiting.put(None)
        self._thread.join()


def _serve(waiting: queue.SimpleQueue, connect: Callable[[], ctypes.c_void_p], side: int) -> None:
    library, comm = _library.load(), None
    function = (library.ncclSend, library.ncclRecv)[side]
    while True:
        taken: Optional[Tuple[torch.Tensor, Any]] = waiting.get()
        if taken is None:
            break
        tensor, future = taken
        try:
            comm = comm or connect()
            if function(tensor.data_ptr(), _bytes(tensor), _UINT8, 1 - side, comm,
                        None) != _library.SUCCESS:
                raise RuntimeError(_library.nccl_error(comm))
            future.set_result([tensor])
        except Exception as error:  # Any exception is handed to the thread that waits.
            future.set_exception(error)
    if comm is not None:
        library.ncclCommDestroy(comm)


class ProcessGroupTutti(dist.ProcessGroup):
    """The functions that torch.distributed calls. init_process_group and new_group make one, on all
    ranks of the group together."""

    def __init__(self, store: Any, rank: int, size: int, timeout: Any = None) -> None:
        super().__init__(rank, size)
        self._store, self._rank, self._size = store, rank, size
        self._lane = _Lane(_new_communicator(store, "id", rank, size))
        self._pipes: Dict[Tuple[int, int, int], _Pipe] = {}

    def getBackendName(self) -> str:
        return "tutti"

    def _run(self, calls: Sequence[Tuple[Any, ...]], value: Any, opts: Any, keep: Any = None
             ) -> Any:
        # Older versions do not say whether the caller waits.
        return self._lane.run(calls, value, (value, keep), not getattr(opts, "asyncOp", True))

    # Reductions

    def _allreduce_call(self, tensor: torch.Tensor, op: Any) -> Tuple[Any, ...]:
        kind, number = _reduction(_check(tensor), op)
        return ("ncclAllReduce", tensor.data_ptr(), tensor.data_ptr(), tensor.numel(), kind, number)

    def allreduce(self, tensors: Tensors, opts: Any = AllreduceOptions()) -> Any:
        return self._run([self._allreduce_call(tensor, opts.reduceOp) for tensor in tensors],
                         list(tensors), opts)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any) -> Any:
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: Tensors, opts: Any) -> Any:
        kind, number = _reduction(_check(tensors[0]), opts.reduceOp)
        # Off the root the tensor must stay as it is.
        target = tensors[0] if self._rank == opts.rootRank else torch.empty_like(tensors[0])
        return self._run([("ncclReduce", tensors[0].data_ptr(), target.data_ptr(),
                           target.numel(), kind, number, opts.rootRank)], list(tensors), opts,
                         target)

    def _reduce_scatter_base(self, output: torch.Tensor, source: torch.Tensor,
                             opts: Any = ReduceScatterOptions()) -> Any:
        kind, number = _reduction(_check(source), opts.reduceOp)
        if _check(output).numel() * self._size != source.numel():
            raise ValueError(f"reduce_scatter of {source.numel()} elements among {self._size} "
                             f"ranks does not give {output.numel()}")
        return self._run([("ncclReduceScatter", source.data_ptr(), output.data_ptr(),
                           output.numel(), kind, number)], [output], opts, source)

    reduce_scatter_single = _reduce_scatter_base

    def reduce_scatter(self, outputs: Tensors, sources: Sequence[Tensors], opts: Any) -> Any:
        flat = torch.cat([_check(tensor).reshape(-1) for tensor in sources[0]])
        return self._reduce_scatter_base(outputs[0], flat, opts)

    # Moving data

    def broadcast(self, tensors: Tensors, opts: Any = BroadcastOptions()) -> Any:
        return self._run([("ncclBroadcast", _check(tensor).data_ptr(), tensor.data_ptr(),
                           _bytes(tensor), _UINT8, opts.rootRank) for tensor in tensors],
                         list(tensors), opts)

    def _allgather_base(self, output: torch.Tensor, source: torch.Tensor,
                        opts: Any = AllgatherOptions()) -> Any:
        if _bytes(_check(output)) != _bytes(_check(source)) * self._size:
            raise ValueError(f"all_gather of {source.numel()} elements from {self._size} ranks "
                             f"does not give {output.numel()}")
        return self._run([("ncclAllGather", source.data_ptr(), output.data_ptr(), _bytes(source),
                           _UINT8)], [output], opts, source)

    all_gather_single = _allgather_base

    def allgather(self, outputs: Sequence[Tensors], sources: Tensors,
                  opts: Any = AllgatherOptions()) -> Any:
        # Sizes may differ from rank to rank, so every rank sends to every other.
        source, target = sources[0], outputs[0]
        return self._exchange([(source, to) for to in range(self._size)],
                              [(target[i], i) for i in range(self._size)], [list(target)], opts)

    def gather(self, outputs: Sequence[Tensors], sources: Tensors, opts: Any) -> Any:
        receives = []
        if self._rank == opts.rootRank:
            receives = [(tensor, i) for i, tensor in enumerate(outputs[0])]
        return self._exchange([(sources[0], opts.rootRank)], receives, list(outputs), opts)

    def scatter(self, outputs: Tensors, sources: Sequence[Tensors], opts: Any) -> Any:
        sends = []
        if self._rank == opts.rootRank:
            sends = [(tensor, i) for i, tensor in enumerate(sources[0])]
        return self._exchange(sends, [(outputs[0], opts.rootRank)], list(outputs), opts)

    def alltoall(self, outputs: Tensors, sources: Tensors, opts: Any) -> Any:
        return self._exchange([(tensor, i) for i, tensor in enumerate(sources)],
                              [(tensor, i) for i, tensor in enumerate(outputs)], list(outputs),
                              opts)

    def alltoall_base(self, output: torch.Tensor, source: torch.Tensor, output_splits: List[int],
                      input_splits: List[int], opts: Any) -> Any:
        parts = [self._split(_check(tensor), splits)
                 for tensor, splits in ((source, input_splits), (output, output_splits))]
        return self._exchange([(tensor, i) for i, tensor in enumerate(parts[0])],
                              [(tensor, i) for i, tensor in enumerate(parts[1])], [output], opts)

    all_to_all_single = alltoall_base

    def _split(self, tensor: torch.Tensor, splits: List[int]) -> Tensors:
        rows = tensor.shape[0] if tensor.dim() else 0
        if not splits and rows % self._size:
            raise ValueError(f"{rows} rows cannot be divided among {self._size} ranks")
        splits = splits or [rows // self._size] * self._size
        if len(splits) != self._size or sum(splits) != rows:
            raise ValueError(f"the splits {splits} do not share out {rows} rows among "
                             f"{self._size} ranks")
        return torch.split(tensor, splits)

    def _exchange(self, sends: Sequence[Tuple[torch.Tensor, int]],
                  receives: Sequence[Tuple[torch.Tensor, int]], value: Any, opts: Any) -> Any:
        """Messages between many ranks at once; what a rank sends to itself is copied."""
        mine = [tensor for tensor, to in sends if to == self._rank]
        for tensor, source in receives:
            if source == self._rank and tensor.data_ptr() != mine[0].data_ptr():
                tensor.copy_(mine[0])
        calls = [(name, _check(tensor).data_ptr(), _bytes(tensor), _UINT8, peer)
                 for name, parts in (("ncclSend", sends), ("ncclRecv", receives))
                 for tensor, peer in parts if peer != self._rank and tensor.numel()]
        if not calls:
            return _done(value)
        return self._run(calls, value, opts, (sends, receives))

    def barrier(self, opts: Any = BarrierOptions()) -> Any:
        token = torch.zeros(1, device="cpu")
        return self._run([self._allreduce_call(token, dist.ReduceOp.SUM)], [], opts, token)

    # Between two ranks

    def _pipe(self, source: int, target: int, tag: int) -> _Pipe:
        key = source, target, tag
        if key not in self._pipes:
            self._pipes[key] = _Pipe(self._store, source, target, tag, self._rank)
        return self._pipes[key]

    def send(self, tensors: Tensors, target: int, tag: int = 0) -> Any:
        return self._pipe(self._rank, target, tag).move(_check(tensors[0]))

    def recv(self, tensors: Tensors, source: int, tag: int = 0) -> Any:
        return self._pipe(source, self._rank, tag).move(_check(tensors[0]))

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Any:
        raise ValueError("the tutti backend receives from a rank that is named")

    def shutdown(self) -> None:
        """Ends the group's connections once what was asked for is done."""
        for pipe in self._pipes.values():
            pipe.close()
        self._pipes = {}
        self._lane.close()


def _create(store: Any, rank: int, size: int, timeout: Any) -> ProcessGroupTutti:
    return ProcessGroupTutti(store, rank, size, timeout)


def register() -> None:
    """Makes "tutti" known to torch.distributed; done by importing this."""
    if "TUTTI" not in dist.Backend._plugins:
        try:
            dist.Backend.register_backend("tutti", _create, devices=["cpu"])
        except TypeError:  # Before PyTorch 2.0 backends were for any device.
            dist.Backend.register_backend("tutti", _create)


register()
