# SPDX-License-Identifier: Apache-2.0
"""Every collective once, for any array library that an Adapter describes.

A wrong argument is a ValueError at once; a disagreement among ranks is a HorovodInternalError from
synchronize. Arrays stay untouched by their owner from the call until the operation is done.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, List, Optional, Protocol, Sequence, Tuple

from tutti import _basics
from tutti._basics import ProcessSet, Request, Result, global_process_set
from tutti.exceptions import HorovodInternalError


class Adapter(Protocol):
    """Describes the arrays of one library to the package."""

    def bring(self, array: Any, in_place: bool) -> Tuple[Any, Optional[Callable[[Any], Any]]]:
        """Returns the object as an array of the library, and a function that turns results into
        arrays of the object's own library, or None for an object that is an array already.
        ValueError for an object that the library cannot see."""

    def as_real(self, array: Any) -> Any:
        """Returns a contiguous array of complex numbers as their parts, in a last dimension of 2,
        in the same memory. None for other arrays."""

    def as_complex(self, array: Any) -> Any:
        """Undoes the former."""

    def check(self, array: Any, in_place: bool) -> Any:
        """Returns the array, or a contiguous copy where a copy is harmless. ValueError for an array
        that cannot be sent, or cannot be written in place."""

    def type(self, array: Any) -> int:
        """Returns the array's tuttiElementType_t."""

    def shape(self, array: Any) -> Tuple[int, ...]: ...

    def address(self, array: Any) -> int: ...

    def empty(self, shape: Tuple[int, ...], like: Any) -> Any:
        """Returns a new contiguous array of the type of `like`."""

    def copy_in(self, array: Any, data: int) -> None:
        """Fills an array from memory of the library, of the device on which the array lies."""

    def device(self, array: Any) -> int:
        """Returns the CUDA device on which the array lies, -1 for the host."""

    def current_stream(self, array: Any) -> int:
        """Returns the present cudaStream_t of the library of an array on a GPU."""

    def splits(self, splits: Any) -> List[int]:
        """Returns the `splits` argument of alltoall as numbers."""

    def make_splits(self, splits: Sequence[int], like: Any) -> Any:
        """Returns received splits as an array."""


class Collectives:
    """The asynchronous operations on one library's arrays; each returns a handle of `job()`.

    Names are those of Job.enqueue. With `grouped` the arrays travel together or not at all.
    """

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter

    def _open(self, array: Any, in_place: bool = False, rows: bool = False
              ) -> Tuple[Any, Optional[Callable[[Any], Any]], bool]:
        """Returns the parts of an operation for an array of the user's: the array to be sent, a
        function that makes the user's result of the received array, and whether the numbers are
        complex, which travel as pairs. With `rows` the array must have a first dimension."""
        own, home = self._adapter.bring(array, in_place)
        source = self._adapter.check(own, in_place)
        real = self._adapter.as_real(source)
        if real is None:
            return source, home, False
        if rows and not self._adapter.shape(source):
            raise ValueError("a single complex number has no rows to be shared or gathered")
        as_complex = self._adapter.as_complex
        return real, as_complex if home is None else _chain(as_complex, home), True

    def _describe(self, kind: int, array: Any, output: Any, **fields: Any) -> Request:
        adapter = self._adapter
        device = adapter.device(array)
        if device >= 0:
            fields.update(device=device, stream=adapter.current_stream(array),
                          current_stream=functools.partial(adapter.current_stream, array))
        return Request(kind, type=adapter.type(array), shape=adapter.shape(array),
                       input=adapter.address(array),
                       output=0 if output is None else adapter.address(output),
                       keep=(array, output), **fields)

    def _taker(self, array: Any, finish: Optional[Callable[[Any], Any]]) -> Callable[[Result], Any]:
        """Copies a result whose shape was not known beforehand out of the coordinator's memory."""
        def take(result: Result) -> Any:
            made = self._adapter.empty(result.shape, array)
            self._adapter.copy_in(made, result.data)
            return finish(made) if finish else made
        return take

    def allreduce(self, arrays: Sequence[Any], name: Optional[str], op: int, *, in_place: bool,
                  grouped: bool = False, members: Optional[Sequence[str]] = None,
                  compression: int = 0, prescale: float = 1.0, postscale: float = 1.0,
                  process_set: ProcessSet = global_process_set,
                  finish: Optional[Callable[[Any], Any]] = None) -> int:
        """Reduces the arrays element by element over the ranks."""
        scale = _scale(compression, prescale, postscale)
        requests = []
        for array in check_group(arrays):
            source, back, is_complex = self._open(array, in_place)
            _check_complex(is_complex, op)
            target = source if in_place else self._adapter.empty(self._adapter.shape(source), source)
            requests.append(self._describe(
                _basics.ALLREDUCE, source, target, op=op,
                finish=_returns(array if in_place else target, None if in_place else back, finish),
                **scale))
        return _basics.job().enqueue(requests, process_set, name, grouped, members)

    def broadcast(self, array: Any, root: int, name: Optional[str], *, in_place: bool,
                  process_set: ProcessSet = global_process_set) -> int:
        """Gives all ranks the array of rank `root`, a number among all ranks of the job."""
        source, back, _ = self._open(array, in_place)
        target = source if in_place else self._adapter.empty(self._adapter.shape(source), source)
        request = self._describe(
            _basics.BROADCAST, source, target, root=_basics.whole_number(root, "root_rank"),
            finish=_returns(array if in_place else target, None if in_place else back))
        return _basics.job().enqueue([request], process_set, name)

    def allgather(self, arrays: Sequence[Any], name: Optional[str], *, grouped: bool = False,
                  process_set: ProcessSet = global_process_set) -> int:
        """Concatenates the rows of all ranks in the order of ranks. The first dimension may
        differ."""
        requests = []
        for array in check_group(arrays):
            source, back, _ = self._open(array, rows=True)
            requests.append(self._describe(_basics.ALLGATHER, source, None,
                                           finish=self._taker(source, back)))
        return _basics.job().enqueue(requests, process_set, name, grouped)

    def alltoall(self, array: Any, splits: Any, name: Optional[str], *,
                 process_set: ProcessSet = global_process_set) -> int:
        """Sends splits[i] rows to the set's i-th rank, equal parts without splits. The result is
        the rows that came, and how many came from each rank."""
        source, back, _ = self._open(array, rows=True)
        shape = self._adapter.shape(source)
        _basics.job().size()  # raises without a job
        count = len(_basics.check_process_set(process_set).ranks or ())
        if splits is None:
            if not shape or not count or shape[0] % count:
                raise ValueError(f"alltoall without splits: the first dimension of the shape "
                                 f"{shape} cannot be divided among {count} ranks")
            numbers = [shape[0] // count] * count
        else:
            numbers = self._adapter.splits(splits)

        def take(result: Result) -> Any:
            made = self._adapter.empty(result.shape, source)
            self._adapter.copy_in(made, result.data)
            return made if back is None else back(made), \
                self._adapter.make_splits(result.received_splits, source)
        request = self._describe(_basics.ALLTOALL, source, None, splits=numbers, finish=take)
        return _basics.job().enqueue([request], process_set, name)

    def reducescatter(self, arrays: Sequence[Any], name: Optional[str], op: int, *,
                      grouped: bool = False, compression: int = 0, prescale: float = 1.0,
                      postscale: float = 1.0, process_set: ProcessSet = global_process_set,
                      finish: Optional[Callable[[Any], Any]] = None) -> int:
        """Reduces the rows and shares them out; the first dim0 mod n ranks get one row more."""
        if op == _basics.Adasum:
            # Where Horovod refuses Adasum, all ranks have agreed on the operation.
            raise HorovodInternalError("reducescatter knows no Adasum")
        scale = _scale(compression, prescale, postscale)
        requests = []
        for array in check_group(arrays):
            source, back, is_complex = self._open(array, rows=True)
            _check_complex(is_complex, op)
            requests.append(self._describe(
                _basics.REDUCESCATTER, source, None, op=op,
                finish=self._taker(source, _chain(back, finish)),
                **scale))
        return _basics.job().enqueue(requests, process_set, name, grouped)


def _chain(*parts: Optional[Callable[[Any], Any]]) -> Optional[Callable[[Any], Any]]:
    """Applies those functions that are not None, one after another."""
    there = [part for part in parts if part is not None]
    if not there:
        return None

    def whole(value: Any) -> Any:
        for part in there:
            value = part(value)
        return value
    return whole


def _returns(value: Any, *parts: Optional[Callable[[Any], Any]]) -> Callable[[Result], Any]:
    whole = _chain(*parts)
    return lambda result: whole(value) if whole else value


def _check_complex(is_complex: bool, op: int) -> None:
    if is_complex and op not in (_basics.Sum, _basics.Average):
        raise ValueError("complex numbers are reduced by Sum and Average only")


def check_group(arrays: Sequence[Any]) -> Sequence[Any]:
    """Returns the arrays. ValueError for what is no list, or is empty."""
    if not isinstance(arrays, (list, tuple)):
        raise ValueError(f"a group must be a list, not a {type(arrays).__name__}")
    if not arrays:
        raise ValueError("a group has no members")
    return arrays


def _scale(compression: Any, prescale: Any, postscale: Any) -> Dict[str, Any]:
    if isinstance(compression, bool) or compression not in (0, 1, 2):
        raise ValueError(f"compression={compression!r} is none of Compression.none, fp16, bf16")
    return {"compression": compression,
            "prescale": _basics.check_factor(prescale, "prescale_factor"),
            "postscale": _basics.check_factor(postscale, "postscale_factor")}
