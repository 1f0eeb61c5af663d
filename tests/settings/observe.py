"""Runs ranks with settings, one process each, and returns all that can be observed of them as one text.

The text has, from every rank: the result of the initialisation with its error, the descriptions of the communicator and
of plans, the results of calls; and, from all ranks together, their log at INFO, the lines of the stand-in for
libibverbs, the files that they wrote, and their standard error stream. Ranks are on hosts, or on simulated GPUs
(tests/fakegpu). A parent that has loaded the libraries forks every rank, so that a run takes tens of milliseconds.
"""

import ctypes
import os
import pathlib
import pickle
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback

FLOAT, SUM = 7, 0
MOST_SECONDS = 30
# What makes ranks of a kind; a pair is one value for each rank. The stand-in runs each block as a thread, so two blocks are enough.
KINDS = {
    "hosts": {"TUTTI_BACKEND": "host"},
    "mesh": {"NCCL_MAX_CTAS": "2"},
    "channels": {"NCCL_MAX_CTAS": "2", "TUTTI_GPU_CHANNELS": "2", "NCCL_HOSTID": ("a", "b")},
    "coordinator": {"TUTTI_BACKEND": "host"},
}


class UniqueId(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]


class Rank:
    """A rank in its process. `out(text)` adds to what is observed."""

    def __init__(self, libraries, number, count, on_gpu, share, write):
        self.nccl, self.cuda = libraries
        self.number, self.count, self.on_gpu, self.share, self.write = number, count, on_gpu, share, write
        self.comm = ctypes.c_void_p()
        if on_gpu:
            context = ctypes.c_void_p()
            self.cuda.cuInit(0)
            self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), number)
            self.cuda.cuCtxSetCurrent(context)

    def out(self, text):
        self.write(f"{text}\n")

    def say(self, name, result):
        """Tells the result of a call, with the error of a call that failed."""
        error = (self.nccl.ncclGetLastError(self.comm) or b"").decode() if result not in (0, 7) else ""
        self.out(f"{name} {result} {error}")
        return result == 0

    def join(self):
        uid = UniqueId()
        if self.number == 0 and not self.say("id", self.nccl.ncclGetUniqueId(ctypes.byref(uid))):
            self.share(b"")
            return False
        shared = self.share(bytes(uid))
        if not shared:
            return False
        ctypes.memmove(ctypes.byref(uid), shared, ctypes.sizeof(uid))
        return self.say("init", self.nccl.ncclCommInitRank(ctypes.byref(self.comm), self.count, uid, self.number))

    def text_of(self, function, *arguments):
        text = ctypes.create_string_buffer(1 << 16)
        function(self.comm, *arguments, text, ctypes.c_size_t(len(text)), None)
        return text.value.decode()

    def plans(self):
        for count in (1, 1000, 100000, 10000000):
            text = self.text_of(self.nccl.tuttiPlanDescribe, b"AllReduce", ctypes.c_size_t(count), FLOAT, SUM)
            self.out(f"plan AllReduce of {count}: {text}")

    def memory(self, size):
        if not self.on_gpu:
            self.kept = ctypes.create_string_buffer(size + 4096)
            return (ctypes.addressof(self.kept) + 4095) // 4096 * 4096
        memory = ctypes.c_uint64()
        assert self.cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(size)) == 0
        return memory.value

    def all_reduce(self, count=1000, memory=None):
        memory = ctypes.c_void_p(memory or self.memory(4 * count))
        self.say("all_reduce", self.nccl.ncclAllReduce(memory, memory, ctypes.c_size_t(count), FLOAT, SUM, self.comm, None))
        if self.on_gpu:
            self.cuda.cuCtxSynchronize()

    def destroy(self):
        self.say("destroy", self.nccl.ncclCommDestroy(self.comm))


def _read_all(pipe):
    with os.fdopen(pipe, "rb") as file:
        return file.read()


def _become(number, environment, folder):
    """Takes the environment of a rank: a pair is one value for each rank."""
    for name, value in environment.items():
        value = value[number] if isinstance(value, tuple) else value
        os.environ[name] = value.replace("{tmp}", folder)
    error = os.open(f"{folder}/stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(error, 2)
    os.dup2(error, 1)


def _run_rank(number, count, ids, libraries, environment, act, folder):
    """The body of a process. ids: a pipe by which rank 0 gives the id to the others."""
    reader, writer = ids
    size = ctypes.sizeof(UniqueId)

    def share(data):
        if number == 0:
            for _ in range(1, count):
                os.write(writer, data.ljust(size, b"\0"))
            return data
        data = os.read(reader, size)
        return data if any(data) else b""

    try:
        with open(f"{folder}/rank{number}", "w", buffering=1, encoding="utf-8") as file:
            _become(number, environment, folder)
            on_gpu = environment.get("TUTTI_BACKEND") != "host"
            act(Rank(libraries, number, count, on_gpu, share, file.write))
    except BaseException:  # pylint: disable=broad-except
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(0)


def _collect(folder):
    text = ""
    for path in sorted(pathlib.Path(folder).rglob("*")):
        if path.is_file():
            text += f"file {path.name}\n{path.read_bytes()[:1 << 18].decode(errors='replace')}\n"
    return text


def observe(libraries, kind, environment, act):
    """Returns what can be observed of two ranks of a kind with these variables, or of as many as a variable has values.
    act(rank) is their work."""
    folder = tempfile.mkdtemp(prefix="settings-")
    full = {"NCCL_CONF_FILE": "/dev/null", "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "ALL", "NCCL_DEBUG_FILE": "{tmp}/log",
            "FAKE_VERBS_TELL": "{tmp}/verbs", **KINDS[kind], **environment}
    reader, writer = os.pipe()
    children = []
    count = max((len(value) for value in environment.values() if isinstance(value, tuple)), default=2)
    for number in range(count):
        child = os.fork()
        if child == 0:
            _run_rank(number, count, (reader, writer), libraries, full, act, folder)
        children.append(child)
    os.close(reader)
    os.close(writer)
    until = time.monotonic() + MOST_SECONDS
    late = ""
    while children:
        children = [child for child in children if os.waitpid(child, os.WNOHANG)[0] == 0]
        if children and time.monotonic() > until:
            late = f"after {MOST_SECONDS} s ranks still ran\n"
            for child in children:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            break
        time.sleep(0.002)
    text = late + _collect(folder)
    shutil.rmtree(folder)
    return text


def in_parallel(jobs, workers):
    """Runs functions in forked processes, at most `workers` at a time; returns their results in order."""
    results, running = [None] * len(jobs), {}
    waiting = list(enumerate(jobs))[::-1]
    while waiting or running:
        while waiting and len(running) < workers:
            index, job = waiting.pop()
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
                os.close(reader)
                begin = time.monotonic()
                done = job()
                with os.fdopen(writer, "wb") as file:
                    pickle.dump((done, time.monotonic() - begin), file)
                os._exit(0)
            os.close(writer)
            running[reader] = (index, child)
        for reader in select.select(list(running), [], [])[0]:
            index, child = running.pop(reader)
            results[index] = pickle.loads(_read_all(reader))
            os.waitpid(child, 0)
    return results
