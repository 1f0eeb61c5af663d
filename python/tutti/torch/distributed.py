# SPDX-License-Identifier: Apache-2.0
"""A backend of torch.distributed for tensors in host memory.

    torch.distributed.init_process_group("tutti")

PyTorch 2.5 and later knows the name where the package is installed; elsewhere (an older one, a
package that is only on PYTHONPATH) `import tutti.torch.distributed` comes first.

The backend is in C++ where it can be compiled (_native.py says how and when), else that of this file,
which does the same more slowly.

Everything built on torch.distributed (DistributedDataParallel and others) then runs on Tutti's
communicators. Tensors are contiguous. Collectives of a group run in the order in which they are
asked for, on a thread of the library, while Python goes on. Sends and receives between two ranks in
one direction and with one tag keep their order, too, and wait for nothing else.

Errors: ValueError for what is wrong in itself; a lost rank or what else the library reports is a
RuntimeError from wait(). Threads: as torch.distributed, one at a time for each group.
"""

from __future__ import annotations

import functools
from datetime import timedelta
from typing import Any, Dict, List, Sequence, Tuple

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import (AllgatherOptions, AllreduceOptions, BarrierOptions,
                                        BroadcastOptions, ReduceScatterOptions)

from tutti import _torch_register
from tutti.torch import _ending, _native, _reductions
from tutti.torch._messages import AnySourceWork, MessageQueue, receive_from_any
from tutti.torch._monitored_barrier import monitored_barrier
from tutti.torch._ordered import OrderedCommunicator, done, new_communicator
from tutti.torch._reductions import UINT8, Call, Step

Tensors = Sequence[torch.Tensor]


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


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


class ProcessGroupTutti(dist.ProcessGroup):
    """The functions that torch.distributed calls. init_process_group and new_group make one, on all
    ranks of the group together."""

    def __init__(self, store: Any, rank: int, size: int, timeout: Any = None) -> None:
        try:
            super().__init__(store, rank, size)
        except TypeError:  # Before PyTorch 2.5 a group had no store.
            super().__init__(rank, size)
        self._store, self._rank, self._size = store, rank, size
        self._timeout: timedelta = timeout or timedelta(minutes=30)
        self._group_name = self._group_desc = ""
        # Made before the communicator, so that at exit it is called after that has ended.
        self._leave = (None if dist.is_initialized() else  # This is not the job's default group.
                       _ending.at_end(self, store, rank, size))
        self._ordered = OrderedCommunicator(new_communicator(store, "id", rank, size))
        self._messages: Dict[Tuple[int, int, int], MessageQueue] = {}
        self._barriers = 0

    def getBackendName(self) -> str:
        return "tutti"

    # PyTorch keeps these in a group's C++ backends, which this has not.

    def setGroupName(self, name: str) -> None:
        self._group_name = name

    def getGroupName(self) -> str:
        return self._group_name

    def setGroupDesc(self, description: str) -> None:
        self._group_desc = description

    def getGroupDesc(self) -> str:
        return self._group_desc

    def _run(self, steps: Sequence[Step], value: Any, opts: Any, keep: Any = None) -> Any:
        # Older versions do not say whether the caller waits.
        return self._ordered.run(steps, value, (value, keep), not getattr(opts, "asyncOp", True))

    # Reductions

    def allreduce(self, tensors: Tensors, opts: Any = AllreduceOptions()) -> Any:
        steps = [_reductions.all_reduce(_check(tensor), tensor, opts.reduceOp, self._size)
                 for tensor in tensors]
        return self._run(_reductions.together(steps), list(tensors), opts)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any) -> Any:
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: Tensors, opts: Any) -> Any:
        # Off the root the tensor must stay as it is.
        target = tensors[0] if self._rank == opts.rootRank else torch.empty_like(tensors[0])
        return self._run(_reductions.reduce(_check(tensors[0]), target, opts.reduceOp,
                                            opts.rootRank, self._size),
                         list(tensors), opts, target)

    def _reduce_scatter_steps(self, output: torch.Tensor, source: torch.Tensor, op: Any
                              ) -> List[Step]:
        if _check(output).numel() * self._size != _check(source).numel():
            raise ValueError(f"reduce_scatter of {source.numel()} elements among {self._size} "
                             f"ranks does not give {output.numel()}")
        if output.dtype != source.dtype:
            raise ValueError(f"reduce_scatter of {source.dtype} does not give {output.dtype}")
        return _reductions.reduce_scatter(source, output, op, self._size)

    def _reduce_scatter_base(self, output: torch.Tensor, source: torch.Tensor,
                             opts: Any = ReduceScatterOptions()) -> Any:
        return self.reduce_scatter_single_coalesced([output], [source], opts)

    reduce_scatter_single = _reduce_scatter_base

    def reduce_scatter_single_coalesced(self, outputs: Tensors, sources: Tensors,
                                        opts: Any = ReduceScatterOptions()) -> Any:
        steps = [self._reduce_scatter_steps(output, source, opts.reduceOp)
                 for output, source in zip(outputs, sources)]
        return self._run(_reductions.together(steps), list(outputs), opts, sources)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def reduce_scatter(self, outputs: Tensors, sources: Sequence[Tensors], opts: Any) -> Any:
        parts = [_check(tensor).reshape(-1) for tensor in sources[0]]
        flat = torch.empty(sum(part.numel() for part in parts), dtype=outputs[0].dtype)
        steps = self._reduce_scatter_steps(outputs[0], flat, opts.reduceOp)
        return self._run([lambda: _join(parts, flat), *steps], list(outputs), opts, flat)

    # Moving data

    def broadcast(self, tensors: Tensors, opts: Any = BroadcastOptions()) -> Any:
        return self._run([[("ncclBroadcast", _check(tensor).data_ptr(), tensor.data_ptr(),
                            _bytes(tensor), UINT8, opts.rootRank) for tensor in tensors]],
                         list(tensors), opts)

    def _allgather_base(self, output: torch.Tensor, source: torch.Tensor,
                        opts: Any = AllgatherOptions()) -> Any:
        return self.all_gather_single_coalesced([output], [source], opts)

    all_gather_single = _allgather_base

    def all_gather_single_coalesced(self, outputs: Tensors, sources: Tensors,
                                    opts: Any = AllgatherOptions()) -> Any:
        for output, source in zip(outputs, sources):
            if _bytes(_check(output)) != _bytes(_check(source)) * self._size:
                raise ValueError(f"all_gather of {source.numel()} elements from {self._size} ranks "
                                 f"does not give {output.numel()}")
        return self._run([[("ncclAllGather", source.data_ptr(), output.data_ptr(), _bytes(source),
                            UINT8) for output, source in zip(outputs, sources)]],
                         list(outputs), opts, sources)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather(self, outputs: Sequence[Tensors], sources: Tensors,
                  opts: Any = AllgatherOptions()) -> Any:
        # Sizes may differ from rank to rank, so every rank sends to every other.
        source, target = sources[0], outputs[0]
        return self._exchange([(source, to) for to in range(self._size)],
                              [(target[i], i) for i in range(self._size)], [list(target)], opts)

    def allgather_coalesced(self, outputs: Sequence[Tensors], sources: Tensors,
                            opts: Any = AllgatherOptions()) -> Any:
        return self._exchange(
            [(source, to) for source in sources for to in range(self._size)],
            [(outputs[i][k], i) for k in range(len(sources)) for i in range(self._size)],
            [list(tensors) for tensors in outputs], opts)

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
        kept = [tensor for tensor, source in receives if source == self._rank]
        copies = [(to, tensor) for to, tensor in zip(kept, mine)
                  if to.data_ptr() != tensor.data_ptr()]
        calls: List[Call] = [
            (name, _check(tensor).data_ptr(), _bytes(tensor), UINT8, peer)
            for name, parts in (("ncclSend", sends), ("ncclRecv", receives))
            for tensor, peer in parts if peer != self._rank and tensor.numel()]
        steps: List[Step] = [lambda: _copy_all(copies)] if copies else []
        if not calls and not steps:
            return done(value)
        return self._run(steps + ([calls] if calls else []), value, opts, (sends, receives))

    def barrier(self, opts: Any = BarrierOptions()) -> Any:
        token = torch.zeros(1, device="cpu")
        return self._run(_reductions.all_reduce(token, token, dist.ReduceOp.SUM, self._size), [],
                         opts, token)

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """Blocks until all ranks have come. RuntimeError after the timeout: on rank 0 it names the
        first rank that did not come, with wait_all_ranks all of them."""
        self._barriers += 1
        monitored_barrier(dist.PrefixStore(f"barrier/{self._barriers}", self._store), self._rank,
                          self._size, self._timeout if timeout is None else timeout,
                          wait_all_ranks)

    # Between two ranks

    def _queue(self, source: int, target: int, tag: int) -> MessageQueue:
        key = source, target, tag
        if key not in self._messages:
            receives = self._rank == target
            self._messages[key] = MessageQueue(
                lambda closing: new_communicator(self._store, f"pipe/{source}/{target}/{tag}",
                                                 int(receives), 2, closing),
                source if receives else target, receives)
        return self._messages[key]

    def send(self, tensors: Tensors, target: int, tag: int = 0) -> Any:
        return self._queue(self._rank, target, tag).move(_check(tensors[0]))

    def recv(self, tensors: Tensors, source: int, tag: int = 0) -> Any:
        return self._queue(source, self._rank, tag).move(_check(tensors[0]))

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> AnySourceWork:
        return receive_from_any([self._queue(source, self._rank, tag)
                                 for source in range(self._size) if source != self._rank],
                                _check(tensors[0]))

    def shutdown(self) -> None:
        """Ends the group's connections once what was asked for is done."""
        for messages in self._messages.values():
            messages.close()
        self._messages = {}
        self._ordered.close()
        if self._leave:
            self._leave()


def _copy_all(copies: Sequence[Tuple[torch.Tensor, torch.Tensor]]) -> None:
    with torch.no_grad():
        for target, source in copies:
            target.copy_(source)


def _join(parts: Tensors, whole: torch.Tensor) -> None:
    with torch.no_grad():
        torch.cat(list(parts), out=whole)


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


def create(store: Any, rank: int, size: int, timeout: Any = None) -> Any:
    """Makes the backend of a group, on all of its ranks together: in C++ where they all have that."""
    timeout = timeout or timedelta(minutes=30)
    if _native.agreed(store, size):
        return _native.create(store, rank, size, timeout)
    return ProcessGroupTutti(store, rank, size, timeout)


def register() -> None:
    """Makes "tutti" known to torch.distributed; done by importing this."""
    _torch_register.register(create)
    if hasattr(dist, "monitored_barrier"):
        _offer_monitored_barrier()


register()
