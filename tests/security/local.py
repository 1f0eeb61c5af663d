"""Attacks by another user of the machine, or by another rank, on what is local: names, ports, libraries, terminals."""

import ctypes
import os
import pathlib
import re
import socket
import struct
import time

import rank as ranks
import stage as stages
from meeting import OWN_NUMBER, PATIENT, SOCKETS, VICTIMS_NUMBER, expect_sum, slurm, start
from outcome import Outcome, attack

SECRET = {"TUTTI_COMM_KEY": "only the ranks know this text"}


# The name of a meeting: a hash of the job, and a number after the first name. Other names of the library are random.
MEETING_NAME = re.compile(r" @(tutti-[0-9a-f]{32}(?:-[0-9]+)?)$", re.MULTILINE)


def local_names():
    """Returns the names of meetings among the abstract names of Unix sockets, which any user sees."""
    return set(MEETING_NAME.findall(pathlib.Path("/proc/net/unix").read_text()))


def _squat(talk, names):
    held = []
    for name in names:
        one = socket.socket(socket.AF_UNIX)
        one.bind(b"\0" + name.encode())
        one.listen()
        held.append(one)
    talk.send(len(held))
    talk.recv()


def squat(stage, also=lambda name: []):
    """The names follow from the job's number. The attacker sees them in a step that waits, and takes the names that the
    next step of the number will have, and others that `also` makes of each name."""
    before = local_names()
    scout = start(stage, slurm(0, 4243, nodes="2"), VICTIMS_NUMBER)
    assert stages.await_true(lambda: local_names() - before), f"no name is seen: {scout.log()}"
    seen = local_names() - before
    scout.end()
    assert stages.await_true(lambda: not seen & local_names())
    names = seen | {other for name in seen for other in also(name)}
    attacker = stage.start(_squat, names, user=stages.ATTACKER)
    assert attacker.hear() == len(names)
    victims = [start(stage, {**slurm(number, 4243, nodes="2"), "TUTTI_INIT_TIMEOUT_S": "2"}, VICTIMS_NUMBER)
               for number in (0, 1)]
    said = [victim.hear(8) for victim in victims]
    refusals = [one[1] for one in said if one and one[0] == "refused"]
    if refusals:
        return Outcome(True, f"the job cannot meet: \"{refusals[0]}\"")
    for victim in victims:
        expect_sum(victim, 2 * VICTIMS_NUMBER)
    return Outcome(False, "with the name taken the ranks meet by another")


@attack("F7", "keep a Slurm step of one node from meeting by the local name that is seen")
def squat_local_name(stage):
    return squat(stage)


@attack("F7", "keep a Slurm step of one node from meeting by all its local names",
        open_because="Abstract names have no owner, and a list of names has an end")
def squat_all_names(stage):
    return squat(stage, lambda name: [f"{name}-{number}" for number in range(1, 16)])


def _take_port(talk, port):
    """An attacker's body: listens at a port as Linux allows beside a socket that is bound with SO_REUSEADDR."""
    for family, address in ((socket.AF_INET6, "::"), (socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "0.0.0.0")):
        for options in ((socket.SO_REUSEADDR,), (socket.SO_REUSEADDR, socket.SO_REUSEPORT)):
            one = socket.socket(family)
            for option in options:
                one.setsockopt(socket.SOL_SOCKET, option, 1)
            try:
                one.bind((address, port))
                one.listen()
            except OSError:
                continue
            talk.send(f"listens at {address}")
            talk.recv()
            return
    talk.send(None)


def run_told(stage, ranks_number):
    """Starts `tutti run` with ranks that tell their environment and wait. Returns the environment of each rank."""
    program = stage.start_program("run", "-n", str(ranks_number), "--", "sh", "-c",
                                  "env | sed \"s/^/$RANK /\"; echo $RANK end; exec sleep 60")
    told = [{} for _ in range(ranks_number)]
    waiting = ranks_number
    for line in program.stdout:
        number, _, assignment = line.rstrip("\n").partition(" ")
        name, _, value = assignment.partition("=")
        if name.startswith(stages.FOREIGN):
            told[int(number)][name] = value
        waiting -= assignment == "end"
        if waiting == 0:
            return told
    raise AssertionError("tutti run has ended")


@attack("F8", "keep the ranks of `tutti run` from meeting by listening at their MASTER_PORT")
def stop_held_port(stage):
    told = run_told(stage, 2)
    attacker = stage.start(_take_port, int(told[0]["MASTER_PORT"]), user=stages.ATTACKER)
    attacker.hear()
    limit = {**SOCKETS, "TUTTI_INIT_TIMEOUT_S": "2"}
    victims = [start(stage, {**environment, **limit}, VICTIMS_NUMBER) for environment in told]
    said = [victim.hear() for victim in victims]
    refusals = [one[1] for one in said if one and one[0] == "refused"]
    if refusals:
        return Outcome(True, f"the job cannot meet: \"{refusals[0]}\"")
    for victim in victims:
        expect_sum(victim, 2 * VICTIMS_NUMBER)
    return Outcome(False, "the ranks meet elsewhere")


@attack("F8", "listen at the MASTER_PORT that `tutti run` holds for programs of torch.distributed",
        open_because="The program's own socket must be able to take the port, and Linux lets any user do as much")
def take_held_port(stage):
    port = int(run_told(stage, 1)[0]["MASTER_PORT"])
    attacker = stage.start(_take_port, port, user=stages.ATTACKER)
    place = attacker.hear()
    return Outcome(place is not None, f"another user {place or 'cannot listen at the port'}")


class CoordinatorOptions(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("id", ctypes.c_void_p)] + [
        (name, ctypes.c_int) for name in ("rank", "nranks", "local_rank", "local_size", "cross_rank", "cross_size")]


class Tensor(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("name", ctypes.c_char_p), ("kind", ctypes.c_int), ("type", ctypes.c_int),
                ("ndim", ctypes.c_int), ("shape", ctypes.POINTER(ctypes.c_int64)), ("input", ctypes.c_void_p),
                ("output", ctypes.c_void_p), ("op", ctypes.c_int), ("compression", ctypes.c_int),
                ("prescale", ctypes.c_double), ("postscale", ctypes.c_double), ("root", ctypes.c_int),
                ("splits", ctypes.POINTER(ctypes.c_int64)), ("nsplits", ctypes.c_int), ("device", ctypes.c_int),
                ("stream", ctypes.c_void_p)]


ALLREDUCE, FLOAT32 = 0, 7


def make_coordinator(library, unique, rank):
    options = CoordinatorOptions(ctypes.sizeof(CoordinatorOptions))
    given = ranks.UniqueId()
    ctypes.memmove(ctypes.byref(given), unique, ranks.ID_BYTES)
    options.id = ctypes.addressof(given)
    options.rank, options.nranks, options.local_rank = rank, 2, rank
    options.local_size, options.cross_size = 2, 1
    coordinator = ctypes.c_void_p()
    library.tuttiCoordinatorLastError.restype = ctypes.c_char_p
    if library.tuttiCoordinatorCreate(ctypes.byref(coordinator), ctypes.byref(options)) != 0:
        raise ranks.Refused(library.tuttiCoordinatorLastError().decode(errors="replace"))
    return coordinator


def _coordinate(talk, library, unique, rank, act):
    """The body of a rank with a coordinator: makes it, does `act` and tells its result."""
    try:
        if unique is None:
            unique = ranks.Rank(library).make_id()
            talk.send(unique)
        talk.send(act(library, make_coordinator(library, unique, rank)))
    except ranks.Refused as refusal:
        talk.send(str(refusal))
    talk.recv()


def run_coordinators(stage, act, environments, seconds=10):
    """Runs two ranks, and returns what `act` gave on each, and their logs."""
    first = stage.start(_coordinate, stage.library, None, 0, act,
                        environment={**SOCKETS, **PATIENT, **SECRET, **environments[0]})
    unique = first.hear()
    second = stage.start(_coordinate, stage.library, unique, 1, act,
                         environment={**SOCKETS, **PATIENT, **SECRET, **environments[1]})
    results = [first.hear(seconds), second.hear(seconds)]
    return results, [first.log(), second.log()]


@attack("F9", "have rank 1 load a library that rank 0 alone names")
def name_a_library(stage):
    library = stage.lend("tests/security/*marker*.so")
    marks = [f"{stage.home_of(stages.VICTIM)}/mark-of-{number}" for number in (0, 1)]
    names = {"HOROVOD_CPU_OPERATIONS": f"nccl:{library},tutti"}
    results, logs = run_coordinators(stage, lambda *unused: "made", [{**names, "MARK": marks[0]}, {"MARK": marks[1]}])
    ran = [os.path.exists(mark) for mark in marks]
    assert ran[0], f"rank 0 did not load its own library: {results} {logs}"
    return Outcome(ran[1], f"the library's constructor {'ran' if ran[1] else 'did not run'} in rank 1; the "
                           f"coordinators of the ranks: {results}")


ESCAPE = "\x1b]0;title\x07\nTUTTI forged line"


def _ask_for_own_tensor(library, coordinator):
    """Asks for a tensor that no other rank asks for, and waits until the ranks have warned one another."""
    data = (ctypes.c_float * 4)()
    tensor = Tensor(ctypes.sizeof(Tensor), os.environ["TENSOR"].encode(), ALLREDUCE, FLOAT32, 1,
                    (ctypes.c_int64 * 1)(4), ctypes.addressof(data), ctypes.addressof(data), 1, 0, 1.0, 1.0, 0, None, 0,
                    -1, None)
    handle = ctypes.c_int64()
    result = library.tuttiCoordinatorEnqueue(coordinator, 0, ctypes.byref(tensor), 1, None, ctypes.byref(handle))
    if result != 0:
        return library.tuttiCoordinatorLastError().decode(errors="replace")
    time.sleep(1)  # several times the time after which a rank warns
    return "asked"


@attack("F16", "write escape sequences and forged lines into the log of another rank")
def write_into_log(stage):
    """By a tensor's name, and by the name of a library that rank 0 wants."""
    stall = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "0.1", "NCCL_DEBUG": "WARN"}
    results, logs = run_coordinators(stage, _ask_for_own_tensor, [{**stall, "TENSOR": f"weights{ESCAPE}"},
                                                                  {**stall, "TENSOR": "biases"}])
    assert results[1] == "asked" and "biases" in logs[1], f"rank 1 does not warn: {results} {logs[1]}"
    shown = logs[1]
    log = {"NCCL_DEBUG": "INFO"}
    results, logs = run_coordinators(stage, lambda *unused: "made",
                                     [{**log, "HOROVOD_CPU_OPERATIONS": f"nccl:/no/{ESCAPE}.so,tutti"}, log])
    shown += f"{results[1]}\n{logs[1]}"
    raw = "\x1b" in shown or "\nTUTTI forged" in shown
    lines = [line for line in shown.splitlines() if "forged" in line or "\x1b" in line]
    return Outcome(raw, f"the other rank writes {lines[0]!r}" if lines else "the other rank writes no such text")


PR_SET_PTRACER, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 0x59616d61, 38, 22, 2
SECCOMP_RET_KILL_PROCESS, SECCOMP_RET_ALLOW = 0x80000000, 0x7fff0000
SYS_PRCTL = {"x86_64": 157, "aarch64": 167}


class SockFprog(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def _die_at_ptracer():
    """Has the kernel kill this process when it names a tracer, whether or not the kernel has Yama."""
    number = SYS_PRCTL.get(os.uname().machine)
    if number is None:
        raise stages.Skipped(f"the number of prctl on {os.uname().machine} is not known here")
    load, if_equal, give = 0x20, 0x15, 0x06  # BPF: load a word, jump if equal, return
    program = b"".join(struct.pack("<HBBI", *one) for one in (
        (load, 0, 0, 0), (if_equal, 0, 3, number), (load, 0, 0, 16), (if_equal, 0, 1, PR_SET_PTRACER),
        (give, 0, 0, SECCOMP_RET_KILL_PROCESS), (give, 0, 0, SECCOMP_RET_ALLOW)))
    kept = ctypes.create_string_buffer(program, len(program))
    filter_of = SockFprog(len(program) // 8, ctypes.addressof(kept))
    stages.check_libc(stages.libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    stages.check_libc(stages.libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(filter_of), 0, 0), "seccomp")


def _join_alone(talk, library):
    _die_at_ptracer()
    one = ranks.Rank(library)
    try:
        one.join(one.make_id(), 0, 1)
        talk.send(("sum", one.sum(OWN_NUMBER)))
    except ranks.Refused as refusal:
        talk.send(("refused", str(refusal)))


@attack("F13", "be allowed to trace a process with a communicator of one rank")
def trace_lone_rank(stage):
    lone = stage.start(_join_alone, stage.library, environment={"TUTTI_BACKEND": "host"})
    heard = lone.hear()
    status = lone.wait()
    if heard is None and status is not None and os.WIFSIGNALED(status):
        return Outcome(True, "the process names every other process of the user as its tracer (prctl PR_SET_PTRACER)")
    assert heard == ("sum", OWN_NUMBER), f"{heard} {lone.log()}"
    return Outcome(False, "the process names no tracer")
