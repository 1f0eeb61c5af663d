# SPDX-License-Identifier: Apache-2.0
"""The job that this process belongs to: its beginning and end, its ranks, and its operations.

A process has one job at a time, as Horovod's API wants it, and `job()` returns it for every array
library alike. Threads: every function may be called from any thread; init, shutdown,
add_process_set, remove_process_set and whatever waits for an operation block, without holding
Python's lock.

The modules for array libraries import from here what they offer.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import threading
import warnings
from typing import Any, Callable, Dict, List, Optional, Sequence, Union

from tutti import _elastic, _horovod_launcher, _identity, _interrupt, _launch, _library
from tutti._arguments import (Adasum, Average, Max, Min, Product, Sum, check_factor, check_op,
                              whole_number)
from tutti._features import (ccl_built, cuda_built, ddl_built, gloo_built, gloo_enabled, mpi_built,
                             mpi_enabled, mpi_threads_supported, nccl_built, rocm_built)
from tutti._making import create_unless
from tutti._operations import (ALLGATHER, ALLREDUCE, ALLTOALL, BARRIER, BROADCAST, REDUCESCATTER,
                               Coordinator, Operations, Request, Result)
from tutti._process_sets import ProcessSet, check_process_set, global_process_set

# A job that can never begin, such as for want of a way between two hosts, ends with a sentence.
_ELASTIC_ATTEMPTS = 10
_INT64 = 5  # tuttiElementType_t


# Begins rank 0's reason for having no unique id, in the id's place: the other ranks must not wait.
_FAILED = b"failed: "


def _offer_id() -> bytes:
    """Returns an id for all ranks, or the reason why there is none."""
    made = _library.UniqueId()
    if _library.load().ncclGetUniqueId(ctypes.byref(made)) != _library.SUCCESS:
        return _FAILED + _library.nccl_error(None).encode()
    return bytes(made)


def _take_id(offered: bytes) -> Any:
    if offered.startswith(_FAILED):
        raise ValueError(f"rank 0 cannot begin: {offered[len(_FAILED):].decode(errors='replace')}")
    if len(offered) != _library.UNIQUE_ID_BYTES:
        raise ValueError(f"rank 0 handed round {len(offered)} bytes and no unique id: it runs another "
                         "program")
    # The whole struct is copied, because ctypes ends a char array at its first zero byte.
    return _library.UniqueId.from_buffer_copy(offered)


class Job:
    """See the module. Users do not make one; `job()` returns it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._coordinator: Optional[Coordinator] = None
        self._rank = 0
        self._began_before = False  # under Horovod's elastic launcher
        self._places: List[_launch.Place] = []  # by rank
        # The sets by number. A number has several objects where init was given an equal set again.
        self._process_sets: Dict[int, List[ProcessSet]] = {}
        self._operations = Operations(self._running)
        self._interrupter = _interrupt.Interrupter(self._on_interrupt)

    def _on_interrupt(self) -> None:
        coordinator = self._coordinator
        if coordinator is not None:
            coordinator.interrupt()

    # Beginning and end of the job

    def init(self, comm: Any = None,
             process_sets: Union[None, str, Sequence[ProcessSet]] = None) -> None:
        """Finds the other ranks that the launcher started; all of them call it, and it returns when
        all have. Where the job runs already it only adds those of `process_sets` that are not there
        yet; one with the ranks of one that is there becomes the same.

        comm: a list of the launcher's ranks that alone make up the job, numbered in this order, the
        same on all of them; the others do not call init, or begin a job of their own. Or a
        communicator of mpi4py, whose ranks make up the job.
        process_sets: None, "dynamic" (sets come later; they always may), or a list of ProcessSet,
        the same on all ranks, none of them with the ranks of another or of the whole job.
        ValueError, in a sentence, when it fails; it may be tried again.
        """
        if isinstance(process_sets, str) and process_sets.lower() != "dynamic":
            raise ValueError(f'process_sets is "{process_sets}", not a list or "dynamic"')
        with self._lock:
            if self._coordinator is None:
                self._begin(comm)
            if process_sets is None or isinstance(process_sets, str):
                return
            self._begin_sets(process_sets)

    def _begin_sets(self, process_sets: Sequence[Any]) -> None:
        """Adds the missing sets; none of them where two sets are the same."""
        made = [process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
                for process_set in process_sets]
        seen: List[Any] = [global_process_set.ranks]
        doubled: List[int] = []
        for process_set in made:
            ranks, comm = process_set.ranks, process_set.mpi_comm
            if ranks is None and comm:  # COMM_NULL, which this rank is not in, is false.
                ranks = sorted(comm.allgather(self.rank()))
            if ranks is not None:
                doubled = doubled or (ranks if ranks in seen else [])
                seen.append(ranks)
        # Communicators, and therefore the findings, may differ from rank to rank.
        by_mpi = any(process_set.mpi_comm is not None for process_set in made)
        refused = any(self.tell_all([int(bool(doubled))], "tutti.doubled_sets")) if by_mpi else False
        if doubled:
            raise ValueError(f"process_sets has two sets of the ranks {doubled}, or one of all ranks, "
                             "which there is anyway; no set was added")
        if refused:
            warnings.warn("process_sets has two sets of the same ranks on another rank; no set was "
                          "added", stacklevel=3)
            return
        for process_set in made:
            if not self._is_known(process_set):
                self.add_process_set(process_set)

    def _begin(self, comm: Any) -> None:
        if comm is not None and _elastic.ranks_may_change():
            raise ValueError("the launcher of an elastic job chooses its ranks; comm must be None")
        if hasattr(comm, "Get_rank"):
            return self._begin_by_mpi(comm)
        if not _elastic.ranks_may_change():
            return self._begin_by_launcher(comm)
        for _ in range(_ELASTIC_ATTEMPTS):
            # A worker that dies while the others begin costs them this generation, not the job.
            try:
                return self._begin_generation() if _elastic.is_elastic() else \
                    self._begin_by_horovods_launcher()
            except (ValueError, _elastic.GenerationBroken) as error:
                failure = error
        raise ValueError(f"{_ELASTIC_ATTEMPTS} generations in a row could not begin; the last: "
                         f"{failure}") from failure

    def _begin_by_launcher(self, comm: Optional[Sequence[int]]) -> None:
        launch = _launch.read()
        if comm is not None:
            launch = launch.part(comm)
        try:
            meeting = launch.meet(_offer_id() if launch.rank == 0 else b"")
        except OSError as error:
            raise ValueError(f"the ranks did not meet: {error}") from error
        self._begin_with(launch.rank, meeting.places, meeting.unique_id)

    def _begin_by_horovods_launcher(self) -> None:
        # The numbers in the environment are those of the first time.
        if self._began_before:
            try:
                _horovod_launcher.renew_numbers()
            except OSError as error:
                raise ValueError(f"Horovod's launcher cannot be asked: {error}") from error
        self._began_before = True
        self._begin_by_launcher(None)

    def _begin_by_mpi(self, comm: Any) -> None:
        rank = comm.Get_rank()
        unique_id = comm.bcast(_offer_id() if rank == 0 else None, root=0)
        machines = comm.allgather(_launch.machine())
        self._begin_with(rank, _launch.count_places(machines), unique_id)
        global_process_set.mpi_comm = comm

    def _begin_generation(self) -> None:
        launcher = _elastic.launcher()
        generation = launcher.join()
        rank = launcher.rank()
        unique_id = launcher.share(_offer_id() if rank == 0 else None)
        places = _launch.count_places(generation.hosts)
        self._begin_with(rank, places, unique_id, launcher.is_broken)
        _elastic.tell_environment(rank, len(places), places[rank])

    def _begin_with(self, rank: int, places: List[_launch.Place], offered: bytes,
                    given_up: Callable[[], bool] = lambda: False) -> None:
        unique_id = _take_id(offered)
        mine = places[rank]
        options = _library.CoordinatorOptions(
            size=ctypes.sizeof(_library.CoordinatorOptions), id=ctypes.pointer(unique_id),
            rank=rank, nranks=len(places), local_rank=mine.local_rank, local_size=mine.local_size,
            cross_rank=mine.cross_rank, cross_size=mine.cross_size)
        self._coordinator = Coordinator(create_unless(given_up, options))
        self._places, self._rank = places, rank
        _identity.begin(rank)
        self._interrupter.install()
        self._operations.begin()
        global_process_set.ranks = list(range(len(places)))
        self._process_sets = {0: [global_process_set]}

    def shutdown(self) -> None:
        """Ends the job on all ranks; all pending operations fail. Does nothing without a job."""
        with self._lock:
            coordinator, self._coordinator = self._coordinator, None
            _identity.end()
            self._interrupter.release()
            if coordinator is None:
                return
            for number in list(self._process_sets):
                self._drop(number)
            global_process_set.ranks = global_process_set.mpi_comm = None
            # The buffers are dropped last, because the library may use them until the end.
            entries = self._operations.abandon()
        coordinator.close()
        entries.clear()

    def forget(self) -> None:
        """Forgets the job, in the child of a fork. Job and threads are the parent's; an end of the
        job here would wait for threads that the child does not have."""
        self._lock = threading.RLock()
        self._operations.forget()
        self._interrupter.forget()
        _elastic.forget()
        # Kept, because its destructor must not run.
        self._left, self._coordinator = self._coordinator, None
        self._process_sets = {}
        _identity.end()
        global_process_set.ranks = global_process_set.mpi_comm = None

    def is_initialized(self) -> bool:
        """Returns whether init was done and shutdown was not."""
        return self._coordinator is not None

    def _running(self) -> Coordinator:
        coordinator = self._coordinator
        if coordinator is None:
            raise ValueError("Tutti has not been initialized; use hvd.init().")
        return coordinator

    # The ranks

    def _place(self) -> _launch.Place:
        self._running()
        return self._places[self._rank]

    def rank(self) -> int:
        """Returns this process's number among all ranks, from 0."""
        self._running()
        return self._rank

    def size(self) -> int:
        """Returns the number of ranks."""
        self._running()
        return len(self._places)

    def local_rank(self) -> int:
        """Returns this process's number among the ranks of its host."""
        return self._place().local_rank

    def local_size(self) -> int:
        """Returns the number of ranks of this host."""
        return self._place().local_size

    def cross_rank(self) -> int:
        """Returns this host's number among the hosts that have a rank with this local rank."""
        return self._place().cross_rank

    def cross_size(self) -> int:
        """Returns the number of hosts that have a rank with this local rank."""
        return self._place().cross_size

    def is_homogeneous(self) -> bool:
        """Returns whether all hosts have equally many ranks."""
        self._running()
        return len({place.local_size for place in self._places}) == 1

    # Process sets

    def _find(self, ranks: Optional[List[int]]) -> Optional[int]:
        """Returns the number of the user's set of these ranks, or None."""
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
        """Adds a process set and returns the set. Every rank of the job must call with the same
        ranks, or each with a communicator of mpi4py that contains the rank (or COMM_NULL); the
        communicators may differ, and all of them become sets. ValueError for ranks outside the job
        or a set that was added before."""
        if not isinstance(process_set, ProcessSet):
            process_set = ProcessSet(process_set)
        if process_set.process_set_id is not None:
            raise ValueError(f"{process_set} was added before")
        if process_set.ranks is None and process_set.mpi_comm is not None:
            return self._add_by_mpi(process_set)
        return self._add(process_set)

    def _add(self, process_set: ProcessSet) -> ProcessSet:
        ranks = process_set.ranks or []
        if not ranks or ranks[0] < 0 or ranks[-1] >= self.size():
            raise ValueError(f"{process_set} does not consist of ranks from 0 to {self.size() - 1}")
        known = self._find(ranks)
        if known is not None:
            raise ValueError(f"{self._process_sets[known][0]} has the same ranks already")
        number = ctypes.c_int()
        self._running().ask_ranks("AddProcessSet", (ctypes.c_int * len(ranks))(*ranks), len(ranks),
                                  ctypes.byref(number))
        process_set.process_set_id = number.value
        self._process_sets[number.value] = [process_set]
        return process_set

    def _add_by_mpi(self, process_set: ProcessSet) -> ProcessSet:
        """Adds the sets of all ranks' communicators, in the same order on all ranks, and returns
        this rank's."""
        comm = process_set.mpi_comm
        mine = tuple(sorted(comm.allgather(self.rank()))) if comm else ()
        told, members = self.tell_all(
            [len(mine), *mine], "tutti.process_sets"), set()
        while told:
            count = told[0]
            members.add(tuple(told[1:count + 1]))
            told = told[count + 1:]
        for ranks in sorted(members - {()}):
            made = process_set if ranks == mine else ProcessSet(ranks)
            made.ranks = list(ranks)
            if not self._is_known(made):
                self._add(made)
        return process_set

    def tell_all(self, numbers: Sequence[int], name: str) -> List[int]:
        """Returns the numbers of all ranks, one rank's after another's. All ranks must call. Needs
        no array library."""
        said = (ctypes.c_int64 * len(numbers))(*numbers)

        def take(result: Result) -> List[int]:
            return list((ctypes.c_int64 * result.shape[0]).from_address(result.data))
        return self.synchronize(self.enqueue(
            [Request(ALLGATHER, type=_INT64, shape=(len(numbers),), input=ctypes.addressof(said),
                     keep=said, finish=take)], name=name))

    def remove_process_set(self, process_set: ProcessSet) -> bool:
        """Removes a process set. Every rank of the job must call. Returns False for a set that was
        not added, and for the set of all ranks."""
        number = process_set.process_set_id
        if number is None or process_set is global_process_set:
            return False
        self._running().ask_ranks("RemoveProcessSet", number)
        self._drop(number)
        self._operations.forget_set(number)
        return True

    def process_set_ids(self) -> List[int]:
        """Returns the numbers of the present sets."""
        self._running()
        return sorted(self._process_sets)

    def process_set_ids_and_ranks(self) -> Dict[int, List[int]]:
        """Returns the ranks of the present sets, by their numbers."""
        return {number: list(self._process_sets[number][0].ranks or ())
                for number in self.process_set_ids()}

    # Operations

    def enqueue(self, requests: Sequence[Request], process_set: ProcessSet = global_process_set,
                name: Optional[str] = None, grouped: bool = False,
                members: Optional[Sequence[str]] = None) -> int:
        """Asks for the requests, which must be of one kind, and returns a handle for all of them;
        see Operations.enqueue."""
        coordinator = self._running()
        number = check_process_set(process_set)._known()
        return self._operations.enqueue(coordinator, number, requests, name, grouped, members)

    def poll(self, handle: int) -> bool:
        """Returns whether the operation is done, and synchronize does not wait. Never waits."""
        return self._operations.poll(handle)

    def synchronize(self, handle: int) -> Any:
        """Waits for the operation and returns its result, a list for a group. The handle is gone
        after it, and a second call returns None. HorovodInternalError when the operation failed.
        Ctrl-C (KeyboardInterrupt) ends the job on all ranks."""
        return self._operations.synchronize(handle)

    def barrier(self, process_set: ProcessSet = global_process_set) -> None:
        """Waits until all ranks of the set have come here."""
        self.synchronize(self.enqueue([Request(BARRIER)], process_set))

    def join(self) -> int:
        """Says that this rank has no more data, and takes part in the others' operations with
        neutral elements until all have joined. Returns the rank that joined last."""
        coordinator, number, last = self._running(), ctypes.c_int64(), ctypes.c_int()
        coordinator.ask("Join", 0, ctypes.byref(number))
        try:
            coordinator.wait(number.value)
            coordinator.ask("LastJoined", number.value, ctypes.byref(last))
        finally:
            coordinator.call("Release", number.value)
        return last.value

    # Timeline and counters

    def start_timeline(self, file_path: str, mark_cycles: bool = False) -> None:
        """Begins to write a timeline as Chrome-trace JSON, to `file_path` on rank 0 and to
        `file_path`.N on rank N. ValueError where one is being written, or the file cannot be."""
        self._running().ask("StartTimeline", os.fsencode(file_path), int(mark_cycles))

    def stop_timeline(self) -> None:
        """Ends the timeline. ValueError where none is being written."""
        self._running().ask("StopTimeline")

    def counter(self, name: str, process_set: ProcessSet = global_process_set) -> int:
        """Returns a counter of the set: rounds, negotiated_rounds, rings, batches, tensors,
        cached."""
        value = ctypes.c_uint64()
        self._running().ask("Counter", process_set._known(), name.encode(), ctypes.byref(value))
        return value.value


@functools.lru_cache(maxsize=None)
def job() -> Job:
    """Returns this process's job, whether it runs or not."""
    made = Job()
    if _elastic.is_elastic():
        # The function registered first is called last.
        atexit.register(lambda: _elastic.launcher().close()
                        if _elastic.launcher.cache_info().currsize else None)
    atexit.register(made.shutdown)
    os.register_at_fork(after_in_child=made.forget)
    return made


# Horovod's functions, which are the same for every array library.
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
# Horovod's own tests ask for the sets by this name.
_get_process_set_ids_and_ranks = _job.process_set_ids_and_ranks
start_timeline = _job.start_timeline
stop_timeline = _job.stop_timeline
barrier = _job.barrier
poll = _job.poll
synchronize = _job.synchronize
