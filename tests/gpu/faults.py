"""What must end well on GPUs: an abort while peers are missing, the death of a process in the middle, bad arguments.

Usage: faults.py LIBRARY_FOLDER [GPUS]. With NCCL_P2P_DISABLE and NCCL_SHM_DISABLE it tries the other ways between GPUs. Talks to the
C interface of NCCL by ctypes, and to the driver for memory. With three GPUs or more a process also dies among several.
"""

import ctypes
import os
import subprocess
import sys
import threading
import time

folder = sys.argv[1]
FLOAT, SUM = 7, 0
SUCCESS, CUDA_ERROR, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR = 0, 1, 4, 5, 6
NOT_READY = 600  # the driver's code
# The stand-in for a driver has no memory protection.
FAKE = "FAKE_DRIVER" in os.environ
# Whatever takes longer hangs. The stand-in's kernels are threads, which a loaded machine runs at a small share of its speed.
HANG_S = 300 if FAKE else 90


class UniqueId(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]


class Rank:
    """A rank of this process: a GPU, a buffer on it, and a communicator."""

    def __init__(self, number, ranks, uid, device=None):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.nccl = ctypes.CDLL(os.path.join(folder, "libtutti.so.0"))
        self.nccl.ncclGetLastError.restype = ctypes.c_char_p
        self.cuda.cuInit(0)
        context = ctypes.c_void_p()
        self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), number if device is None else device)
        self.cuda.cuCtxSetCurrent(context)
        self.memory = self.allocate(1 << 20)
        self.comm = ctypes.c_void_p()
        self.result = self.nccl.ncclCommInitRank(ctypes.byref(self.comm), ranks, uid, number)

    def allocate(self, size):
        memory = ctypes.c_uint64()
        assert self.cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(size)) == 0
        return memory

    def error(self):
        return (self.nccl.ncclGetLastError(self.comm) or b"").decode()

    def all_reduce(self, buffer=None, count=1000, stream=None):
        pointer = ctypes.c_void_p(buffer if buffer is not None else self.memory.value)
        return self.nccl.ncclAllReduce(pointer, pointer, ctypes.c_size_t(count), FLOAT, SUM, self.comm, stream)

    def number(self):
        number = ctypes.c_int()
        self.nccl.ncclCommUserRank(self.comm, ctypes.byref(number))
        return number.value

    def await_error(self):
        deadline = time.monotonic() + HANG_S
        while self.async_error() == SUCCESS and time.monotonic() < deadline:
            time.sleep(0.01)
        return self.async_error()

    def begin(self, operation):
        """Calls operation(), which others do not join yet, and returns once the GPU has come to it: what the stream had to
        do before it has ended, and the operation has not."""
        before, behind = ctypes.c_void_p(), ctypes.c_void_p()
        for event in (before, behind):
            assert self.cuda.cuEventCreate(ctypes.byref(event), 2) == 0
        assert self.cuda.cuEventRecord(before, None) == 0
        assert operation() == SUCCESS, self.error()
        assert self.cuda.cuEventRecord(behind, None) == 0
        while (reached := self.cuda.cuEventQuery(before)) == NOT_READY:
            time.sleep(0.001)
        assert reached == 0
        assert self.cuda.cuEventQuery(behind) == NOT_READY, "the operation did not wait for the others"
        for event in (before, behind):
            assert self.cuda.cuEventDestroy_v2(event) == 0

    PART = 64 << 10  # bytes of its buffer

    def fill(self, part, value):
        values = (ctypes.c_float * 1000)(*[value] * 1000)
        assert self.cuda.cuMemcpyHtoD_v2(ctypes.c_uint64(self.memory.value + part * self.PART), values,
                                         ctypes.c_size_t(4000)) == 0

    def first_of(self, part):
        value = ctypes.c_float()
        assert self.cuda.cuMemcpyDtoH_v2(ctypes.byref(value), ctypes.c_uint64(self.memory.value + part * self.PART),
                                         ctypes.c_size_t(4)) == 0
        return value.value

    def synchronize(self):
        return self.cuda.cuCtxSynchronize()

    def async_error(self):
        code = ctypes.c_int()
        self.nccl.ncclCommGetAsyncError(self.comm, ctypes.byref(code))
        return code.value


def new_id():
    nccl = ctypes.CDLL(os.path.join(folder, "libtutti.so.0"))
    uid = UniqueId()
    assert nccl.ncclGetUniqueId(ctypes.byref(uid)) == SUCCESS
    return uid


def together(ranks, body, devices=None):
    """Runs body(rank) on a thread for each rank; the exceptions come out here."""
    uid, problems = new_id(), []

    def run(number):
        try:
            body(Rank(number, ranks, uid, devices[number] if devices else None))
        except Exception as problem:  # pylint: disable=broad-except
            problems.append(problem)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
        assert problems or not thread.is_alive(), "a rank does not come back"
    if problems:
        raise problems[0]


def abort_ends(operation, prepare=None):
    """Rank 0 queues what rank 1 never joins, and aborts; its kernel must end, and its GPU be of use afterwards."""
    barrier = threading.Barrier(2)

    def body(rank):
        assert rank.result == SUCCESS, rank.error()
        if prepare is not None:
            prepare(rank)
        assert rank.all_reduce() == SUCCESS and rank.synchronize() == 0
        number = rank.number()
        if number == 0:
            rank.begin(lambda: operation(rank))
            begin = time.monotonic()
            assert rank.nccl.ncclCommAbort(rank.comm) == SUCCESS
            assert rank.synchronize() == 0
            assert time.monotonic() - begin < (HANG_S if FAKE else 5), "the abort took too long"
            assert rank.cuda.cuMemsetD8_v2(rank.memory, 0, ctypes.c_size_t(1000)) == 0, "the GPU is not usable any more"
        barrier.wait()
        if number == 1:
            rank.nccl.ncclCommAbort(rank.comm)

    together(2, body)


def abort_ends_kernels():
    abort_ends(lambda rank: rank.all_reduce(count=200000))


def abort_ends_messages():
    """A receive of what is not sent, a large send that is not received, and both in a group."""

    def message(rank, call, count, memory=None):
        return call(ctypes.c_void_p((memory or rank.memory).value), ctypes.c_size_t(count), FLOAT, 1, rank.comm, None)

    def more_than_the_slots_hold(rank):
        """What is shorter than the slots of all channels at both ends may be sent before it is received."""
        size = 256 << 20
        return message(rank, rank.nccl.ncclSend, size // 4, rank.allocate(size))

    def both(rank):
        rank.nccl.ncclGroupStart()
        message(rank, rank.nccl.ncclSend, 200000)
        message(rank, rank.nccl.ncclRecv, 200000)
        return rank.nccl.ncclGroupEnd()

    abort_ends(lambda rank: message(rank, rank.nccl.ncclRecv, 1000))
    abort_ends(more_than_the_slots_hold)
    abort_ends(both)


def abort_ends_symmetric(child=False):
    """The same inside of an operation that works in the buffers of all ranks, which they have registered."""
    if not child:
        in_process("abort_ends_symmetric", NCCL_PROTO="Simple",
                   TUTTI_GPU_TUNE="symmetric_us=0,simple_us=10000,step_us=10000")
        return
    buffers, size = {}, ctypes.c_size_t(4 << 20)

    def register(rank):
        memory, window = ctypes.c_void_p(), ctypes.c_void_p()
        assert rank.nccl.ncclMemAlloc(ctypes.byref(memory), size) == SUCCESS, rank.error()
        assert rank.nccl.ncclCommWindowRegister(rank.comm, memory, size, ctypes.byref(window), 1) == SUCCESS, rank.error()
        buffers[rank.number()] = memory.value
        assert rank.all_reduce(buffer=memory.value) == SUCCESS and rank.synchronize() == 0

    abort_ends(lambda rank: rank.all_reduce(buffer=buffers[0], count=1 << 19), register)


def same_gpu_twice():
    def body(rank):
        assert rank.result == INVALID_USAGE, rank.result
        assert "the same GPU" in rank.error(), rank.error()

    together(2, body, devices=[0, 0])


def ranks_share_a_gpu():
    os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"

    def body(rank):
        assert rank.result == SUCCESS, rank.error()
        stream = ctypes.c_void_p()
        assert rank.cuda.cuStreamCreate(ctypes.byref(stream), 1) == 0
        rank.fill(0, 1.0)
        assert rank.all_reduce(stream=stream) == SUCCESS and rank.synchronize() == 0, rank.error()
        assert rank.first_of(0) == 2.0
        rank.nccl.ncclCommDestroy(rank.comm)

    together(2, body, devices=[0, 0])
    del os.environ["NCCL_MULTI_RANK_GPU_ENABLE"]


def host_memory():
    os.environ["NCCL_CHECK_POINTERS"] = "1"
    keep = (ctypes.c_float * 1000)()

    def body(rank):
        assert rank.result == SUCCESS, rank.error()
        assert rank.all_reduce(buffer=ctypes.addressof(keep)) == INVALID_ARGUMENT
        assert "memory of the host" in rank.error(), rank.error()
        assert rank.all_reduce() == SUCCESS and rank.synchronize() == 0
        rank.nccl.ncclCommDestroy(rank.comm)

    together(2, body)
    del os.environ["NCCL_CHECK_POINTERS"]


def wrong_device():
    os.environ["NCCL_CHECK_POINTERS"] = "1"
    buffers, barrier = {}, threading.Barrier(2)

    def body(rank):
        assert rank.result == SUCCESS, rank.error()
        number = rank.number()
        buffers[number] = rank.memory.value
        barrier.wait()
        assert rank.all_reduce(buffer=buffers[1 - number]) == INVALID_ARGUMENT
        assert f"is on CUDA device {1 - number}" in rank.error(), rank.error()
        assert rank.all_reduce() == SUCCESS and rank.synchronize() == 0
        rank.nccl.ncclCommDestroy(rank.comm)

    together(2, body)
    del os.environ["NCCL_CHECK_POINTERS"]


def host_stream():
    def body(rank):
        stream = ctypes.c_void_p()
        assert rank.nccl.tuttiStreamCreate(ctypes.byref(stream)) == SUCCESS
        assert rank.all_reduce(stream=stream) == INVALID_ARGUMENT
        assert "is a host stream" in rank.error(), rank.error()
        rank.nccl.tuttiStreamDestroy(stream)
        assert rank.all_reduce() == SUCCESS and rank.synchronize() == 0
        rank.nccl.ncclCommDestroy(rank.comm)

    together(2, body)


def other_counts():
    def body(rank):
        assert rank.result == SUCCESS, rank.error()
        assert rank.all_reduce() == SUCCESS
        rank.all_reduce(count=3000 + 1000 * rank.number())
        rank.synchronize()
        assert rank.await_error() == INVALID_USAGE, rank.async_error()
        for words in ("mismatched collectives", "number 2", "count 3000", "count 4000", "rank 0", "rank 1"):
            assert words in rank.error(), rank.error()
        assert rank.all_reduce() == INVALID_USAGE
        rank.nccl.ncclCommAbort(rank.comm)

    together(2, body)


def other_message_lengths():
    """As host ranks: 1 KiB sent and 2 KiB expected; what agrees in whole pieces; and what fits the pieces only."""
    for sent, expected in ((256, 512), (512, 256), (1 << 18, 1 << 17)):

        def body(rank, sent=sent, expected=expected):
            assert rank.result == SUCCESS, rank.error()
            memory, number = ctypes.c_void_p(rank.memory.value), rank.number()
            for count in (100, sent if number == 0 else expected):
                call = rank.nccl.ncclSend if number == 0 else rank.nccl.ncclRecv
                result = call(memory, ctypes.c_size_t(count), FLOAT, 1 - number, rank.comm, None)
                assert result == SUCCESS or count != 100, rank.error()
            rank.synchronize()
            assert rank.await_error() == INVALID_USAGE, rank.async_error()
            for words in ("mismatched message", f"sends {sent} elements", f"receives {expected} of", "rank 0", "rank 1"):
                assert words in rank.error(), rank.error()
            rank.nccl.ncclCommAbort(rank.comm)

        together(2, body)


def in_process(name, **environment):
    """Runs a test of its own process, where CUDA or the environment is spoilt."""
    done = subprocess.run([sys.executable, __file__, folder, name], env=dict(os.environ, **environment), timeout=2 * HANG_S,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    assert done.returncode == 0, (name, done.returncode, done.stdout.decode()[-2000:])


def one_rank_without_gpu(argument=None):
    if argument is None:
        uid = new_id()
        child = subprocess.Popen([sys.executable, __file__, folder, "one_rank_without_gpu", bytes(uid).hex()],
                                 env=dict(os.environ, TUTTI_BACKEND="host"))
        number = 0
    else:
        uid, child, number = UniqueId.from_buffer_copy(bytes.fromhex(argument)), None, 1
    rank = Rank(number, 2, uid)
    assert rank.result == INVALID_USAGE, rank.result
    assert "rank 0" in rank.error() and "has a GPU and rank 1" in rank.error(), rank.error()
    if child is not None:
        assert child.wait(HANG_S) == 0


def sticky_error(child=False):
    """A kernel reads where nothing is; from then on CUDA refuses everything in the process."""
    if not child:
        in_process("sticky_error", TUTTI_FAKE_STICKY="3")
        return

    def body(rank):
        assert rank.result == SUCCESS, rank.error()
        operator, scalar = ctypes.c_int(), ctypes.c_float(2)
        assert rank.nccl.ncclRedOpCreatePreMulSum(ctypes.byref(operator), ctypes.byref(scalar), FLOAT, 1,
                                                  rank.comm) == SUCCESS
        pointer = ctypes.c_void_p(rank.memory.value)
        count = 1000 if FAKE else 1 << 30  # far beyond the end of its memory, which is not looked at
        results = []
        while len(results) < 10 and CUDA_ERROR not in results:
            results.append(rank.nccl.ncclAllReduce(pointer, pointer, ctypes.c_size_t(count), FLOAT, operator, rank.comm,
                                                   None))
            rank.synchronize()
        assert results[-1] == CUDA_ERROR, results
        assert "CUDA error 7" in rank.error(), rank.error()
        rank.nccl.ncclCommAbort(rank.comm)

    together(1, body)


def too_little_memory(child=False):
    if not child:
        in_process("too_little_memory", TUTTI_FAKE_MEMORY="3000000")
        return
    if not FAKE:  # all but some 50 MiB of GPU 0
        cuda = ctypes.CDLL("libcuda.so.1")
        context, memory = ctypes.c_void_p(), ctypes.c_uint64()
        cuda.cuInit(0)
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
        cuda.cuCtxSetCurrent(context)
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        assert cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(free.value - (50 << 20))) == 0

    def body(rank):
        # Another way between the GPUs is taken, or a sentence says what could not be had.
        if rank.result != SUCCESS:
            assert any(what in rank.error() for what in ("allocating", "loading the kernel")), rank.error()
            return
        assert rank.all_reduce() == SUCCESS and rank.synchronize() == 0
        rank.nccl.ncclCommDestroy(rank.comm)

    together(2, body)


def made_and_ended_beside_another(child=False):
    """A communicator comes and goes while a kernel of another one, on the same GPU, waits for a rank."""
    if not child:
        if os.environ.get("NCCL_P2P_DISABLE") == "1" and "FAKE_DRIVER" not in os.environ:
            print("skipped: the driver pins windows in host memory only when the GPU is idle")
            return
        in_process("made_and_ended_beside_another")
        return
    for flags in (0, 1, None):  # of the stream of the one that waits; None: the null stream
        uid, barrier = new_id(), threading.Barrier(2)

        def body(rank, flags=flags, uid=uid, barrier=barrier):
            assert rank.result == SUCCESS, rank.error()
            stream, other = None, ctypes.c_void_p()
            if flags is not None:
                stream = ctypes.c_void_p()
                assert rank.cuda.cuStreamCreate(ctypes.byref(stream), flags) == 0
            assert rank.cuda.cuStreamCreate(ctypes.byref(other), 1) == 0
            number = rank.number()
            if number == 0:
                assert rank.all_reduce(stream=stream) == SUCCESS  # waits until rank 1 comes
            barrier.wait(HANG_S)
            second, first = ctypes.c_void_p(), rank.comm
            assert rank.nccl.ncclCommInitRank(ctypes.byref(second), 2, uid, number) == SUCCESS
            rank.comm = second
            assert rank.all_reduce(buffer=rank.memory.value + rank.PART, stream=other) == SUCCESS
            assert rank.cuda.cuStreamSynchronize(other) == 0
            if number == 0:
                assert rank.nccl.ncclCommDestroy(second) == SUCCESS
            barrier.wait(HANG_S)
            rank.comm = first
            if number == 1:
                assert rank.all_reduce(stream=stream) == SUCCESS
                assert rank.nccl.ncclCommDestroy(second) == SUCCESS
            assert rank.cuda.cuStreamSynchronize(stream) == 0
            assert rank.nccl.ncclCommDestroy(first) == SUCCESS

        together(2, body)


def stream_at_the_address_of_another():
    """A stream is destroyed while it has work; another one gets its address, and is not taken for it."""
    called = threading.Event()

    def body(rank):
        assert rank.result == SUCCESS, rank.error()
        first, second = ctypes.c_void_p(), ctypes.c_void_p()
        assert rank.cuda.cuStreamCreate(ctypes.byref(first), 1) == 0
        rank.fill(0, 1.0)
        rank.fill(1, 10.0)
        if rank.number() == 1:
            assert called.wait(HANG_S)  # so that both operations of rank 0 could be under way
        assert rank.all_reduce(stream=first) == SUCCESS
        assert rank.cuda.cuStreamDestroy_v2(first) == 0
        assert rank.cuda.cuStreamCreate(ctypes.byref(second), 1) == 0
        assert not FAKE or first.value == second.value
        assert rank.all_reduce(buffer=rank.memory.value + rank.PART, stream=second) == SUCCESS
        called.set()
        assert rank.cuda.cuStreamSynchronize(second) == 0
        assert (rank.first_of(0), rank.first_of(1)) == (2.0, 20.0), (rank.first_of(0), rank.first_of(1))
        # Such a stream handed in is an error. True drivers need not find it out, and may crash.
        if FAKE:
            assert rank.cuda.cuStreamDestroy_v2(second) == 0
            assert rank.all_reduce(stream=second) == INVALID_ARGUMENT
            assert "has been destroyed" in rank.error(), rank.error()
        assert rank.all_reduce() == SUCCESS and rank.synchronize() == 0
        rank.nccl.ncclCommDestroy(rank.comm)

    together(2, body)


class Graph:
    """What `operation` launches on a stream of its own, captured."""

    def __init__(self, cuda, operation):
        self.cuda, self.stream, self.graph, self.exec = cuda, ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        assert cuda.cuStreamCreate(ctypes.byref(self.stream), 1) == 0
        assert cuda.cuStreamBeginCapture_v2(self.stream, 2) == 0
        operation(self.stream)
        assert cuda.cuStreamEndCapture(self.stream, ctypes.byref(self.graph)) == 0
        assert cuda.cuGraphInstantiateWithFlags(ctypes.byref(self.exec), self.graph, ctypes.c_ulonglong(0)) == 0

    def launch(self, times=1):
        for _ in range(times):
            assert self.cuda.cuGraphLaunch(self.exec, self.stream) == 0
        assert self.cuda.cuStreamSynchronize(self.stream) == 0

    def destroy(self):
        assert self.cuda.cuGraphDestroy(self.graph) == 0
        assert self.cuda.cuGraphExecDestroy(self.exec) == 0
        assert self.cuda.cuStreamDestroy_v2(self.stream) == 0


def proxy_wakes():
    """How often the threads that serve GPUs by the network have been woken so far."""
    wakes = 0
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/status", encoding="utf-8") as status:
            lines = dict(line.split(":", 1) for line in status.read().splitlines())
        if lines["Name"].strip() == "tutti-kproxy":
            wakes += int(lines["voluntary_ctxt_switches"])
    return wakes


def graphs_keep_what_they_need():
    """No more and no longer than they live, whether before or after the communicator; nor does one that failed."""
    barrier = threading.Barrier(2)

    def kept(rank):
        barrier.wait(HANG_S)
        objects = rank.cuda.tuttiFakeObjects() if FAKE else 0
        barrier.wait(HANG_S)
        return objects

    def body(rank):
        assert rank.result == SUCCESS, rank.error()

        def operation(stream):
            assert rank.all_reduce(stream=stream) == SUCCESS

        rank.fill(0, 1.0)
        graph = Graph(rank.cuda, operation)
        assert kept(rank) > 0 or not FAKE
        graph.launch(3)
        assert rank.first_of(0) == 8.0, rank.first_of(0)
        graph.destroy()
        assert kept(rank) == 0

        def failing(stream):
            for number in (0, 1):
                if number == rank.number():
                    rank.cuda.tuttiFakeFailNextLaunch()
                    assert rank.all_reduce(stream=stream) == CUDA_ERROR
                barrier.wait(HANG_S)

        if FAKE:
            failed = Graph(rank.cuda, failing)
            failed.launch()
            barrier.wait(HANG_S)
            # What wakes them again and again does so in each of these; what a busy machine does late, in few.
            wakes = []
            while len(wakes) < 10 and (not wakes or wakes[-1] > 4):
                before = proxy_wakes()
                time.sleep(0.5)
                wakes.append(proxy_wakes() - before)
            assert wakes[-1] <= 4, wakes
            barrier.wait(HANG_S)
            failed.destroy()
            assert kept(rank) == 0
        assert rank.all_reduce() == SUCCESS and rank.synchronize() == 0
        last = Graph(rank.cuda, operation)
        last.launch()
        barrier.wait(HANG_S)
        assert rank.nccl.ncclCommDestroy(rank.comm) == SUCCESS
        last.destroy()
        assert kept(rank) == 0

    together(2, body)


def number_of_gpus():
    """Asked in a process of its own: what forks must not have used CUDA."""
    if len(sys.argv) > 2 and sys.argv[2].isdigit():
        return int(sys.argv[2])
    ask = "import ctypes; c = ctypes.CDLL('libcuda.so.1'); n = ctypes.c_int(); c.cuInit(0); c.cuDeviceGetCount(ctypes.byref(n)); print(n.value)"
    return int(subprocess.run([sys.executable, "-c", ask], stdout=subprocess.PIPE, check=True).stdout)


def survive(rank, called, killed=lambda: None):
    """One rank's part where rank 1 dies: its kernel ends, the error names who is lost, and the GPU stays of use."""
    assert rank.result == SUCCESS, rank.error()
    assert rank.all_reduce() == SUCCESS and rank.synchronize() == 0
    rank.begin(lambda: rank.all_reduce(count=100000))  # rank 1 hangs, then dies
    called()
    killed()
    begin = time.monotonic()
    assert rank.synchronize() == 0
    assert time.monotonic() - begin < (HANG_S if FAKE else 10), "the survivor waited too long"
    assert rank.await_error() == REMOTE_ERROR, rank.async_error()
    assert "rank 1" in rank.error(), rank.error()
    assert rank.all_reduce() == REMOTE_ERROR
    rank.nccl.ncclCommAbort(rank.comm)
    assert rank.cuda.cuMemsetD8_v2(rank.memory, 0, ctypes.c_size_t(1000)) == 0, "the GPU is not usable any more"


def death_of_a_process(ranks=2):
    uid = new_id()
    others = {}
    for number in range(1, ranks):
        role = "victim" if number == 1 else "survivor"
        # Processes of their own, which have not used CUDA.
        others[number] = subprocess.Popen([sys.executable, __file__, folder, role, bytes(uid).hex(), str(number), str(ranks)],
                                          stdout=subprocess.PIPE)

    def all_have_called():
        for number in range(2, ranks):
            assert others[number].stdout.readline().strip() == b"called", f"rank {number} has not called"

    survive(Rank(0, ranks, uid), all_have_called, killed=others[1].kill)
    for number in range(2, ranks):
        assert others[number].wait(HANG_S) == 0, f"rank {number} has not survived"
    others[1].wait(10)


def victim(hexadecimal, number, ranks):
    rank = Rank(int(number), int(ranks), UniqueId.from_buffer_copy(bytes.fromhex(hexadecimal)))
    rank.all_reduce()
    rank.synchronize()
    time.sleep(HANG_S)


def survivor(hexadecimal, number, ranks):
    survive(Rank(int(number), int(ranks), UniqueId.from_buffer_copy(bytes.fromhex(hexadecimal))),
            lambda: print("called", flush=True))


def main():
    if len(sys.argv) > 2 and not sys.argv[2].isdigit():
        {"victim": lambda: victim(*sys.argv[3:]), "survivor": lambda: survivor(*sys.argv[3:]),
         "abort_ends_symmetric": lambda: abort_ends_symmetric(child=True), "abort_ends_messages": abort_ends_messages,
         "sticky_error": lambda: sticky_error(child=True),
         "too_little_memory": lambda: too_little_memory(child=True),
         "graphs_keep_what_they_need": graphs_keep_what_they_need,
         "other_message_lengths": other_message_lengths,
         "stream_at_the_address_of_another": stream_at_the_address_of_another,
         "made_and_ended_beside_another": lambda: made_and_ended_beside_another(child=True),
         "one_rank_without_gpu": lambda: one_rank_without_gpu(sys.argv[3])}[sys.argv[2]]()
        return
    death_of_a_process()  # first: it forks, so nothing may have used CUDA here
    print("death_of_a_process ok", flush=True)
    gpus = number_of_gpus()
    if gpus > 2:
        death_of_a_process(min(gpus, 4))
        print(f"death_of_a_process among {min(gpus, 4)} ok", flush=True)
    else:
        print(f"skipped: a death among three, on {gpus} GPUs")
    for test in (abort_ends_kernels, abort_ends_messages, abort_ends_symmetric, same_gpu_twice, ranks_share_a_gpu, host_memory, wrong_device, host_stream, other_counts, other_message_lengths,
                 one_rank_without_gpu, sticky_error, too_little_memory, made_and_ended_beside_another,
                 stream_at_the_address_of_another, graphs_keep_what_they_need):
        test()
        print(test.__name__, "ok", flush=True)


if __name__ == "__main__":
    main()
