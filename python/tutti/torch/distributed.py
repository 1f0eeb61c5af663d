# SPDX-License-Identifier: Apache-2.0
"""A backend of torch.distributed for tensors in host memory.

    torch.distributed.init_process_group("tutti")

PyTorch 2.5 and later knows the name where the package is installed; elsewhere (an older one, a
package that is only on PYTHONPATH) `import tutti.torch.distributed` comes first.

The backend is in C++ where it can be compiled (_native.py says how and when). The class of this file
stands in for it elsewhere: it has the collectives and messages of torch.distributed, and is not meant
to be fast.

Everything built on torch.distributed (DistributedDataParallel and others) then runs on Tutti's
communicators. Tensors are contiguous. Collectives of a group run in the order in which they are
asked for, on a thread of the library, while Python goes on. Sends and receives between two ranks in
one direction and with one tag keep their order, too, and wait for nothing else.

Errors: ValueError for what is wrong in itself; a lost rank or what else the library reports is a
RuntimeError from wait(). Threads: as torch.distributed, one at a time for each group; a second thread
gets a RuntimeError.
"""

from __future__ import annotations

import functools
import time
import weakref
from datetime import timedelta
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import (AllgatherOptions, AllreduceOptions, BarrierOptions,
                                        BroadcastOptions, ReduceScatterOptions)

from tutti import _torch_register
from tutti.torch import _ending, _meeting, _native, _reductions
from tutti.torch._messages import AnySourceWork, MessageQueue, receive_from_any
from tutti.torch._monitored_barrier import monitored_barrier
from tutti.torch._one_thread import OneThread, collective
from tutti.torch._worker import RETURN_S, UINT8, Request, Worker, bytes_of

Tensors = Sequence[torch.Tensor]
_LONGEST_TIMEOUT_S = 1e7  # As tuttiConfig_t has it.


def _check(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        raise ValueError(f"the tutti backend takes dense tensors in host memory, not "
                         f"{tensor.layout} on {tensor.device}")
    if not tensor.is_contiguous():
        raise ValueError("the tensor must be contiguous; use tensor.contiguous()")
    if tensor.is_conj() or tensor.is_neg():  # Its memory does not have its values.
        raise ValueError("the tensor is a conjugated or negated view; use tensor.resolve_conj() or "
                         "tensor.resolve_neg()")
    return tensor


class ProcessGroupTutti(dist.ProcessGroup):
    """The functions that torch.distributed calls. init_process_group and new_group make the object,
    on all ranks of the group together."""

    def __init__(self, store: Any, rank: int, size: int, timeout: Any = None) -> None:
        try:
            super().__init__(store, rank, size)
        except TypeError:  # Before PyTorch 2.5 a group had no store.
            super().__init__(rank, size)
        self._store, self._rank, self._size = store, rank, size
        self._timeout: timedelta = timeout or timedelta(minutes=30)
        self._group_name = self._group_desc = ""
        self.one_thread = OneThread()
        # Made before the finalizer of the connections, because at exit the last is called first.
        self._leave = (None if dist.is_initialized() else  # This is not the job's default group.
                       _ending.at_end(self, store, rank, size))
        self._everybody = self._meeting("id", rank, size, -1, None)
        self._collectives = Worker(self._everybody.make)
        self._messages: Dict[Tuple[int, int, int], MessageQueue] = {}
        # PyTorch before 2.8 does not tell a group that it is destroyed.
        self._end = weakref.finalize(self, _end, self._collectives, self._messages, store,
                                     self._everybody, rank, size)
        self._barriers = 0

    def _own_timeout_s(self) -> float:
        """Returns the group's time-out, and 0 for the time-out that all groups have by default, which
        leaves the limit to the library."""
        given_s = min(self._timeout.total_seconds(), _LONGEST_TIMEOUT_S)
        default_s = dist.distributed_c10d.default_pg_timeout.total_seconds()
        return 0.0 if given_s == default_s else given_s

    def _wait_limit(self) -> Tuple[float, str]:
        """Returns how long operations wait without progress, and the name of the limit."""
        own_s = self._own_timeout_s()
        return ((own_s, "the timeout of the group") if own_s else
                (_meeting.setting_seconds("TUTTI_TIMEOUT_S"), "TUTTI_TIMEOUT_S"))

    def _meeting(self, key: str, rank: int, size: int, peer: int,
                 group: Optional[_meeting.Meeting]) -> _meeting.Meeting:
        """Describes a meeting to make a communicator: with one rank of the group, or with all ranks,
        where `peer` is -1."""
        limit = (self._wait_limit() if peer >= 0 else
                 (_meeting.setting_seconds("TUTTI_INIT_TIMEOUT_S"), "TUTTI_INIT_TIMEOUT_S"))
        return _meeting.Meeting(
            self._store, key, rank, size, timeout_s=self._own_timeout_s(), limit=limit,
            shown_rank=self._rank, peer=peer,
            whom="the other ranks" if peer < 0 else f"rank {peer}",
            what="the group" if peer < 0 else "the connection of their first message", group=group,
            forget=_native.FORM_KEYS if peer < 0 else ())

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the time-out of operations that begin from now on."""
        self._timeout = timeout
        for worker in (self._collectives, *self._messages.values()):
            worker.set_timeout(self._wait_limit()[0])

    def getBackendName(self) -> str:
        return "tutti"

    def get_backend(self, device: Any = None) -> Any:
        """Returns the implementation for tensors in host memory, which is the group itself."""
        return self

    # PyTorch keeps the names in a group's C++ backends, which this group does not have.

    def setGroupName(self, name: str) -> None:
        self._group_name = name

    def getGroupName(self) -> str:
        return self._group_name

    def setGroupDesc(self, description: str) -> None:
        self._group_desc = description

    def getGroupDesc(self) -> str:
        return self._group_desc

    # The members are fixed (enable_reconfigure of PyTorch 2.14).

    @property
    def supports_reconfigure(self) -> bool:
        return False

    def get_reconfigure_handle(self) -> str:
        raise RuntimeError("a group of the tutti backend in Python has fixed members; enable_reconfigure "
                           "needs the backend in C++")

    def reconfigure(self, opts: Any) -> Any:
        self.get_reconfigure_handle()

    def _run(self, value: Any, *functions: Callable[[Worker], None]) -> Any:
        def do(worker: Worker) -> None:
            for function in functions:
                function(worker)
        return self._collectives.put(Request(do, value))

    # Reductions

    @collective("all_reduce")
    def allreduce(self, tensors: Tensors, opts: Any = AllreduceOptions()) -> Any:
        op, size = opts.reduceOp, self._size
        for tensor in tensors:
            _reductions.check(_check(tensor), op)

        def do(worker: Worker) -> None:
            for tensor in tensors:
                _reductions.all_reduce(worker, tensor, op, size)
        return self._run(list(tensors), do)

    @collective("all_reduce_coalesced")
    def allreduce_coalesced(self, tensors: Tensors, opts: Any) -> Any:
        return self.allreduce(tensors, opts)

    @collective("reduce")
    def reduce(self, tensors: Tensors, opts: Any) -> Any:
        op, size = opts.reduceOp, self._size
        tensor, is_root = _check(tensors[0]), self._rank == opts.rootRank
        _reductions.check(tensor, op)

        def do(worker: Worker) -> None:
            # Off the root the tensor must remain unchanged.
            _reductions.all_reduce(worker, tensor if is_root else tensor.clone(), op, size)
        return self._run(list(tensors), do)

    def _reduce_parts(self, output: torch.Tensor, parts: Tensors, op: Any
                      ) -> Callable[[Worker], None]:
        """Returns the function that reduces the parts and stores this rank's in `output`."""
        size, rank = self._size, self._rank
        if len(parts) != size or _check(output).numel() != parts[rank].numel():
            raise ValueError(f"reduce_scatter of {sum(part.numel() for part in parts)} elements "
                             f"among {size} ranks does not give {output.numel()}")
        if output.dtype != parts[0].dtype:
            raise ValueError(f"reduce_scatter of {parts[0].dtype} does not give {output.dtype}")
        _reductions.check(output, op)

        def do(worker: Worker) -> None:
            whole = torch.cat([_check(part).reshape(-1) for part in parts])
            _reductions.all_reduce(worker, whole, op, size)
            mine = whole.split([part.numel() for part in parts])[rank]
            output.copy_(mine.view(output.shape))
        return do

    @collective("reduce_scatter_tensor")
    def _reduce_scatter_base(self, output: torch.Tensor, source: torch.Tensor,
                             opts: Any = ReduceScatterOptions()) -> Any:
        return self.reduce_scatter_single_coalesced([output], [source], opts)

    reduce_scatter_single = _reduce_scatter_base

    @collective("reduce_scatter_tensor")
    def reduce_scatter_single_coalesced(self, outputs: Tensors, sources: Tensors,
                                        opts: Any = ReduceScatterOptions()) -> Any:
        for output, source in zip(outputs, sources):
            if output.numel() * self._size != source.numel():
                raise ValueError(f"reduce_scatter of {source.numel()} elements among {self._size} "
                                 f"ranks does not give {output.numel()}")
        return self._run(list(outputs), *[
            self._reduce_parts(output, _check(source).reshape(self._size, -1).unbind(),
                               opts.reduceOp)
            for output, source in zip(outputs, sources)])

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    @collective("reduce_scatter")
    def reduce_scatter(self, outputs: Tensors, sources: Sequence[Tensors], opts: Any) -> Any:
        return self._run(list(outputs), self._reduce_parts(outputs[0], sources[0], opts.reduceOp))

    # Moving data

    @collective("broadcast")
    def broadcast(self, tensors: Tensors, opts: Any = BroadcastOptions()) -> Any:
        calls = [("ncclBroadcast", _check(tensor).data_ptr(), tensor.data_ptr(), bytes_of(tensor),
                  UINT8, opts.rootRank) for tensor in tensors]
        return self._run(list(tensors), lambda worker: worker.call_all(calls))

    @collective("all_gather_into_tensor")
    def _allgather_base(self, output: torch.Tensor, source: torch.Tensor,
                        opts: Any = AllgatherOptions()) -> Any:
        return self.all_gather_single_coalesced([output], [source], opts)

    all_gather_single = _allgather_base

    @collective("all_gather_into_tensor")
    def all_gather_single_coalesced(self, outputs: Tensors, sources: Tensors,
                                    opts: Any = AllgatherOptions()) -> Any:
        for output, source in zip(outputs, sources):
            if bytes_of(_check(output)) != bytes_of(_check(source)) * self._size:
                raise ValueError(f"all_gather of {source.numel()} elements from {self._size} ranks "
                                 f"does not give {output.numel()}")

        def do(worker: Worker) -> None:
            for output, source in zip(outputs, sources):
                worker.call("ncclAllGather", source.data_ptr(), output.data_ptr(),
                            bytes_of(source), UINT8)
        return self._run(list(outputs), do)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    @collective("all_gather")
    def allgather(self, outputs: Sequence[Tensors], sources: Tensors,
                  opts: Any = AllgatherOptions()) -> Any:
        # Sizes may differ from rank to rank, and every rank therefore sends to every other rank.
        source, target = sources[0], outputs[0]
        return self._exchange([(source, to) for to in range(self._size)],
                              [(target[i], i) for i in range(self._size)], [list(target)])

    @collective("all_gather_coalesced")
    def allgather_coalesced(self, outputs: Sequence[Tensors], sources: Tensors,
                            opts: Any = AllgatherOptions()) -> Any:
        return self._exchange(
            [(source, to) for source in sources for to in range(self._size)],
            [(outputs[i][k], i) for k in range(len(sources)) for i in range(self._size)],
            [list(tensors) for tensors in outputs])

    @collective("gather")
    def gather(self, outputs: Sequence[Tensors], sources: Tensors, opts: Any) -> Any:
        receives = []
        if self._rank == opts.rootRank:
            receives = [(tensor, i) for i, tensor in enumerate(outputs[0])]
        return self._exchange([(sources[0], opts.rootRank)], receives, list(outputs))

    @collective("gather_single")
    def gather_single(self, output: torch.Tensor, source: torch.Tensor, opts: Any) -> Any:
        receives: Tensors = []
        if self._rank == opts.rootRank:
            if output.dtype != source.dtype or output.numel() != source.numel() * self._size:
                raise ValueError(f"gather of {source.numel()} elements of {source.dtype} from "
                                 f"{self._size} ranks does not give {output.numel()} of "
                                 f"{output.dtype}")
            receives = _check(output).view(-1).tensor_split(self._size)
        return self._exchange([(source, opts.rootRank)],
                              [(part, i) for i, part in enumerate(receives)], [output])

    gather_into_tensor = gather_single

    @collective("scatter")
    def scatter(self, outputs: Tensors, sources: Sequence[Tensors], opts: Any) -> Any:
        sends = []
        if self._rank == opts.rootRank:
            sends = [(tensor, i) for i, tensor in enumerate(sources[0])]
        return self._exchange(sends, [(outputs[0], opts.rootRank)], list(outputs))

    @collective("all_to_all")
    def alltoall(self, outputs: Tensors, sources: Tensors, opts: Any) -> Any:
        return self._exchange([(tensor, i) for i, tensor in enumerate(sources)],
                              [(tensor, i) for i, tensor in enumerate(outputs)], list(outputs))

    @collective("all_to_all_single")
    def alltoall_base(self, output: torch.Tensor, source: torch.Tensor, output_splits: List[int],
                      input_splits: List[int], opts: Any) -> Any:
        sends, receives = [
            [(part, i) for i, part in enumerate(self._split(_check(tensor), splits))]
            for tensor, splits in ((source, input_splits), (output, output_splits))]
        return self._exchange(sends, receives, [output])

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
                  receives: Sequence[Tuple[torch.Tensor, int]], value: Any) -> Any:
        """Sends messages between many ranks at once. A rank's messages to itself are copied."""
        me = self._rank
        for tensor, _ in (*sends, *receives):
            _check(tensor)

        def do(worker: Worker) -> None:
            mine = [tensor for tensor, to in sends if to == me]
            kept = [tensor for tensor, source in receives if source == me]
            for target, source in zip(kept, mine):
                if target.data_ptr() != source.data_ptr():
                    target.copy_(source)
            worker.call_all([(name, tensor.data_ptr(), bytes_of(tensor), UINT8, peer)
                             for name, parts in (("ncclSend", sends), ("ncclRecv", receives))
                             for tensor, peer in parts if peer != me and tensor.numel()])
        return self._run(value, do)

    @collective("barrier")
    def barrier(self, opts: Any = BarrierOptions()) -> Any:
        return self.allreduce([torch.zeros(1, device="cpu")])

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """Blocks until all ranks have come. RuntimeError after the timeout: on rank 0 the error
        names the first missing rank, with wait_all_ranks all missing ranks."""
        self._barriers += 1
        monitored_barrier(dist.PrefixStore(f"barrier/{self._barriers}", self._store), self._rank,
                          self._size, self._timeout if timeout is None else timeout,
                          wait_all_ranks)

    # Between two ranks

    def _queue(self, source: int, target: int, tag: int) -> MessageQueue:
        key, group = (source, target, tag), self._collectives
        if key not in self._messages:
            receives = self._rank == target
            peer = source if receives else target
            meeting = self._meeting(f"pipe/{source}/{target}/{tag}", int(receives), 2, peer,
                                    self._everybody)

            def connect(check: Callable[[], None], warns: bool) -> Any:
                def check_both() -> None:
                    check()
                    group.check_present(peer)
                return meeting.make(check_both, warns)
            self._messages[key] = MessageQueue(connect, peer, receives)
        return self._messages[key]

    def send(self, tensors: Tensors, target: int, tag: int = 0) -> Any:
        return self._queue(self._rank, target, tag).send_or_receive(_check(tensors[0]))

    def recv(self, tensors: Tensors, source: int, tag: int = 0) -> Any:
        return self._queue(source, self._rank, tag).send_or_receive(_check(tensors[0]))

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> AnySourceWork:
        return receive_from_any([self._queue(source, self._rank, tag)
                                 for source in range(self._size) if source != self._rank],
                                _check(tensors[0]))

    def shutdown(self) -> None:
        """Ends the group's connections, messages between named ranks once they are done, or when the
        time for them is over."""
        self._end()
        if self._leave:
            self._leave()


def _end(collectives: Worker, messages: Dict[Tuple[int, int, int], MessageQueue], store: Any,
         everybody: _meeting.Meeting, rank: int, size: int) -> None:
    """Ends a group's threads, and gives up what is not done when the time is over. PyTorch ends the
    process by std::terminate where a thread comes back from its functions to Python when the
    interpreter has ended."""
    begun, workers = time.monotonic(), (*messages.values(), collectives)
    for worker in workers:
        worker.begin_to_close()
    for worker in workers:
        worker.await_requests(begun)
    # All threads together have RETURN_S, however many do not return.
    until = time.monotonic() + RETURN_S
    for worker in workers:
        worker.close(until)
    _meeting.note_left(store, everybody.note, rank, size)


def _offer_monitored_barrier() -> None:
    """Has torch.distributed.monitored_barrier take groups of this backend, too. PyTorch looks at the
    backend's name, and refuses all but "gloo"."""
    original = dist.monitored_barrier

    @functools.wraps(original)
    def barrier(group: Any = dist.GroupMember.WORLD, timeout: Any = None,
                wait_all_ranks: bool = False) -> None:
        chosen = dist.GroupMember.WORLD if group is None else group
        if not isinstance(chosen, dist.ProcessGroup) or dist.get_backend(chosen) != "tutti":
            original(group, timeout, wait_all_ranks)
        elif timeout is None:
            chosen.monitored_barrier(wait_all_ranks=wait_all_ranks)
        else:
            timed = timeout if isinstance(timeout, timedelta) else timedelta(seconds=timeout)
            chosen.monitored_barrier(timed, wait_all_ranks)

    for module in (dist, dist.distributed_c10d):
        setattr(module, "monitored_barrier", barrier)


def create(store: Any, rank: int, size: int, timeout: Any = None,
           enable_reconfigure: bool = False) -> Any:
    """Makes the backend of a group, on all of its ranks together: in C++ where all ranks have the
    backend in C++. A group whose members change begins without the other ranks, in C++."""
    timeout = timeout or timedelta(minutes=30)
    if enable_reconfigure:
        return _native.create_reconfigurable(store, rank, size, timeout)
    if _native.agreed(store, rank, size):
        return _native.create(store, rank, size, timeout)
    return ProcessGroupTutti(store, rank, size, timeout)


def register() -> None:
    """Makes "tutti" known to torch.distributed; done by importing this."""
    _torch_register.register(create)
    if hasattr(dist, "monitored_barrier"):
        _offer_monitored_barrier()


register()
