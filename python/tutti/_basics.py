# SPDX-License-Identifier: Apache-2.0
"""The job that this process belongs to: beginning, end, who is who, operations under way.

A process has one job at a time, as Horovod's API wants it; `job()` is it, for every array library
alike. Threads: every function may be called from any thread; init, shutdown, add_process_set,
remove_process_set and whatever waits for an operation block, without holding Python's lock.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import itertools
import operator
import os
import threading
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, FrozenSet, Iterable, List, Optional, Sequence, Tuple, Union

from tutti import _elastic, _interrupt, _launch, _library
from tutti.exceptions import HorovodInternalError

# Reduction operators, by Horovod's numbers.
Average, Sum, Adasum, Min, Max, Product = range(6)

# tuttiOpKind_t
ALLREDUCE, ALLGATHER, BROADCAST, ALLTOALL, REDUCESCATTER, BARRIER = range(6)
# So that a job that can never begin (no way between two hosts, say) ends with a sentence.
_ELASTIC_ATTEMPTS = 10
# How often it is asked whether a generation that does not come about was given up.
_LOOK_S = 0.5
KIND_NAMES = ("allreduce", "allgather", "broadcast", "alltoall", "reducescatter", "barrier")


def whole_number(value: Any, what: str) -> int:
    """`value` as an int. ValueError for what is none, a float among it."""
    try:
        return operator.index(value)
    except TypeError:
        raise ValueError(f"{what} must be a whole number, not {value!r}") from None


class ProcessSet:
    """A set of ranks with operations of its own, which wait for no other set's.

    Made by the user from global ranks, and of use once it was given to `init` or
    `add_process_set`. `ranks` is ascending.
    """

    process_set_id: Optional[int] = None

    def __init__(self, ranks: Iterable[int]) -> None:
        numbers = [whole_number(rank, "a rank of a process set") for rank in ranks]
        self.ranks: Optional[List[int]] = sorted(set(numbers))
        if len(self.ranks) != len(numbers):
            raise ValueError(f"a process set names a rank twice: {numbers}")

    def _known(self) -> int:
        if self.process_set_id is None:
            raise ValueError(f"{self} has not been added; use add_process_set or give it to init")
        return self.process_set_id

    def size(self) -> Optional[int]:
        """How many ranks it has; None before it was added."""
        return None if self.process_set_id is None else len(self.ranks or ())

    def rank(self) -> Optional[int]:
        """This process's place in the set; None before it was added. ValueError where this process
        is not in it."""
        if self.process_set_id is None:
            return None
        if not self.included():
            raise ValueError(f"rank {job().rank()} is not in {self}")
        return (self.ranks or []).index(job().rank())

    def included(self) -> Optional[bool]:
        """Whether this process is in the set; None before it was added."""
        return None if self.process_set_id is None else job().rank() in (self.ranks or ())

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"


class _GlobalProcessSet(ProcessSet):
    """All ranks; there before init, when its ranks are not known yet."""
    process_set_id = 0

    def __init__(self) -> None:
        self.ranks = None


global_process_set = _GlobalProcessSet()


def check_process_set(process_set: Any) -> ProcessSet:
    """ValueError for what is no process set, or was not added."""
    if not isinstance(process_set, ProcessSet):
        raise ValueError(f"process_set={process_set!r} is no ProcessSet; see add_process_set")
    process_set._known()
    return process_set


@dataclass
class Request:
    """One operation on one array. It gets its name when it is enqueued. `keep` holds what its
    buffers belong to until it is done; `finish(result)` makes what the user gets."""
    kind: int
    name: str = ""
    type: int = 0
    shape: Tuple[int, ...] = ()
    input: int = 0
    output: int = 0
    op: int = Sum
    compression: int = 0
    prescale: float = 1.0
    postscale: float = 1.0
    root: int = 0
    splits: Optional[Sequence[int]] = None
    # Of an array on a GPU: which, the stream by which it is made, and the stream that is current.
    device: int = _library.HOST
    stream: int = 0
    current_stream: Callable[[], int] = lambda: 0
    keep: Any = None
    finish: Callable[["Result"], Any] = lambda result: None


@dataclass
class Result:
    """What a finished operation left with the coordinator; valid inside `finish` only."""
    data: int
    shape: Tuple[int, ...]
    received_splits: Tuple[int, ...] = ()


@dataclass
class _Entry:
    """What one of the package's handles stands for."""
    coordinator: _Coordinator
    numbers: List[int]
    requests: List[Request]
    grouped: bool
    waiting: threading.Lock = field(default_factory=threading.Lock)


def _tensor(request: Request) -> _library.Tensor:
    shape = (ctypes.c_int64 * len(request.shape))(*request.shape)
    splits = request.splits or ()
    return _library.Tensor(
        size=ctypes.sizeof(_library.Tensor), name=request.name.encode(), kind=request.kind,
        type=request.type, ndim=len(request.shape), shape=shape, input=request.input or None,
        output=request.output or None, op=request.op, compression=request.compression,
        prescale=request.prescale, postscale=request.postscale, root=request.root,
        splits=(ctypes.c_int64 * len(splits))(*splits), nsplits=len(splits),
        device=request.device, stream=request.stream or None)


def _full_name(kind: int, name: Any) -> str:
    if not isinstance(name, str):
        raise ValueError(f"a name must be a string, not {name!r}")
    if "\0" in name:
        raise ValueError(f"a name has a zero character in it: {name!r}")
    return f"{KIND_NAMES[kind]}.{name}"


def _create(options: _library.CoordinatorOptions) -> ctypes.c_void_p:
    """A coordinator; blocks until all ranks have come."""
    pointer = ctypes.c_void_p()
    if _library.load().tuttiCoordinatorCreate(ctypes.byref(pointer), ctypes.byref(options)) != \
            _library.SUCCESS:
        raise ValueError(_library.coordinator_error())
    return pointer


def _create_unless(given_up: Callable[[], bool], options: _library.CoordinatorOptions
                   ) -> ctypes.c_void_p:
    """_create, but GenerationBroken soon after `given_up()`: who waits for a rank that died before it
    came would wait until the library's time for initialising is over. What is left waiting ends by
    itself then."""
    outcome: List[Any] = []
    abandoned = False
    changed = threading.Condition()

    def create() -> None:
        try:
            made: Any = _create(options)
        except ValueError as error:
            made = error
        with changed:
            outcome.append(made)
            changed.notify_all()
            if not abandoned:
                return
        if not isinstance(made, ValueError):
            _library.load().tuttiCoordinatorDestroy(made)

    threading.Thread(target=create, name="tutti-create", daemon=True).start()
    with changed:
        while not changed.wait_for(lambda: bool(outcome), _LOOK_S):
            if given_up():
                abandoned = True
                raise _elastic.GenerationBroken("a worker ended before all had met")
    if isinstance(outcome[0], ValueError):
        raise outcome[0]
    return outcome[0]


class _Coordinator:
    """The C functions on one coordinator, with Python's errors and memory rules."""

    def __init__(self, pointer: ctypes.c_void_p) -> None:
        self._library, self._pointer = _library.load(), pointer
        self._calls = 0  # how many threads are inside the library
        self._closing = False
        self._idle = threading.Condition()
        self._main_waits = False

    def interrupt(self) -> None:
        """Ends the job where the main thread waits for others: whoever waits elsewhere for a rank
        that is being interrupted would wait in vain."""
        if self._main_waits:
            try:
                self.call("Shutdown")
            except HorovodInternalError:
                pass  # it is being closed

    def call(self, function: str, *arguments: Any) -> int:
        """The result of tuttiCoordinator<function>; HorovodInternalError once it was closed."""
        with self._idle:
            if self._closing:
                raise HorovodInternalError("the job was shut down")
            self._calls += 1
        try:
            return getattr(self._library, "tuttiCoordinator" + function)(self._pointer, *arguments)
        finally:
            with self._idle:
                self._calls -= 1
                if self._closing:
                    self._idle.notify_all()

    def ask(self, function: str, *arguments: Any) -> None:
        """`call` for what only a wrong call makes fail: ValueError for that, HorovodInternalError
        for a job that has ended."""
        result = self.call(function, *arguments)
        if result in (_library.INVALID_ARGUMENT, _library.INVALID_USAGE):
            raise ValueError(_library.coordinator_error())
        if result != _library.SUCCESS:
            raise HorovodInternalError(_library.coordinator_error())

    def wait(self, number: int) -> None:
        is_main = threading.current_thread() is threading.main_thread()
        self._main_waits = self._main_waits or is_main
        try:
            if self.call("Wait", number, -1.0) != _library.SUCCESS:
                raise HorovodInternalError(_library.coordinator_error())
        finally:
            self._main_waits = self._main_waits and not is_main

    def integers(self, function: str, number: int, ctype: Any) -> Tuple[int, ...]:
        """A list that the library stores in two steps, length and values."""
        count = ctypes.c_int()
        values = (ctype * 8)()
        self.ask(function, number, values, 8, ctypes.byref(count))
        if count.value > 8:
            values = (ctype * count.value)()
            self.ask(function, number, values, count.value, ctypes.byref(count))
        return tuple(values[:count.value])

    def order_streams(self, number: int, request: Request) -> None:
        """Puts what comes next on the GPU behind the operation; no thread waits. Both streams: the
        array's memory may be used again in the order of the first."""
        current = request.current_stream()
        for stream in dict.fromkeys((request.stream, current)):
            self.ask("StreamWait", number, stream or None)

    def result(self, number: int, request: Request) -> Result:
        if request.device >= 0:
            self.order_streams(number, request)
        if request.kind == BARRIER:
            return Result(0, ())
        data = ctypes.c_void_p()
        self.ask("Output", number, ctypes.byref(data))
        shape = self.integers("OutputShape", number, ctypes.c_int64)
        received: Tuple[int, ...] = ()
        if request.kind == ALLTOALL:
            received = self.integers("ReceivedSplits", number, ctypes.c_int64)
        return Result(data.value or 0, shape, received)

    def close(self) -> None:
        """Ends the job on all ranks, lets the threads inside the library out, and frees it."""
        with self._idle:
            if self._closing:
                return
            self._closing = True
        self._library.tuttiCoordinatorShutdown(self._pointer)
        with self._idle:
            self._idle.wait_for(lambda: self._calls == 0)
        self._library.tuttiCoordinatorDestroy(self._pointer)


def _new_unique_id() -> bytes:
    made = _library.UniqueId()
    if _library.load().ncclGetUniqueId(ctypes.byref(made)) != _library.SUCCESS:
        raise ValueError(_library.nccl_error(None))
    return bytes(made)


class Job:
    """See the module. Not made by users: `job()`."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._coordinator: Optional[_Coordinator] = None
        self._launch = _launch.Launch()
        self._hosts: List[str] = []
        self._entries: Dict[int, _Entry] = {}
        # By number; more than one where init was given an equal set.
        self._process_sets: Dict[int, List[ProcessSet]] = {}
        self._next_handle = itertools.count(1)
        self._abandoned: FrozenSet[int] = frozenset()  # handles of the job that was shut down last
        # How many operations without a name there were, by set and kind: ranks count alike what
        # they take part in, whatever else some of them do.
        self._noname: Dict[Tuple[int, int], int] = {}
        self._naming = threading.Lock()
        self._interrupter = _interrupt.Interrupter(self._on_interrupt)

    def _on_interrupt(self) -> None:
        coordinator = self._coordinator
        if coordinator is not None:
            coordinator.interrupt()

    # Beginning and end

    def init(self, comm: Any = None,
             process_sets: Union[None, str, Sequence[ProcessSet]] = None) -> None:
        """Finds the other ranks that the launcher started; all of them call it, and it returns when
        all have. Where the job runs already it only adds those of `process_sets` that are not there
        yet; one with the ranks of one that is there becomes the same.

        comm: a list of the launcher's ranks that alone make up the job, numbered in this order, the
        same on all of them; the others do not call init, or begin a job of their own. Or a
        communicator of mpi4py, whose ranks make up the job.
        process_sets: None, "dynamic" (sets come later; they always may), or a list of ProcessSet,
        the same on all ranks. ValueError, in a sentence, when it fails; it may be tried again.
        """
        if isinstance(process_sets, str) and process_sets.lower() != "dynamic":
            raise ValueError(f'process_sets is "{process_sets}", not a list or "dynamic"')
        with self._lock:
            if self._coordinator is None:
                self._begin(comm)
            if process_sets is None or isinstance(process_sets, str):
                return
            for process_set in process_sets:
                if not self._is_known(process_set):
                    self.add_process_set(process_set)

    def _begin(self, comm: Any) -> None:
        if comm is not None and _elastic.is_elastic():
            raise ValueError("the launcher of an elastic job chooses its ranks; comm must be None")
        if hasattr(comm, "Get_rank"):
            return self._begin_by_mpi(comm)
        if not _elastic.is_elastic():
            launch = _launch.read()
            if comm is not None:
                launch = _launch.part(launch, comm)
            unique_id = _new_unique_id() if launch.rank == 0 else bytes(_library.UNIQUE_ID_BYTES)
            try:
                meeting = _launch.meet(launch, unique_id)
            except OSError as error:
                raise ValueError(f"the ranks did not meet: {error}") from error
            return self._begin_with(launch, meeting.hosts, meeting.unique_id)
        for attempt in range(_ELASTIC_ATTEMPTS):
            # A worker that dies while the others begin costs them this generation, not the job.
            try:
                return self._begin_generation()
            except (ValueError, _elastic.GenerationBroken) as error:
                failure = error
        raise ValueError(f"{_ELASTIC_ATTEMPTS} generations in a row could not begin; the last: "
                         f"{failure}") from failure

    def _begin_by_mpi(self, comm: Any) -> None:
        rank, host = comm.Get_rank(), _launch.read().host
        unique_id = comm.bcast(_new_unique_id() if rank == 0 else None, root=0)
        self._begin_with(_launch.Launch(rank, comm.Get_size(), "mpi", host), comm.allgather(host),
                         unique_id)

    def _begin_generation(self) -> None:
        launcher = _elastic.launcher()
        generation = launcher.join()
        rank, hosts = launcher.rank(), generation.hosts
        unique_id = launcher.share(_new_unique_id() if rank == 0 else None)
        self._begin_with(_launch.Launch(rank, len(hosts), "elastic", hosts[rank]), hosts, unique_id,
                         functools.partial(_create_unless, launcher.is_broken))

    def _begin_with(self, launch: _launch.Launch, hosts: List[str], made: bytes,
                    create: Callable[[Any], ctypes.c_void_p] = _create) -> None:
        self._launch, self._hosts = launch, hosts
        # Not .internal: ctypes ends a char array at its first zero byte.
        unique_id = _library.UniqueId.from_buffer_copy(made)
        options = _library.CoordinatorOptions(
            size=ctypes.sizeof(_library.CoordinatorOptions), id=ctypes.pointer(unique_id),
            rank=launch.rank, nranks=launch.size, local_rank=self._place("local_rank"),
            local_size=self._place("local_size"), cross_rank=self._place("cross_rank"),
            cross_size=self._place("cross_size"))
        self._coordinator = _Coordinator(create(options))
        self._interrupter.install()
        self._noname = {}
        global_process_set.ranks = list(range(launch.size))
        self._process_sets = {0: [global_process_set]}

    def shutdown(self) -> None:
        """Ends the job on all ranks; what is pending anywhere fails. Does nothing where there is
        none."""
        with self._lock:
            coordinator, self._coordinator = self._coordinator, None
            self._interrupter.release()
            if coordinator is None:
                return
            for number in list(self._process_sets):
                self._drop(number)
            global_process_set.ranks = None
            # The buffers go last: until then the library may be at work on them.
            entries, self._entries = self._entries, {}
            self._abandoned = frozenset(entries)
        coordinator.close()
        entries.clear()

    def forget(self) -> None:
        """In the child of a fork: the job and the threads that serve it are the parent's, and to
        end it here would wait for threads that are not there."""
        self._lock, self._naming = threading.RLock(), threading.Lock()
        self._interrupter.forget()
        self._left, self._coordinator = self._coordinator, None  # kept, so that nothing ends it
        self._entries, self._process_sets = {}, {}
        global_process_set.ranks = None

    def is_initialized(self) -> bool:
        """Whether init was done and shutdown not yet."""
        return self._coordinator is not None

    def _running(self) -> _Coordinator:
        coordinator = self._coordinator
        if coordinator is None:
            raise ValueError("Tutti has not been initialized; use hvd.init().")
        return coordinator

    # Who is who

    def _place(self, what: str) -> int:
        hosts, rank = self._hosts, self._launch.rank
        mine = hosts[rank]
        if what == "local_rank":
            return hosts[:rank].count(mine)
        if what == "local_size":
            return hosts.count(mine)
        # Ranks of other hosts that have my local rank: Horovod's cross communicator.
        local_rank = hosts[:rank].count(mine)
        first_seen = list(dict.fromkeys(hosts))
        reaching = [host for host in first_seen if hosts.count(host) > local_rank]
        return reaching.index(mine) if what == "cross_rank" else len(reaching)

    def rank(self) -> int:
        """This process's number among all ranks, from 0."""
        self._running()
        return self._launch.rank

    def size(self) -> int:
        """The number of ranks."""
        self._running()
        return self._launch.size

    def local_rank(self) -> int:
        """This process's number among the ranks of its host."""
        self._running()
        return self._place("local_rank")

    def local_size(self) -> int:
        """The number of ranks of this host."""
        self._running()
        return self._place("local_size")

    def cross_rank(self) -> int:
        """This host's number among the hosts that have a rank with this local rank."""
        self._running()
        return self._place("cross_rank")

    def cross_size(self) -> int:
        """The number of hosts that have a rank with this local rank."""
        self._running()
        return self._place("cross_size")

    def is_homogeneous(self) -> bool:
        """Whether all hosts have equally many ranks."""
        self._running()
        return len({self._hosts.count(host) for host in set(self._hosts)}) == 1

    # Process sets

    def _find(self, ranks: Optional[List[int]]) -> Optional[int]:
        """The number of the user's set of these ranks."""
        return next((number for number, sets in self._process_sets.items()
                     if number != 0 and sets[0].ranks == ranks), None)

    def _is_known(self, process_set: Any) -> bool:
        if not isinstance(process_set, ProcessSet):
            return False
        number = self._find(process_set.ranks)
        if number is None:
            return False
        if process_set.process_set_id is None:
            process_set.process_set_id = number
            self._process_sets[number].append(process_set)
        return process_set.process_set_id == number

    def _drop(self, number: int) -> None:
        for process_set in self._process_sets.pop(number, []):
            if process_set is not global_process_set:
                process_set.process_set_id = None

    def add_process_set(self, process_set: Union[ProcessSet, Sequence[int]]) -> ProcessSet:
        """Every rank of the job calls it with the same ranks. ValueError for ranks that are not
        there or a set that was added before."""
        if not isinstance(process_set, ProcessSet):
            process_set = ProcessSet(process_set)
        if process_set.process_set_id is not None:
            raise ValueError(f"{process_set} was added before")
        ranks = process_set.ranks or []
        if not ranks or ranks[0] < 0 or ranks[-1] >= self.size():
            raise ValueError(f"{process_set} does not consist of ranks from 0 to {self.size() - 1}")
        known = self._find(ranks)
        if known is not None:
            raise ValueError(f"{self._process_sets[known][0]} has the same ranks already")
        number = ctypes.c_int()
        self._running().ask("AddProcessSet", (ctypes.c_int * len(ranks))(*ranks), len(ranks),
                            ctypes.byref(number))
        process_set.process_set_id = number.value
        self._process_sets[number.value] = [process_set]
        return process_set

    def remove_process_set(self, process_set: ProcessSet) -> bool:
        """Every rank of the job calls it. False where the set was not added, or is that of all."""
        number = process_set.process_set_id
        if number is None or process_set is global_process_set:
            return False
        self._running().ask("RemoveProcessSet", number)
        self._drop(number)
        self._noname = {key: n for key, n in self._noname.items() if key[0] != number}
        return True

    def process_set_ids(self) -> List[int]:
        """The numbers of the sets that there are."""
        self._running()
        return sorted(self._process_sets)

    # Operations

    def enqueue(self, requests: Sequence[Request], process_set: ProcessSet = global_process_set,
                name: Optional[str] = None, grouped: bool = False,
                members: Optional[Sequence[str]] = None) -> int:
        """A handle for all of the requests, of one kind; with `grouped` they run together or not at
        all. They are called `<op>.<name>`, `<op>.noname.<n>` without one; those of a group
        `<op>.<name>_<i>`, or by the names of `members`."""
        coordinator = self._running()
        number = check_process_set(process_set)._known()
        kind, count = requests[0].kind, len(requests)
        # What fails here is not counted, since the other ranks may not have called it.
        naming: Any = self._naming if name is None else contextlib.nullcontext()
        with naming:
            counted = self._noname.get((number, kind), 0) + 1
            base = _full_name(kind, f"noname.{counted}" if name is None else name)
            for i, request in enumerate(requests):
                request.name = _full_name(kind, members[i]) if members else \
                    f"{base}_{i + 1}" if grouped else base
            tensors = (_library.Tensor * count)(*[_tensor(request) for request in requests])
            numbers = (ctypes.c_int64 * count)()
            coordinator.ask("Enqueue", number, tensors, count, base.encode() if grouped else None,
                            numbers)
            if name is None:
                self._noname[number, kind] = counted
        handle = next(self._next_handle)
        self._entries[handle] = _Entry(coordinator, list(numbers), list(requests), grouped)
        return handle

    def _entry(self, handle: int) -> _Entry:
        entry = self._entries.get(handle) if isinstance(handle, int) else None
        if entry is not None:
            return entry
        if isinstance(handle, int) and handle in self._abandoned:
            raise HorovodInternalError("the job was shut down before the operation was done")
        self._running()
        raise ValueError(f"there is no handle {handle}, or it was synchronized before")

    def poll(self, handle: int) -> bool:
        """Whether the operation is done, so that synchronize does not wait. Never waits."""
        entry, done = self._entry(handle), ctypes.c_int()
        for number in entry.numbers:
            entry.coordinator.ask("Poll", number, ctypes.byref(done))
            if not done.value:
                return False
        return True

    def synchronize(self, handle: int) -> Any:
        """Waits for the operation and gives its result, a list for a group; the handle is gone
        after it. HorovodInternalError when the operation failed. Ctrl-C (KeyboardInterrupt) ends
        the job on all ranks."""
        entry = self._entry(handle)
        coordinator = entry.coordinator
        with entry.waiting:
            self._entry(handle)
            try:
                # All of them, so that no buffer goes while the library still writes to it.
                error: Optional[HorovodInternalError] = None
                for number in entry.numbers:
                    try:
                        coordinator.wait(number)
                    except HorovodInternalError as failed:
                        error = error or failed
                if error is not None:
                    raise error
                results = [request.finish(coordinator.result(number, request))
                           for number, request in zip(entry.numbers, entry.requests)]
            except Exception:
                self._release(handle, entry)
                raise
            # After any other exception (KeyboardInterrupt) the library may still be at work on the
            # buffers; they stay until the job is shut down.
            self._release(handle, entry)
        return results if entry.grouped else results[0]

    def _release(self, handle: int, entry: _Entry) -> None:
        self._entries.pop(handle, None)
        try:
            for number in entry.numbers:
                entry.coordinator.call("Release", number)
        except HorovodInternalError:
            pass  # closed meanwhile, and everything freed with it

    def barrier(self, process_set: ProcessSet = global_process_set) -> None:
        """Waits until all ranks of the set have come here."""
        self.synchronize(self.enqueue([Request(BARRIER)], process_set))

    def join(self) -> int:
        """This rank brings nothing more, and stands in for the others' operations with neutral
        elements until all have joined. Returns the rank that joined last."""
        coordinator, number, last = self._running(), ctypes.c_int64(), ctypes.c_int()
        coordinator.ask("Join", 0, ctypes.byref(number))
        try:
            coordinator.wait(number.value)
            coordinator.ask("LastJoined", number.value, ctypes.byref(last))
        finally:
            coordinator.call("Release", number.value)
        return last.value

    # Watching

    def start_timeline(self, file_path: str, mark_cycles: bool = False) -> None:
        """Writes what happens to `file_path` on rank 0, `file_path`.N on rank N, as Chrome-trace
        JSON. ValueError where one is written already, or the file cannot be."""
        self._running().ask("StartTimeline", os.fsencode(file_path), int(mark_cycles))

    def stop_timeline(self) -> None:
        """Ends the file. ValueError where none is written."""
        self._running().ask("StopTimeline")

    def counter(self, name: str, process_set: ProcessSet = global_process_set) -> int:
        """A number of the set: rounds, negotiated_rounds, rings, batches, tensors, cached."""
        value = ctypes.c_uint64()
        self._running().ask("Counter", process_set._known(), name.encode(), ctypes.byref(value))
        return value.value


@functools.lru_cache(maxsize=None)
def job() -> Job:
    """This process's job, whether it runs or not."""
    made = Job()
    if _elastic.is_elastic():
        # Registered first, called last.
        atexit.register(lambda: _elastic.launcher().close()
                        if _elastic.launcher.cache_info().currsize else None)
    atexit.register(made.shutdown)
    os.register_at_fork(after_in_child=made.forget)
    return made


# Horovod's functions, for every array library alike.
_job = job()
init = _job.init
shutdown = _job.shutdown
is_initialized = _job.is_initialized
rank = _job.rank
size = _job.size
local_rank = _job.local_rank
local_size = _job.local_size
cross_rank = _job.cross_rank
cross_size = _job.cross_size
is_homogeneous = _job.is_homogeneous
add_process_set = _job.add_process_set
remove_process_set = _job.remove_process_set
start_timeline = _job.start_timeline
stop_timeline = _job.stop_timeline
barrier = _job.barrier
poll = _job.poll
synchronize = _job.synchronize


def check_factor(factor: Any, what: str) -> float:
    """ValueError for what is no number."""
    try:
        return float(factor)
    except (TypeError, ValueError):
        raise ValueError(f"{what} must be a number, not {factor!r}") from None


def check_op(op: Optional[int], average: Optional[bool] = None) -> int:
    """The operator that `op` and Horovod's old `average` mean together."""
    import warnings
    if average is not None:
        if op is not None:
            raise ValueError("give either op or average, not both; average is the older name")
        warnings.warn("average is deprecated; use op=Average or op=Sum", DeprecationWarning,
                      stacklevel=4)
        return Average if average else Sum
    if op is None:
        return Average
    if isinstance(op, bool) or op not in range(6):
        raise ValueError(f"there is no reduction operator {op!r}; there are Average, Sum, Adasum, "
                         "Min, Max and Product")
    return int(op)


# What the package was built with, by Horovod's names.

def mpi_threads_supported() -> bool:
    """Whether MPI may be used by several threads: the modules for it start it so."""
    return mpi_built()


def _asked_for(name: str) -> bool:
    return name in os.environ.get("HOROVOD_CONTROLLER", "").split(",")


def mpi_enabled() -> bool:
    """Whether HOROVOD_CONTROLLER asks for MPI and a module for it is there; else ranks negotiate by
    Tutti's own means."""
    return mpi_built() and _asked_for("mpi")


def mpi_built() -> bool:
    """Whether a module for MPI (libtutti_openmpi.so or libtutti_mpich.so) lies beside libtutti."""
    return _library.has_module("openmpi") or _library.has_module("mpich")


def gloo_enabled() -> bool:
    """As mpi_enabled, for Gloo."""
    return gloo_built() and _asked_for("gloo")


def gloo_built() -> bool:
    """Whether the module for Gloo (libtutti_gloo.so) lies beside libtutti."""
    return _library.has_module("gloo")


def nccl_built() -> int:
    """The version of NCCL's API that the library offers (as 22903), as ncclGetVersion tells it."""
    version = ctypes.c_int()
    _library.load().ncclGetVersion(ctypes.byref(version))
    return version.value


def ddl_built() -> bool:
    """False."""
    return False


def ccl_built() -> bool:
    """False."""
    return False


def cuda_built() -> bool:
    """Whether CUDA's driver is here, so that tensors may lie on a GPU."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def rocm_built() -> bool:
    """False."""
    return False
