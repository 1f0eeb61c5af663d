# SPDX-License-Identifier: Apache-2.0
"""The operations on PyTorch tensors.

Tensors lie in host memory or on a GPU, all of a process on one, and are contiguous; arrays of other
libraries with DLPack (NumPy, CuPy, JAX) are seen as such, and results are theirs where they have
from_dlpack. Complex numbers are moved, summed and averaged. Operations on a
GPU wait for what its current stream holds, and what comes on the current stream of `synchronize`
waits for them; no thread waits for the GPU, and `poll` says whether the operation was queued.

An asynchronous form (`..._async`) gives a handle for `poll` and `synchronize`, and its tensors must
stay as they are until then; a trailing `_` writes the result into the tensor. The waiting forms
without `_` carry gradients.

Errors: ValueError at once for what is wrong in itself; HorovodInternalError from the operation for
what the ranks disagree about, or a lost rank. Threads: any.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch

from tutti import _basics
# Scripts import some of these from here, where Horovod has them.
from tutti._basics import (Adasum, Average, Max, Min, ProcessSet, Product, Sum, add_process_set,
                           barrier, ccl_built, check_op, cross_rank, cross_size, cuda_built,
                           ddl_built, global_process_set, gloo_built, gloo_enabled, init,
                           is_homogeneous, is_initialized, local_rank, local_size, mpi_built,
                           mpi_enabled, mpi_threads_supported, nccl_built, poll, rank,
                           remove_process_set, rocm_built, shutdown, size, start_timeline,
                           stop_timeline, synchronize)
from tutti._collectives import Collectives, check_group
from tutti.exceptions import HorovodInternalError
from tutti.torch._adapter import TorchAdapter, bring, require_tensors
from tutti.torch.compression import Compression

_job = _basics.job()
_ops = Collectives(TorchAdapter(gpus=True))


def join(device: int = -1) -> int:
    """Says that this rank has no more data, and takes part in the others' operations with neutral
    elements until all have joined. Returns the rank that joined last. `device` is Horovod's and not
    needed."""
    return _job.join()


def _wire(compression: Any, tensors: Sequence[torch.Tensor]) -> Optional[int]:
    """Returns the number of a compression that the library does on the way; None where it has to be
    done here, as on GPUs."""
    wire = getattr(compression, "wire", None)
    return None if wire and any(tensor.is_cuda for tensor in tensors) else wire


def _check_compression(compression: Any) -> None:
    if not (hasattr(compression, "compress") and hasattr(compression, "decompress")):
        raise ValueError(f"compression={compression!r} is no compressor such as Compression.fp16")


def begin_allreduce(tensors: Sequence[torch.Tensor], name: Optional[str], op: int,
                    process_set: ProcessSet, *, grouped: bool = False,
                    members: Optional[Sequence[str]] = None, compression: Any = Compression.none,
                    prescale: float = 1.0, postscale: float = 1.0, in_place: bool = False) -> int:
    """Returns a handle for every form of allreduce. Compressors that the library has run there;
    others around it. `members`: the names of a group's tensors, where they have names of their
    own."""
    own = [bring(tensor)[0] for tensor in tensors]
    _check_compression(compression)
    options: Dict[str, Any] = {
        "grouped": grouped or members is not None, "members": members, "prescale": prescale,
        "postscale": postscale, "process_set": process_set}
    wire = _wire(compression, own)
    if wire is not None:
        return _ops.allreduce(tensors, name, op, in_place=in_place, compression=wire, **options)
    pairs = [compression.compress(tensor) for tensor in own]
    # Targets of their own, since what was compressed may be the user's tensor itself.
    sent = [part.clone() if part is tensor else part.contiguous()
            for (part, _), tensor in zip(pairs, own)]
    places = {id(part): i for i, part in enumerate(sent)}

    def finish(target: torch.Tensor) -> Any:
        i = places[id(target)]
        result = compression.decompress(target, pairs[i][1])
        if in_place:
            own[i].copy_(result)
            return tensors[i]
        home = bring(tensors[i])[1]
        return result if home is None else home(result)

    return _ops.allreduce(sent, name, op, in_place=True, finish=finish, **options)


def _carry(function: Any, settings: Any, name: Optional[str], tensors: Sequence[Any]) -> List[Any]:
    """Returns what a waiting operation returns for the tensors, with their gradients; arrays of
    another library where the arguments are such."""
    opened = [bring(tensor) for tensor in tensors]
    results = function.apply(settings, name, *[own for own, _ in opened])
    return [result if home is None else home(result)
            for result, (_, home) in zip(results, opened)]


def allreduce_async(tensor: torch.Tensor, average: Optional[bool] = None,
                    name: Optional[str] = None, op: Optional[int] = None,
                    prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                    process_set: ProcessSet = global_process_set) -> int:
    """Returns a handle for the tensors of all ranks, of one shape, reduced element by element."""
    return begin_allreduce([tensor], name, check_op(op, average), process_set,
                           prescale=prescale_factor, postscale=postscale_factor, in_place=False)


def allreduce_async_(tensor: torch.Tensor, average: Optional[bool] = None,
                     name: Optional[str] = None, op: Optional[int] = None,
                     prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                     process_set: ProcessSet = global_process_set) -> int:
    """Does allreduce_async into the tensor itself."""
    return begin_allreduce([tensor], name, check_op(op, average), process_set,
                           prescale=prescale_factor, postscale=postscale_factor, in_place=True)


def _of_gradient(name: Any) -> Any:
    """Returns the name of the operation of backward."""
    return name + ".grad" if isinstance(name, str) else name


class _Allreduce(torch.autograd.Function):
    """The gradient of an allreduce is the allreduce of the gradients."""

    @staticmethod
    def forward(ctx: Any, settings: Tuple[Any, ...], name: Optional[str], *tensors: torch.Tensor
                ) -> Any:
        ctx.settings = settings
        ctx.name = _of_gradient(name)
        return _reduce_now(tensors, name, settings)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        flat = [gradient.contiguous() for gradient in gradients]
        return (None, None, *_reduce_now(flat, ctx.name, ctx.settings))


def _reduce_now(tensors: Sequence[torch.Tensor], name: Optional[str], settings: Tuple[Any, ...]
                ) -> Tuple[torch.Tensor, ...]:
    op, compression, prescale, postscale, process_set, grouped = settings
    result = synchronize(begin_allreduce(
        [tensor.detach() for tensor in tensors], name, op, process_set, grouped=grouped,
        compression=compression, prescale=prescale, postscale=postscale))
    return tuple(result) if grouped else (result,)


def allreduce(tensor: torch.Tensor, average: Optional[bool] = None, name: Optional[str] = None,
              compression: Any = Compression.none, op: Optional[int] = None,
              prescale_factor: float = 1.0, postscale_factor: float = 1.0,
              process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """Returns a new tensor of the same shape; differentiable."""
    settings = (check_op(op, average), compression, prescale_factor, postscale_factor, process_set,
                False)
    return _carry(_Allreduce, settings, name, [tensor])[0]


def allreduce_(tensor: torch.Tensor, average: Optional[bool] = None, name: Optional[str] = None,
               op: Optional[int] = None, prescale_factor: float = 1.0,
               postscale_factor: float = 1.0,
               process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """Writes the result into the tensor itself, and returns it."""
    return synchronize(allreduce_async_(tensor, average, name, op, prescale_factor,
                                        postscale_factor, process_set))


def _grouped(tensors: Sequence[torch.Tensor], average: Optional[bool], name: Optional[str],
             op: Optional[int], prescale: float, postscale: float, process_set: ProcessSet,
             in_place: bool) -> int:
    return begin_allreduce(tensors, name, check_op(op, average), process_set, grouped=True,
                           prescale=prescale, postscale=postscale, in_place=in_place)


def grouped_allreduce_async(tensors: Sequence[torch.Tensor], average: Optional[bool] = None,
                            name: Optional[str] = None, op: Optional[int] = None,
                            prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                            process_set: ProcessSet = global_process_set) -> int:
    """Returns a handle for tensors that are reduced together or not at all; a list of tensors."""
    return _grouped(tensors, average, name, op, prescale_factor, postscale_factor, process_set,
                    False)


def grouped_allreduce_async_(tensors: Sequence[torch.Tensor], average: Optional[bool] = None,
                             name: Optional[str] = None, op: Optional[int] = None,
                             prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                             process_set: ProcessSet = global_process_set) -> int:
    """Does grouped_allreduce_async into the tensors themselves."""
    return _grouped(tensors, average, name, op, prescale_factor, postscale_factor, process_set,
                    True)


def grouped_allreduce(tensors: Sequence[torch.Tensor], average: Optional[bool] = None,
                      name: Optional[str] = None, compression: Any = Compression.none,
                      op: Optional[int] = None, prescale_factor: float = 1.0,
                      postscale_factor: float = 1.0,
                      process_set: ProcessSet = global_process_set) -> List[torch.Tensor]:
    """Returns new tensors; differentiable."""
    settings = (check_op(op, average), compression, prescale_factor, postscale_factor, process_set,
                len(check_group(tensors)) > 1)
    return _carry(_Allreduce, settings, name, tensors)


def grouped_allreduce_(tensors: Sequence[torch.Tensor], average: Optional[bool] = None,
                       name: Optional[str] = None, op: Optional[int] = None,
                       prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                       process_set: ProcessSet = global_process_set) -> List[torch.Tensor]:
    """Writes the results into the tensors themselves, and returns them."""
    return synchronize(grouped_allreduce_async_(tensors, average, name, op, prescale_factor,
                                                postscale_factor, process_set))


def sparse_allreduce_async(tensor: torch.Tensor, name: str, op: int,
                           process_set: ProcessSet = global_process_set
                           ) -> Callable[[], torch.Tensor]:
    """Returns a function that waits for the sum or average of sparse (COO) tensors of one shape,
    whose numbers of elements may differ."""
    if op not in (Average, Sum):
        raise ValueError("sparse tensors know only Average and Sum")
    require_tensors([tensor])
    source = tensor.coalesce() if not tensor.is_coalesced() else tensor
    indices = allgather_async(source.indices().t().contiguous(), f"{name}.indices", process_set)
    values = allgather_async(source.values().contiguous(), f"{name}.values", process_set)

    def finish() -> torch.Tensor:
        where, what = synchronize(indices), synchronize(values)
        if op == Average:
            what = what / len(process_set.ranks or (0,))
        return torch.sparse_coo_tensor(where.t(), what, tensor.shape, device=what.device).coalesce()

    return finish


def allgather_async(tensor: torch.Tensor, name: Optional[str] = None,
                    process_set: ProcessSet = global_process_set) -> int:
    """Returns a handle for the rows of all ranks, in order of rank; the first dimension may
    differ."""
    return _ops.allgather([tensor], name, process_set=process_set)


def grouped_allgather_async(tensors: Sequence[torch.Tensor], name: Optional[str] = None,
                            process_set: ProcessSet = global_process_set) -> int:
    """Returns a handle for tensors that are gathered together; a list of tensors."""
    return _ops.allgather(tensors, name, grouped=True, process_set=process_set)


class _Allgather(torch.autograd.Function):
    """In backward: the average of all ranks' gradients, of which each takes the rows it brought.
    The tensors of a group travel together both ways."""

    @staticmethod
    def forward(ctx: Any, settings: Tuple[ProcessSet, bool], name: Optional[str],
                *tensors: torch.Tensor) -> Any:
        process_set, grouped = ctx.settings = settings
        ctx.rows = [tensor.shape[0] if tensor.dim() else 0 for tensor in tensors]
        ctx.name = _of_gradient(name)
        result = synchronize(_ops.allgather([tensor.detach() for tensor in tensors], name,
                                            grouped=grouped, process_set=process_set))
        return tuple(result) if grouped else (result,)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        process_set, grouped = ctx.settings
        all_counts = synchronize(allgather_async(torch.tensor([ctx.rows], device="cpu"),
                                                 ctx.name and ctx.name + ".rows", process_set))
        means = _reduce_now([gradient.contiguous() for gradient in gradients], ctx.name,
                            (Average, Compression.none, 1.0, 1.0, process_set, grouped))
        place = (process_set.ranks or []).index(_job.rank())
        begins = all_counts[:place].sum(0).tolist()
        return (None, None, *[mean[begin:begin + rows]
                              for mean, begin, rows in zip(means, begins, ctx.rows)])


def allgather(tensor: torch.Tensor, name: Optional[str] = None,
              process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """Returns a tensor of shape (sum of rows, ...); differentiable."""
    return _carry(_Allgather, (process_set, False), name, [tensor])[0]


def grouped_allgather(tensors: Sequence[torch.Tensor], name: Optional[str] = None,
                      process_set: ProcessSet = global_process_set) -> List[torch.Tensor]:
    """Returns a list; differentiable."""
    return _carry(_Allgather, (process_set, True), name, check_group(tensors))


def broadcast_async(tensor: torch.Tensor, root_rank: int, name: Optional[str] = None,
                    process_set: ProcessSet = global_process_set) -> int:
    """Returns a handle for the tensor of `root_rank`, which counts among all ranks, in a set as
    well."""
    return _ops.broadcast(tensor, root_rank, name, in_place=False, process_set=process_set)


def broadcast_async_(tensor: torch.Tensor, root_rank: int, name: Optional[str] = None,
                     process_set: ProcessSet = global_process_set) -> int:
    """Does broadcast_async into the tensor itself."""
    return _ops.broadcast(tensor, root_rank, name, in_place=True, process_set=process_set)


class _Broadcast(torch.autograd.Function):
    """In backward: the average of all ranks' gradients on the root, zero elsewhere."""

    @staticmethod
    def forward(ctx: Any, settings: Tuple[ProcessSet, int], name: Optional[str],
                tensor: torch.Tensor) -> Any:
        process_set, root = ctx.settings = settings
        ctx.name = _of_gradient(name)
        return (synchronize(broadcast_async(tensor.detach(), root, name, process_set)),)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        process_set, root = ctx.settings
        mean = synchronize(allreduce_async(gradient.contiguous(), name=ctx.name, op=Average,
                                           process_set=process_set))
        return None, None, mean if _job.rank() == root else torch.zeros_like(mean)


def broadcast(tensor: torch.Tensor, root_rank: int, name: Optional[str] = None,
              process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """Returns a new tensor; differentiable."""
    return _carry(_Broadcast, (process_set, root_rank), name, [tensor])[0]


def broadcast_(tensor: torch.Tensor, root_rank: int, name: Optional[str] = None,
               process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """Writes the result into the tensor itself, and returns it."""
    return synchronize(broadcast_async_(tensor, root_rank, name, process_set))


def alltoall_async(tensor: torch.Tensor, splits: Any = None, name: Optional[str] = None,
                   process_set: ProcessSet = global_process_set) -> int:
    """Returns a handle for (rows, received_splits): splits[i] rows go to the set's i-th rank, equal
    parts without splits; received_splits[i] rows came from it."""
    return _ops.alltoall(tensor, splits, name, process_set=process_set)


class _Alltoall(torch.autograd.Function):
    """In backward: the gradients travel back the way the rows came."""

    @staticmethod
    def forward(ctx: Any, settings: Tuple[ProcessSet, Any], name: Optional[str],
                tensor: torch.Tensor) -> Any:
        process_set, splits = settings
        rows, received = synchronize(alltoall_async(tensor.detach(), splits, name, process_set))
        ctx.process_set, ctx.received, ctx.shape = process_set, received, tensor.shape
        ctx.name = _of_gradient(name)
        ctx.mark_non_differentiable(received)
        return rows, received

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, _: Any) -> Any:
        back, _ = synchronize(alltoall_async(gradient.contiguous(), ctx.received, ctx.name,
                                             ctx.process_set))
        if back.shape[0] < ctx.shape[0]:  # the rows that the splits left out
            back = torch.cat([back, back.new_zeros((ctx.shape[0] - back.shape[0], *ctx.shape[1:]))])
        return None, None, back


def alltoall(tensor: torch.Tensor, splits: Any = None, name: Optional[str] = None,
             process_set: ProcessSet = global_process_set) -> Any:
    """Returns the rows, or with splits (rows, received_splits); differentiable."""
    own, home = bring(tensor)
    rows, received = _Alltoall.apply((process_set, splits), name, own)
    rows = rows if home is None else home(rows)
    return rows if splits is None else (rows, received)


def reducescatter_async(tensor: torch.Tensor, name: Optional[str] = None, op: int = Average,
                        process_set: ProcessSet = global_process_set,
                        prescale_factor: float = 1.0, postscale_factor: float = 1.0) -> int:
    """Returns a handle for this rank's rows of the reduced tensor; the first (rows mod n) ranks get
    one row more."""
    return _ops.reducescatter([tensor], name, check_op(op), prescale=prescale_factor,
                              postscale=postscale_factor, process_set=process_set)


def grouped_reducescatter_async(tensors: Sequence[torch.Tensor], name: Optional[str] = None,
                                op: int = Average, process_set: ProcessSet = global_process_set,
                                prescale_factor: float = 1.0,
                                postscale_factor: float = 1.0) -> int:
    """Returns a handle for tensors that are reduced and shared out together; a list of tensors."""
    return _ops.reducescatter(tensors, name, check_op(op), grouped=True, prescale=prescale_factor,
                              postscale=postscale_factor, process_set=process_set)


class _Reducescatter(torch.autograd.Function):
    """In backward: the gradients of all ranks, one after another, scaled as Horovod does: times the
    number of ranks for Sum, and times both factors. The tensors of a group travel together both
    ways."""

    @staticmethod
    def forward(ctx: Any, settings: Tuple[Any, ...], name: Optional[str], *tensors: torch.Tensor
                ) -> Any:
        ctx.settings = settings
        ctx.name = _of_gradient(name)
        op, compression, prescale, postscale, process_set, grouped = settings
        _check_compression(compression)
        wire = _wire(compression, tensors)
        pairs = [(tensor.detach(), None) for tensor in tensors]
        if wire is None:
            pairs = [compression.compress(tensor) for tensor, _ in pairs]
        result = synchronize(_ops.reducescatter(
            [sent for sent, _ in pairs], name, op, grouped=grouped, compression=wire or 0,
            prescale=prescale, postscale=postscale, process_set=process_set))
        results = result if grouped else [result]
        if wire is None:
            results = [compression.decompress(part, context)
                       for part, (_, context) in zip(results, pairs)]
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        op, _, prescale, postscale, process_set, grouped = ctx.settings
        factor = prescale * postscale * (len(process_set.ranks or ()) if op == Sum else 1)
        rows = synchronize(_ops.allgather(
            [(gradient * factor).contiguous() for gradient in gradients], ctx.name,
            grouped=grouped, process_set=process_set))
        return (None, None, *(rows if grouped else [rows]))


def reducescatter(tensor: torch.Tensor, name: Optional[str] = None,
                  compression: Any = Compression.none, op: int = Average,
                  process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0,
                  postscale_factor: float = 1.0) -> torch.Tensor:
    """Returns this rank's rows; differentiable."""
    settings = (check_op(op), compression, prescale_factor, postscale_factor, process_set, False)
    return _carry(_Reducescatter, settings, name, [tensor])[0]


def grouped_reducescatter(tensors: Sequence[torch.Tensor], name: Optional[str] = None,
                          compression: Any = Compression.none, op: int = Average,
                          process_set: ProcessSet = global_process_set,
                          prescale_factor: float = 1.0,
                          postscale_factor: float = 1.0) -> List[torch.Tensor]:
    """Returns a list; differentiable."""
    settings = (check_op(op), compression, prescale_factor, postscale_factor, process_set, True)
    return _carry(_Reducescatter, settings, name, check_group(tensors))
