"""What ranks do while they are observed (observe.py). An act takes a Rank and tells what comes of its calls."""

import ctypes
import os
import signal
import socket
import time

from observe import FLOAT

LONG = 1 << 20  # elements


def plain(rank):
    """What a communicator says of itself and of its plans, and an operation."""
    if rank.join():
        rank.out(rank.text_of(rank.nccl.tuttiCommDescribe))
        rank.plans()
        rank.all_reduce()
        rank.destroy()


def long(rank):
    """An operation of many chunks."""
    if rank.join():
        rank.all_reduce(LONG)
        rank.destroy()


def short(rank):
    if rank.join():
        rank.all_reduce(8)
        rank.destroy()


def long_job(rank):
    """A hundred operations, or as many as there are without an error."""
    if rank.join():
        memory, error = rank.memory(64), ctypes.c_int()
        for _ in range(100):
            rank.all_reduce(8, memory)
            rank.nccl.ncclCommGetAsyncError(rank.comm, ctypes.byref(error))
            if error.value:
                break
            time.sleep(0.005)
        rank.say("asynchronous", error.value)
        rank.nccl.ncclCommAbort(rank.comm)


def alone(rank):
    """Rank 0 waits for rank 1, which never comes."""
    if rank.number == 0:
        rank.join()
    else:
        rank.share(b"")
        time.sleep(0.1)


def one_slow(rank):
    """For some seconds, rank 1 comes to each operation three milliseconds after rank 0."""
    if rank.join():
        memory = rank.memory(64)
        for _ in range(1200):
            if rank.number == 1:
                time.sleep(0.003)
            rank.all_reduce(8, memory)
        rank.destroy()


def one_lags(rank):
    """Rank 1 comes to an operation two seconds after rank 0."""
    if rank.join():
        if rank.number == 1:
            time.sleep(2)
        rank.all_reduce()
        error = ctypes.c_int()
        until = time.monotonic() + 0.3
        while time.monotonic() < until:
            rank.nccl.ncclCommGetAsyncError(rank.comm, ctypes.byref(error))
            time.sleep(0.02)
        rank.say("asynchronous", error.value)
        rank.nccl.ncclCommAbort(rank.comm)


def wild(rank):
    """An operation in memory that is not mapped: nowhere on hosts, and behind an allocation on GPUs."""
    if rank.join():
        memory = ctypes.c_void_p(rank.memory(4096) if rank.on_gpu else 1 << 44)
        count = ctypes.c_size_t(1 << 20)
        if rank.number == 0:  # Where nothing is checked, the process ends here.
            rank.say("wild", rank.nccl.ncclAllReduce(memory, memory, count, FLOAT, 0, rank.comm, None))
        rank.nccl.ncclCommAbort(rank.comm)


def polled(rank):
    """The state of the ranks after an operation, as a client of RAS reads it."""
    if rank.join():
        rank.all_reduce()
        if rank.number == 0:
            host, _, port = os.environ.get("NCCL_RAS_ADDR", "127.0.0.1:1").rpartition(":")
            try:
                with socket.create_connection((host, int(port)), 10) as client:
                    client.sendall(b"SET FORMAT json\nSTATUS\n")
                    while data := client.recv(1 << 16):
                        rank.write(data.decode())
            except OSError as error:
                rank.out(error)
        rank.all_reduce()
        rank.destroy()


def same_gpu(rank):
    context = ctypes.c_void_p()
    rank.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    rank.cuda.cuCtxSetCurrent(context)
    if rank.join():
        rank.out("joined")
        rank.destroy()


def idle_limits(rank):
    """After how many seconds of silence the kernel probes the connections of the process."""
    if rank.join():
        rank.all_reduce()
        for name in os.listdir("/proc/self/fd"):
            try:
                with socket.socket(fileno=os.dup(int(name))) as one:
                    if one.type == socket.SOCK_STREAM and one.family != socket.AF_UNIX:
                        rank.out(f"probes after {one.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)} s")
            except OSError:
                pass
        rank.destroy()


def signalled(rank):
    """A signal, until the log has the state of the process. Where nothing handles the signal, the process ends."""
    if rank.join():
        os.kill(os.getpid(), signal.SIGUSR2)
        until = time.monotonic() + 5
        while time.monotonic() < until:
            with open(os.environ["NCCL_DEBUG_FILE"], encoding="utf-8") as log:
                if "a signal asks" in log.read():
                    break
            time.sleep(0.005)
        rank.destroy()


def memory_maps(rank):
    if rank.join():
        rank.all_reduce(LONG)
        with open("/proc/self/smaps", encoding="utf-8") as maps:
            rank.out(f"advised {sum(' hg' in line for line in maps if line.startswith('VmFlags'))} mappings")
        rank.destroy()


class Properties(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("magic", ctypes.c_uint), ("version", ctypes.c_uint), ("rank", ctypes.c_int),
                ("ranks", ctypes.c_int), ("cuda", ctypes.c_int), ("nvml", ctypes.c_int), ("device_api", ctypes.c_bool),
                ("multimem", ctypes.c_bool), ("gin_type", ctypes.c_int), ("lsa_teams", ctypes.c_int),
                ("host_rma", ctypes.c_bool), ("railed_gin_type", ctypes.c_int)]


def window(rank, size=1 << 20):
    """A window, and what communicators then can do. A device communicator with GIN."""
    if not rank.join():
        return
    memory, handle = ctypes.c_void_p(), ctypes.c_void_p()
    rank.say("mem_alloc", rank.nccl.ncclMemAlloc(ctypes.byref(memory), ctypes.c_size_t(size)))
    registered = rank.nccl.ncclCommWindowRegister(rank.comm, memory, ctypes.c_size_t(size), ctypes.byref(handle), 1)
    rank.say("window", registered)
    rank.out(f"handle {bool(handle.value)}")
    version = ctypes.c_int()
    rank.nccl.ncclGetVersion(ctypes.byref(version))
    properties = Properties(ctypes.sizeof(Properties), 0xCAFEBEEF, version.value)
    if rank.say("properties", rank.nccl.ncclCommQueryProperties(rank.comm, ctypes.byref(properties))):
        rank.out(f"gin_type {properties.gin_type} lsa_teams {properties.lsa_teams} host_rma {properties.host_rma}")
    if handle.value:
        rank.nccl.ncclCommWindowDeregister(rank.comm, handle)
    rank.destroy()


def large_windows(rank):
    """Windows of 3 GiB, of which nothing is touched."""
    if rank.join():
        handle = ctypes.c_void_p()
        for _ in range(2):
            size = ctypes.c_size_t(3 << 30)
            rank.say("window", rank.nccl.ncclCommWindowRegister(rank.comm, None, size, ctypes.byref(handle), 0))
        rank.nccl.ncclCommAbort(rank.comm)


class Requirements(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("magic", ctypes.c_uint), ("version", ctypes.c_uint), ("resources", ctypes.c_void_p),
                ("teams", ctypes.c_void_p), ("multimem", ctypes.c_bool), ("barriers", ctypes.c_int * 3),
                ("exchanges", ctypes.c_int * 2), ("gin_force", ctypes.c_bool), ("contexts", ctypes.c_int),
                ("signals", ctypes.c_int), ("counters", ctypes.c_int), ("connection", ctypes.c_int),
                ("exclusive", ctypes.c_bool), ("queue_depth", ctypes.c_int), ("traffic_class", ctypes.c_int),
                ("world_barriers", ctypes.c_int), ("strong", ctypes.c_bool), ("va_signals", ctypes.c_bool)]


def mapped():
    """Returns how many bytes the process has mapped to be written."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        ranges = [line.split()[0].split("-") for line in maps if line.split()[1].startswith("rw")]
    return sum(int(end, 16) - int(begin, 16) for begin, end in ranges)


def device_communicator(rank):
    """A device communicator whose kernels put over the network."""
    if rank.join():
        version = ctypes.c_int()
        rank.nccl.ncclGetVersion(ctypes.byref(version))
        wish = Requirements(ctypes.sizeof(Requirements), 0xCAFEBEEF, version.value)
        wish.gin_force, wish.contexts, wish.signals, wish.traffic_class = True, 4, 1, -(1 << 31)
        made, before = ctypes.create_string_buffer(1 << 14), mapped()
        if rank.say("devcomm", rank.nccl.ncclDevCommCreate(rank.comm, ctypes.byref(wish), made)):
            rank.out(f"grown {(mapped() - before) >> 20} MiB")
            rank.nccl.ncclDevCommDestroy(rank.comm, made)
        rank.destroy()


def graph(rank):
    """How many nodes a captured operation has."""
    if rank.join():
        stream, made = ctypes.c_void_p(), ctypes.c_void_p()
        on_the_way = ctypes.c_int()
        memory = rank.memory(4096)
        rank.all_reduce(memory=memory)
        assert rank.cuda.cuStreamCreate(ctypes.byref(stream), 1) == 0
        assert rank.cuda.cuStreamBeginCapture_v2(stream, 2) == 0
        rank.nccl.ncclAllReduce(ctypes.c_void_p(memory), ctypes.c_void_p(memory), ctypes.c_size_t(1000), FLOAT, 0,
                                rank.comm, stream)
        assert rank.cuda.cuStreamEndCapture(stream, ctypes.byref(made)) == 0
        rank.out(f"nodes {rank.cuda.tuttiFakeNodes(made, ctypes.byref(on_the_way))} on the way {on_the_way.value}")
        rank.cuda.cuGraphDestroy(made)
        rank.nccl.ncclCommAbort(rank.comm)


class CoordinatorOptions(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("id", ctypes.c_void_p), ("rank", ctypes.c_int), ("ranks", ctypes.c_int),
                ("local_rank", ctypes.c_int), ("local_size", ctypes.c_int), ("cross_rank", ctypes.c_int),
                ("cross_size", ctypes.c_int)]


class Tensor(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("name", ctypes.c_char_p), ("kind", ctypes.c_int), ("type", ctypes.c_int),
                ("ndim", ctypes.c_int), ("shape", ctypes.POINTER(ctypes.c_int64)), ("input", ctypes.c_void_p),
                ("output", ctypes.c_void_p), ("op", ctypes.c_int), ("compression", ctypes.c_int),
                ("prescale", ctypes.c_double), ("postscale", ctypes.c_double), ("root", ctypes.c_int),
                ("splits", ctypes.POINTER(ctypes.c_int64)), ("nsplits", ctypes.c_int), ("device", ctypes.c_int),
                ("stream", ctypes.c_void_p)]


class Coordinator:
    """A rank of a coordinator's job, of two hosts where the ranks' settings say so."""

    def __init__(self, rank):
        self.rank, self.nccl, self.kept = rank, rank.nccl, []
        self.nccl.tuttiCoordinatorLastError.restype = ctypes.c_char_p
        self.made = ctypes.c_void_p()
        uid = ctypes.create_string_buffer(128)
        if rank.number == 0:
            assert self.nccl.ncclGetUniqueId(uid) == 0
        uid.raw = rank.share(uid.raw)
        options = CoordinatorOptions(ctypes.sizeof(CoordinatorOptions), ctypes.addressof(uid), rank.number, rank.count,
                                     rank.number, rank.count, 0, 1)
        self.say("create", self.nccl.tuttiCoordinatorCreate(ctypes.byref(self.made), ctypes.byref(options)))

    def say(self, name, result):
        self.rank.out(f"{name} {result} {self.nccl.tuttiCoordinatorLastError().decode() if result else ''}")
        return result == 0

    def tensor(self, name, count=100):
        memory = self.rank.memory(4 * count)
        shape = (ctypes.c_int64 * 1)(count)
        self.kept += [memory, getattr(self.rank, "kept", None), shape]
        return Tensor(ctypes.sizeof(Tensor), name.encode(), 0, 7, 1, shape, memory, memory, 1, 0, 1.0, 1.0, 0, None, 0,
                      self.rank.number if self.rank.on_gpu else -1, None)

    def reduce(self, *names, group=None):
        """Enqueues tensors at once, and waits for all of them."""
        self.wait(self.enqueue([self.tensor(name) for name in names], group))

    def reduce_parts(self, alone, group):
        parts = [[self.tensor(name) for name in names] for names in (alone, group)]
        self.wait(list(self.enqueue(parts[0], None)) + list(self.enqueue(parts[1], b"group")))

    def enqueue(self, tensors, group):
        handles = (ctypes.c_int64 * len(tensors))()
        several = (Tensor * len(tensors))(*tensors)
        self.say("enqueue", self.nccl.tuttiCoordinatorEnqueue(self.made, 0, several, len(tensors), group, handles))
        return handles

    def wait(self, handles):
        for handle in handles:
            self.say("wait", self.nccl.tuttiCoordinatorWait(self.made, ctypes.c_int64(handle), ctypes.c_double(20)))
            self.nccl.tuttiCoordinatorRelease(self.made, ctypes.c_int64(handle))

    def end(self):
        for name in ("rounds", "negotiated_rounds", "round_calls", "batches", "tensors", "cached"):
            value = ctypes.c_uint64()
            if self.nccl.tuttiCoordinatorCounter(self.made, 0, name.encode(), ctypes.byref(value)) == 0:
                self.rank.out(f"counter {name} {value.value}")
        self.nccl.tuttiCoordinatorDestroy(self.made)


def coordinate(rank):
    """Tensors alone, together and in a group."""
    coordinator = Coordinator(rank)
    for step in range(3):
        coordinator.reduce("alone")
        coordinator.reduce("a", "b", "c", "d")
        coordinator.reduce("e", "f", group=b"group")
        rank.out(f"step {step}")
    coordinator.end()


def group_and_tensor(rank):
    """A tensor and a group at once, fifty times: mostly in one round."""
    coordinator = Coordinator(rank)
    for _ in range(50):
        coordinator.reduce_parts(("a",), ("b", "c"))
    coordinator.end()


def stall(rank):
    """Rank 0 asks for a tensor a while before rank 1 does."""
    coordinator = Coordinator(rank)
    coordinator.reduce("first")
    if rank.number == 1:
        time.sleep(1.2)
    coordinator.reduce("late")
    coordinator.end()


def steps(rank):
    """Twenty steps of a job, for the search of HOROVOD_AUTOTUNE."""
    coordinator = Coordinator(rank)
    for _ in range(40):
        coordinator.reduce("a", "b")
    coordinator.end()


