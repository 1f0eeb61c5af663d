"""What goes wrong and must not go unnoticed: launches that fail, ranks that leave, graphs beside launches, other threads'
captures.

Usage: trouble.py LIBRARY_FOLDER [TEST… | --list]. The environment says by which way the GPUs reach one another. With
FAKE_DRIVER set the stand-in for a driver is used, which fails where a test tells it to; without, the tests that need no
such thing run on two GPUs.

A test is a function with @test above it, which names the environment that it needs; it runs in a process of its own.
Most end in `together(n, body)` of ../gpu/faults.py: it starts n threads in this process, and each calls body(rank) with
a Rank of its own. A Rank has made a CUDA context on the GPU of its number (rank.cuda is the driver), a buffer of 1 MiB
on it (rank.memory; fill and first_of look at parts of 64 KiB), and a communicator of the n ranks (rank.comm, of the
library rank.nccl; rank.result is what ncclCommInitRank returned). An exception in a body fails the test. A body ends
its communicator itself.
"""

import ctypes
import itertools
import os
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "gpu"))
from faults import (CUDA_ERROR, FAKE, FLOAT, HANG_S, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, SUCCESS, SUM,  # noqa: E402
                    Graph, new_id, together)


# The tests by name, in the order in which they stand here; each function has its environment and needs_the_stand_in.
TESTS = {}


def test(needs_the_stand_in=False, **environment):
    """Makes a test of a function, which runs in a process of its own with these variables. needs_the_stand_in: it makes
    the driver fail, or takes more than two GPUs."""

    def add(function):
        function.needs_the_stand_in = needs_the_stand_in
        function.environment = environment
        TESTS[function.__name__] = function
        return function

    return add


def by_network():
    return os.environ.get("NCCL_SHM_DISABLE") == "1"


def stream_of(rank, flags=1):
    stream = ctypes.c_void_p()
    assert rank.cuda.cuStreamCreate(ctypes.byref(stream), flags) == 0
    return stream


def second_communicator(rank, uid, ranks=2):
    comm = ctypes.c_void_p()
    assert rank.nccl.ncclCommInitRank(ctypes.byref(comm), ranks, uid, rank.number()) == SUCCESS, rank.error()
    return comm


def grouped(rank, *calls):
    assert rank.nccl.ncclGroupStart() == SUCCESS
    for call in calls:
        call()
    return rank.nccl.ncclGroupEnd()


def works(rank):
    """An operation gives the right result."""
    number = rank.number()
    rank.fill(3, float(number + 1))
    assert rank.all_reduce(buffer=rank.memory.value + 3 * rank.PART) == SUCCESS, rank.error()
    assert rank.synchronize() == 0
    assert rank.first_of(3) == 3.0, rank.first_of(3)
    return True


@test(needs_the_stand_in=True)
def a_launch_fails_in_a_group():
    """The second of three: what this rank called next would meet what the others called second."""
    calls = threading.Barrier(2)

    def body(rank):
        assert works(rank)
        number = rank.number()
        if number == 0:
            calls.wait(HANG_S)
            rank.cuda.tuttiFakeFailLaunch(2)
        outcome = grouped(rank, rank.all_reduce, rank.all_reduce, rank.all_reduce)
        if number == 1:
            calls.wait(HANG_S)
        assert outcome == (CUDA_ERROR if number == 0 else SUCCESS), outcome
        assert rank.synchronize() == 0
        assert rank.await_error() == CUDA_ERROR, rank.async_error()
        assert rank.all_reduce() == CUDA_ERROR
        assert "rank 0" in rank.error() and "could not launch" in rank.error(), rank.error()
        rank.nccl.ncclCommAbort(rank.comm)

    together(2, body)


@test(needs_the_stand_in=True)
def no_event_behind_a_launch():
    """Where what comes next cannot be put behind an operation, nothing comes next."""
    calls = threading.Barrier(2)

    def body(rank):
        assert works(rank)
        number = rank.number()
        if number == 0:
            calls.wait(HANG_S)
            rank.cuda.tuttiFakeFailRecord(1)
        outcome = rank.all_reduce()
        if number == 1:
            calls.wait(HANG_S)
        assert outcome == (CUDA_ERROR if number == 0 else SUCCESS), outcome
        assert rank.await_error() == CUDA_ERROR, rank.async_error()
        assert rank.all_reduce(stream=stream_of(rank)) == CUDA_ERROR
        rank.nccl.ncclCommAbort(rank.comm)

    together(2, body)


@test(needs_the_stand_in=True)
def what_is_refused_is_harmless():
    """Arguments that are wrong on a rank's own terms are found before anything of their group is launched."""

    def body(rank):
        assert works(rank)
        memory = ctypes.c_void_p(rank.memory.value)
        gone = stream_of(rank)
        assert rank.cuda.cuStreamDestroy_v2(gone) == 0
        assert rank.all_reduce(stream=gone) == INVALID_ARGUMENT
        assert grouped(rank, rank.all_reduce, lambda: rank.all_reduce(stream=gone)) == INVALID_ARGUMENT
        assert "has been destroyed" in rank.error(), rank.error()

        def message(call):
            return lambda: call(memory, ctypes.c_size_t(10), FLOAT, rank.number(), rank.comm, None)

        assert grouped(rank, rank.all_reduce, message(rank.nccl.ncclSend)) == INVALID_USAGE
        assert "1 sends to itself and 0 receives" in rank.error(), rank.error()
        assert grouped(rank, rank.all_reduce, message(rank.nccl.ncclRecv)) == INVALID_USAGE
        assert "0 sends to itself and 1 receives" in rank.error(), rank.error()
        assert rank.async_error() == SUCCESS and works(rank)
        rank.nccl.ncclCommDestroy(rank.comm)

    together(2, body)


@test(needs_the_stand_in=True)
def one_communicator_of_a_group_fails():
    """The operations of the others are launched all the same."""
    uid = new_id()

    def body(rank):
        assert works(rank)
        first, second = rank.comm, second_communicator(rank, uid)
        gone = stream_of(rank)
        assert rank.cuda.cuStreamDestroy_v2(gone) == 0
        rank.fill(0, 1.0)

        def on_the_second():
            rank.comm = second
            rank.all_reduce()
            rank.comm = first

        assert grouped(rank, lambda: rank.all_reduce(stream=gone), on_the_second) == INVALID_ARGUMENT
        assert rank.synchronize() == 0 and rank.first_of(0) == 2.0, rank.first_of(0)
        for comm in (first, second):
            assert rank.nccl.ncclCommDestroy(comm) == SUCCESS

    together(2, body)


def library_memory(rank, size=1 << 20):
    memory = ctypes.c_void_p()
    assert rank.nccl.ncclMemAlloc(ctypes.byref(memory), ctypes.c_size_t(size)) == SUCCESS, rank.error()
    return memory


def window_of(rank, memory, size=1 << 20):
    window = ctypes.c_void_p()
    result = rank.nccl.ncclCommWindowRegister(rank.comm, memory, ctypes.c_size_t(size), ctypes.byref(window), 1)
    assert result == SUCCESS, rank.error()
    return window


# Settings with which an operation on registered buffers of any size uses them in place.
REGISTERED = {"TUTTI_GPU_TUNE": "symmetric_us=0,simple_us=10000,step_us=10000", "NCCL_PROTO": "Simple"}


@test(**REGISTERED)
def a_window_is_taken_back_in_use():
    """The others' memory stays mapped until the kernels that read it are done."""
    launched = threading.Event()

    def body(rank):
        assert rank.result == SUCCESS, rank.error()
        memory = library_memory(rank)
        window = window_of(rank, memory)
        number = rank.number()
        if number == 1:
            assert launched.wait(HANG_S)  # the kernel of rank 0 waits for this rank's
        stream = stream_of(rank)
        assert rank.all_reduce(buffer=memory.value, count=100000, stream=stream) == SUCCESS, rank.error()
        launched.set()
        assert rank.nccl.ncclCommWindowDeregister(rank.comm, window) == SUCCESS, rank.error()
        assert rank.cuda.cuStreamSynchronize(stream) == 0
        assert works(rank)
        rank.nccl.ncclCommDestroy(rank.comm)

    together(2, body)


@test()
def what_is_captured_elsewhere_is_not_disturbed():
    """While another thread captures a graph in the default mode, communicators are made, used and ended."""
    begun, ended = threading.Barrier(3), threading.Barrier(3)
    uids = [new_id(), new_id()]
    problems, capturing = [], []

    def capture(cuda):
        try:
            context, stream, graph = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
            cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 3 if FAKE else 0)
            cuda.cuCtxSetCurrent(context)
            assert cuda.cuStreamCreate(ctypes.byref(stream), 1) == 0
            assert cuda.cuStreamBeginCapture_v2(stream, 0) == 0  # global
            begun.wait(HANG_S)
            ended.wait(HANG_S)
            assert cuda.cuStreamEndCapture(stream, ctypes.byref(graph)) == 0, "the capture is lost"
        except Exception as problem:  # pylint: disable=broad-except
            problems.append(problem)

    def body(rank):
        assert rank.result == SUCCESS, rank.error()
        if rank.number() == 0:
            capturing.append(threading.Thread(target=capture, args=(rank.cuda,), daemon=True))
            capturing[0].start()
        begun.wait(HANG_S)
        stream = stream_of(rank)
        for uid in uids:
            first, rank.comm = rank.comm, second_communicator(rank, uid)
            if not by_network() and os.environ.get("NCCL_P2P_DISABLE") != "1":
                memory = library_memory(rank)
                window = window_of(rank, memory)
                assert rank.all_reduce(buffer=memory.value, stream=stream) == SUCCESS, rank.error()
                assert rank.nccl.ncclCommWindowDeregister(rank.comm, window) == SUCCESS, rank.error()
                assert rank.nccl.ncclMemFree(memory) == SUCCESS
            assert rank.all_reduce(stream=stream) == SUCCESS, rank.error()
            assert rank.nccl.ncclCommDestroy(rank.comm) == SUCCESS, rank.error()
            rank.comm = first
        ended.wait(HANG_S)
        assert not problems, problems
        assert rank.nccl.ncclCommDestroy(rank.comm) == SUCCESS

    together(2, body)
    capturing[0].join(HANG_S)
    assert not capturing[0].is_alive() and not problems, problems


@test()
def a_communicator_with_graphs_ends_beside_a_capture():
    """Its end waits for its own operations, and not for a device of which a stream is captured."""
    barrier = threading.Barrier(2)

    def body(rank):
        assert works(rank)
        graph = Graph(rank.cuda, lambda stream: rank.all_reduce(stream=stream))
        graph.launch(2)
        other, captured = stream_of(rank), ctypes.c_void_p()
        assert rank.cuda.cuStreamBeginCapture_v2(other, 1) == 0
        barrier.wait(HANG_S)
        assert rank.nccl.ncclCommDestroy(rank.comm) == SUCCESS, rank.error()
        barrier.wait(HANG_S)
        assert rank.cuda.cuStreamEndCapture(other, ctypes.byref(captured)) == 0, "the capture is lost"
        graph.destroy()

    together(2, body)


@test()
def captures_are_no_calls():
    """A rank may capture once more than others, and in another order. What the ranks compare afterwards differs by the
    last call only."""

    def body(rank):
        assert works(rank)
        number = rank.number()

        def captured(count):
            graph = Graph(rank.cuda, lambda stream: rank.all_reduce(count=count, stream=stream))
            return graph

        graphs = {}
        for count in (1000, 2000) if number == 0 else (2000, 1000, 1000):
            graphs[count] = captured(count)
        for count in (1000, 2000):
            graphs[count].launch()
        assert works(rank)
        rank.all_reduce(count=10 if number == 0 else 100000)
        rank.synchronize()
        assert rank.await_error() == INVALID_USAGE, rank.async_error()
        rank.all_reduce()
        for words in ("mismatched collectives", "count 10", "count 100000"):
            assert words in rank.error(), rank.error()
        for graph in graphs.values():
            graph.destroy()
        rank.nccl.ncclCommAbort(rank.comm)

    together(2, body)


@test()
def counts_of_a_pair_differ():
    """By a few elements, which fit the same pieces, and by much."""
    for wrong, gathers in itertools.product((31, 100000), (False, True)):

        def body(rank, wrong=wrong, gathers=gathers):
            assert works(rank)
            number = rank.number()
            sizes = ctypes.c_size_t * 2
            sends = sizes(10, 30) if number == 0 else sizes(40, 20)
            receives = sizes(10, 40) if number == 0 else sizes(wrong, 20)
            memory = ctypes.c_void_p(rank.memory.value)
            output = ctypes.c_void_p(rank.memory.value + (512 << 10))
            if gathers:
                rank.nccl.tuttiGatherV(memory, sends[1], output, receives, None, FLOAT, 1, rank.comm, None)
            else:
                rank.nccl.tuttiAlltoAllV(memory, sends, None, output, receives, None, FLOAT, rank.comm, None)
            rank.synchronize()
            assert rank.await_error() == INVALID_USAGE, rank.async_error()
            for words in ("mismatched", "rank 0", "rank 1", "30 elements", str(wrong)):
                assert words in rank.error() or rank.all_reduce() and words in rank.error(), rank.error()
            rank.nccl.ncclCommAbort(rank.comm)

        together(2, body)


def ends_with(rank, words):
    """The rank's operations end, with an error of these words."""
    assert rank.synchronize() == 0
    assert rank.await_error() == REMOTE_ERROR, rank.async_error()
    assert rank.all_reduce() == REMOTE_ERROR
    for word in words:
        assert word in rank.error(), rank.error()
    rank.nccl.ncclCommAbort(rank.comm)


@test()
def a_rank_leaves_too_early():
    """It ends its communicator while others call one more operation."""
    called = threading.Event()

    def body(rank):
        assert works(rank)
        if rank.number() == 1:
            assert called.wait(HANG_S)
            assert rank.nccl.ncclCommDestroy(rank.comm) == SUCCESS
            return
        rank.begin(rank.all_reduce)
        called.set()
        ends_with(rank, ("rank 1", "has "))

    together(2, body)


@test()
def a_rank_leaves_and_owes_a_message():
    def body(rank):
        assert works(rank)
        if rank.number() == 1:
            assert rank.nccl.ncclCommDestroy(rank.comm) == SUCCESS
            return
        memory = ctypes.c_void_p(rank.memory.value)
        assert rank.nccl.ncclRecv(memory, ctypes.c_size_t(10), FLOAT, 1, rank.comm, None) == SUCCESS
        ends_with(rank, ("rank 1", "has "))

    together(2, body)


@test(needs_the_stand_in=True)
def a_rank_is_aborted_in_the_middle():
    """Two of three ranks are in an operation; one of them is aborted, and the other must not wait for ever."""
    done, called = threading.Event(), threading.Barrier(2)

    def body(rank):
        assert rank.result == SUCCESS, rank.error()
        assert rank.all_reduce() == SUCCESS and rank.synchronize() == 0
        if rank.number() == 2:
            assert done.wait(HANG_S)
            rank.nccl.ncclCommAbort(rank.comm)
            return
        rank.begin(lambda: rank.all_reduce(count=200000))
        called.wait(HANG_S)
        if rank.number() == 1:
            assert rank.nccl.ncclCommAbort(rank.comm) == SUCCESS
            return
        ends_with(rank, ("rank 1", "has "))
        done.set()

    together(3, body)


@test(needs_the_stand_in=True)
def ranks_may_leave_one_after_another():
    """Those that have called all that the others have are not missed."""

    def body(rank):
        for _ in range(3):
            assert rank.all_reduce() == SUCCESS
        assert rank.synchronize() == 0
        time.sleep(0.7 * rank.number())  # others may look for those that left; nothing shows that they have
        assert rank.async_error() == SUCCESS, rank.error()
        end = rank.nccl.ncclCommAbort if rank.number() == 0 else rank.nccl.ncclCommDestroy
        assert end(rank.comm) == SUCCESS

    together(3, body)


@test(**REGISTERED)
def one_rank_is_outside_its_window():
    """Ranks that choose other forms, because of buffers that are registered on some only, or lie elsewhere in them."""
    for offset in (None, 4096):

        def body(rank, offset=offset):
            assert works(rank)
            memory = library_memory(rank)
            window_of(rank, memory)
            buffer = memory.value
            if rank.number() == 1:
                buffer = rank.memory.value if offset is None else memory.value + offset
            rank.all_reduce(buffer=buffer, count=100000)
            rank.synchronize()
            assert rank.await_error() == INVALID_USAGE, rank.async_error()
            rank.all_reduce()
            for words in ("mismatched collectives", "registered buffers", "rank 0", "rank 1"):
                assert words in rank.error(), rank.error()
            rank.nccl.ncclCommAbort(rank.comm)

        together(2, body)


@test(needs_the_stand_in=True)
def initialisation_is_aborted_while_windows_are_tried():
    """The check of windows waits 10 s for a rank that has failed, but no longer than until it is aborted: of two
    communicators that wait so, the one that is aborted ends first."""
    cuda, nccl = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL(os.path.join(sys.argv[1], "libtutti.so.0"))
    cuda.cuInit(0)
    uids = [new_id(), new_id()]
    comms = [ctypes.c_void_p() for _ in range(4)]

    def make(device):
        context = ctypes.c_void_p()
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
        cuda.cuCtxSetCurrent(context)
        if device % 2 == 1:
            cuda.tuttiFakeFailLaunch(1)
        nccl.ncclCommInitRank(ctypes.byref(comms[device]), 2, uids[device // 2], device % 2)

    threads = [threading.Thread(target=make, args=(device,), daemon=True) for device in range(4)]
    for thread in threads:
        thread.start()
    while cuda.tuttiFakeRunningKernels() < 2:
        time.sleep(0.001)
    for first, other in ((0, threads[2].is_alive), (2, lambda: True)):
        assert nccl.ncclCommAbort(comms[first]) == SUCCESS
        threads[first].join(HANG_S)
        assert not threads[first].is_alive()
        assert other(), "the abort waited"


def log_of(body, **environment):
    """What a run of two ranks writes into its log."""
    os.environ.update(environment)
    read, write = os.pipe()
    saved = os.dup(2)
    os.dup2(write, 2)
    try:
        together(2, body)
    finally:
        os.dup2(saved, 2)
        os.close(write)
    with os.fdopen(read, errors="replace") as log:
        return log.read()


@test(TUTTI_GPU_FAULT="ll128")
def ll128_that_is_wrong_is_given_up():
    """And nothing else; also where blocks are few, so that a middle-sized message would go otherwise."""

    def body(rank):
        assert works(rank)
        rank.nccl.ncclCommDestroy(rank.comm)

    log = log_of(body, NCCL_DEBUG="INFO")
    assert "LL128 is not used" in log, log
    assert "writing into one another's memory" in log and "another way is taken" not in log, log


@test()
def host_memory_is_refused():
    """With nothing set: a kernel that touched it would end CUDA for the whole process."""
    keep = (ctypes.c_float * 1000)()

    def body(rank):
        assert works(rank)
        address = ctypes.addressof(keep)
        assert rank.all_reduce(buffer=address) == INVALID_ARGUMENT
        assert "memory of the host" in rank.error(), rank.error()
        operator = ctypes.c_int()
        assert rank.nccl.ncclRedOpCreatePreMulSum(ctypes.byref(operator), ctypes.c_void_p(address), FLOAT, 0,
                                                  rank.comm) == SUCCESS  # a scalar on a device, it says
        memory = ctypes.c_void_p(rank.memory.value)
        assert rank.nccl.ncclAllReduce(memory, memory, ctypes.c_size_t(10), FLOAT, operator, rank.comm,
                                       None) == INVALID_ARGUMENT
        assert "scalar" in rank.error(), rank.error()
        # What a rank does not use may be anything.
        root_only = ctypes.c_void_p(rank.memory.value if rank.number() == 0 else 8)
        assert rank.nccl.ncclReduce(memory, root_only, ctypes.c_size_t(10), FLOAT, SUM, 0, rank.comm, None) == SUCCESS
        assert rank.nccl.ncclBroadcast(root_only, memory, ctypes.c_size_t(10), FLOAT, 0, rank.comm, None) == SUCCESS
        assert works(rank)
        rank.nccl.ncclCommDestroy(rank.comm)

    together(2, body)


@test(NCCL_CHECK_POINTERS="1")
def ends_of_buffers_are_looked_at():
    """Where the program asks for it."""

    def body(rank):
        assert works(rank)
        assert rank.all_reduce(count=(1 << 18) + 100) == INVALID_ARGUMENT  # the buffer has 2^18
        assert "the end of" in rank.error(), rank.error()
        assert rank.all_reduce(count=1 << 18) == SUCCESS and rank.synchronize() == 0
        rank.nccl.ncclCommDestroy(rank.comm)

    together(2, body)


@test(NCCL_CHECK_POINTERS="1")
def managed_memory_of_another_gpu_may_be_used():
    """Each rank reduces in memory that was allocated while the other's GPU was current."""
    buffers, barrier = {}, threading.Barrier(2)

    def body(rank):
        managed = ctypes.c_uint64()
        assert rank.cuda.cuMemAllocManaged(ctypes.byref(managed), ctypes.c_size_t(4096), 1) == 0
        buffers[rank.number()] = managed.value
        barrier.wait()
        theirs = buffers[1 - rank.number()]
        assert rank.all_reduce(buffer=theirs) == SUCCESS and rank.synchronize() == 0, rank.error()
        assert works(rank)
        rank.nccl.ncclCommDestroy(rank.comm)

    together(2, body)


@test()
def graphs_and_launches_take_turns():
    """A graph is launched beside operations of its communicator, and beside another graph, in one order on all ranks."""
    launched = threading.Event()

    def body(rank):
        assert works(rank)
        part = rank.memory.value
        rank.fill(0, 1.0)
        rank.fill(1, 1.0)
        eager = stream_of(rank)

        def operations(stream):
            for _ in range(3):
                assert rank.all_reduce(buffer=part, stream=stream) == SUCCESS

        graphs = [Graph(rank.cuda, operations), Graph(rank.cuda, operations)]
        if FAKE:
            on_the_way = ctypes.c_int()
            nodes = rank.cuda.tuttiFakeNodes(graphs[0].graph, ctypes.byref(on_the_way))
            work = 6 if by_network() else 3
            assert (nodes, on_the_way.value) == (work + 2, work + 1), (nodes, on_the_way.value)
        if rank.number() == 1:
            launched.wait(10)  # where rank 0 cannot launch all of it before this rank begins, it goes on after this
        for round_number in range(4):
            for graph in graphs:
                assert rank.cuda.cuGraphLaunch(graph.exec, graph.stream) == 0
                assert rank.all_reduce(buffer=part + rank.PART, stream=eager) == SUCCESS
            assert rank.all_reduce(buffer=part + rank.PART, stream=eager) == SUCCESS, round_number
        launched.set()  # by rank 0, before rank 1 begins
        assert rank.synchronize() == 0
        assert not FAKE or rank.cuda.tuttiFakeOverlaps() == 0, rank.cuda.tuttiFakeOverlaps()
        assert (rank.first_of(0), rank.first_of(1)) == (2.0**24, 2.0**12), (rank.first_of(0), rank.first_of(1))
        for graph in graphs:
            graph.destroy()
        assert rank.all_reduce(stream=eager) == SUCCESS and rank.synchronize() == 0
        rank.nccl.ncclCommDestroy(rank.comm)

    together(2, body)


@test(TUTTI_GPU_CHANNELS="1")
def first_messages_come_behind_a_graph():
    """A rank that lags launches a graph and then its first messages. Over a network the other rank, which does not lag, makes
    the connections for these only when the graph is done."""
    host_function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    late = host_function(lambda _: time.sleep(0.5))

    def body(rank):
        assert works(rank)
        number, stream = rank.number(), stream_of(rank)
        rank.fill(0, float(number + 1))
        rank.fill(1, float(number + 5))
        graph = Graph(rank.cuda, lambda stream: rank.all_reduce(stream=stream))
        message = [ctypes.c_size_t(1000), FLOAT, 1 - number, rank.comm, stream]
        if number == 0:
            assert rank.cuda.cuLaunchHostFunc(graph.stream, late, None) == 0
        assert rank.cuda.cuGraphLaunch(graph.exec, graph.stream) == 0
        assert grouped(rank,
                       lambda: rank.nccl.ncclSend(ctypes.c_void_p(rank.memory.value + rank.PART), *message),
                       lambda: rank.nccl.ncclRecv(ctypes.c_void_p(rank.memory.value + 2 * rank.PART), *message)) == SUCCESS
        assert rank.synchronize() == 0
        assert (rank.first_of(0), rank.first_of(2)) == (3.0, 6.0 - number), (rank.first_of(0), rank.first_of(2))
        graph.destroy()
        rank.nccl.ncclCommDestroy(rank.comm)

    together(2, body)


@test()
def the_end_waits_for_graphs():
    """A communicator is destroyed while a graph with its operations is under way, on a stream that is none of its own."""
    launched = threading.Event()

    def body(rank):
        assert works(rank)
        rank.fill(0, 1.0)
        graph = Graph(rank.cuda, lambda stream: rank.all_reduce(count=1000, stream=stream))
        if rank.number() == 1:
            assert launched.wait(HANG_S)
        assert rank.cuda.cuGraphLaunch(graph.exec, graph.stream) == 0
        launched.set()  # by rank 0, whose graph waits for rank 1's
        assert rank.nccl.ncclCommDestroy(rank.comm) == SUCCESS
        assert rank.cuda.cuStreamSynchronize(graph.stream) == 0
        assert rank.first_of(0) == 2.0, rank.first_of(0)
        graph.destroy()

    together(2, body)


@test()
def what_ranks_do_together_is_done_in_order():
    """Windows are registered and communicators split in one group: all of it talks over one bootstrap."""

    def body(rank):
        assert works(rank)
        memory, split, window = library_memory(rank), [ctypes.c_void_p(), ctypes.c_void_p()], ctypes.c_void_p()
        for _ in range(10):
            parent = rank.comm
            result = grouped(
                rank,
                lambda: rank.nccl.ncclCommSplit(parent, 0, rank.number(), ctypes.byref(split[0]), None),
                lambda: rank.nccl.ncclCommWindowRegister(parent, memory, ctypes.c_size_t(1 << 20), ctypes.byref(window), 1),
                lambda: rank.nccl.ncclCommSplit(parent, rank.number(), 0, ctypes.byref(split[1]), None))
            assert result == SUCCESS, rank.error()
            for comm, ranks in zip(split, (2, 1)):
                count = ctypes.c_int()
                assert rank.nccl.ncclCommCount(comm, ctypes.byref(count)) == SUCCESS
                assert count.value == ranks, (count.value, ranks)
                assert rank.nccl.ncclCommDestroy(comm) == SUCCESS
            assert rank.nccl.ncclCommWindowDeregister(parent, window) == SUCCESS
        assert works(rank)
        rank.nccl.ncclCommDestroy(rank.comm)

    together(2, body)


@test(needs_the_stand_in=True, TUTTI_FAKE_NO_PEER="1", TUTTI_FAKE_GPUS="17", TUTTI_STRICT_TRANSPORT="1",
      NCCL_P2P_DISABLE="0", NCCL_SHM_DISABLE="0")
def a_strict_rank_takes_no_slower_way():
    """Neither between few GPUs, which would share windows, nor between so many that FIFOs join them."""
    for ranks in (2, 17):

        def body(rank):
            assert rank.result == INVALID_USAGE, rank.result
            assert "TUTTI_STRICT_TRANSPORT is set, and windows in GPU memory" in rank.error(), rank.error()

        together(ranks, body)


@test(needs_the_stand_in=True, TUTTI_FAKE_MIG="1")
def parts_of_one_gpu():
    """MIG: two devices at one address are no GPU that is used twice; and no NVLink joins them."""

    def body(rank):
        assert works(rank)
        rank.nccl.ncclCommDestroy(rank.comm)

    together(2, body)


def main():
    if os.environ.get("TROUBLE_CHILD"):
        TESTS[sys.argv[2]]()
        os._exit(0)  # threads that a failure left behind would hold the process up
    failed = 0
    here = [name for name, function in TESTS.items() if FAKE or not function.needs_the_stand_in]
    if sys.argv[2:] == ["--list"]:
        print(" ".join(here))
        return
    for name in sys.argv[2:] or here:
        environment = dict(os.environ, TROUBLE_CHILD="1", **TESTS[name].environment)
        begin = time.monotonic()
        try:
            done = subprocess.run([sys.executable, __file__, sys.argv[1], name], env=environment, timeout=2 * HANG_S,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
            code, output = done.returncode, done.stdout
        except subprocess.TimeoutExpired as late:
            code, output = "too late", late.stdout or b""
        print(name, "ok" if code == 0 else f"FAILED ({code})", f"{time.monotonic() - begin:.1f} s", flush=True)
        if code != 0:
            print(output.decode()[-3000:], flush=True)
            failed += 1
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
