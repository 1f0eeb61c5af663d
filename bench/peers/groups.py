"""The groups of ranks under measurement: what there is to measure, how it is built and started, how it is spoken to."""

import dataclasses
import os
import pathlib
import select
import shutil
import signal
import socket
import subprocess
import sys
import time

import hosts

HERE = pathlib.Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
CORES = len(os.sched_getaffinity(0))
POOL_BYTES = 256 << 20  # of each of a rank's two pools: room for the largest message
START_DEADLINE_S = 60
# Starts all ranks in one session, as mpirun does: Linux shares cores between sessions first (autogroups), so that a rank
# in a session of its own could not give its core to another rank.
START_RANKS = """
rank=0 ranks=
while [ $rank -lt $WORLD_SIZE ]; do RANK=$rank "$@" & ranks="$ranks $!"; rank=$((rank + 1)); done
for one in $ranks; do wait $one || exit 1; done
"""
# The same on two hosts, the first half of the ranks on the first one.
START_ON_HOSTS = """
agent=$1 first=$2 second=$3 rank=0 ranks=
shift 3
while [ $rank -lt $WORLD_SIZE ]; do
  host=$first; [ $((2 * rank)) -lt $WORLD_SIZE ] || host=$second
  RANK=$rank "$agent" $host "$@" & ranks="$ranks $!"; rank=$((rank + 1))
done
for one in $ranks; do wait $one || exit 1; done
"""
C_FLAGS = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror"]


class Unavailable(Exception):
    """A peer cannot be measured here; the text says why."""


class Failed(Exception):
    """A group failed or took too long; the text says how. The group is dead, unless it was only Wrong."""


class Wrong(Failed):
    """A collective's result was wrong; the text says where. The group lives."""


@dataclasses.dataclass(frozen=True)
class Peer:
    """A library in one of its configurations. `over` holds the networks it can be measured on."""

    name: str
    title: str
    family: str  # "tutti", "mpi" or "gloo"
    over: tuple = ("shm", "tcp", *hosts.NETS)

    @property
    def program(self):
        """The name of its compiled program."""
        return f"{self.name.removesuffix('-mem')}_bench"


PEERS = (
    Peer("tutti", "Tutti, ordinary memory", "tutti"),
    Peer("tutti-mem", "Tutti, memory from ncclMemAlloc", "tutti", over=("shm",)),
    Peer("ompi", "Open MPI", "mpi"),
    Peer("mpich", "MPICH", "mpi"),
    Peer("gloo", "PyTorch's Gloo (always TCP)", "gloo"),
)
# Another build of Tutti that takes its turns in the same run (run.py's --earlier): each is compared with the first
# Tutti in the same kind of memory.
EARLIER = (
    Peer("earlier", "an earlier Tutti, ordinary memory", "tutti"),
    Peer("earlier-mem", "an earlier Tutti, memory from ncclMemAlloc", "tutti", over=("shm",)),
)


def compared_tutti(name):
    """The name of the Tutti that the peer `name` is compared with."""
    return "tutti-mem" if name == "earlier-mem" else "tutti"


@dataclasses.dataclass(frozen=True)
class Site:
    """Where and how groups run: directory of built programs, network, number of ranks."""

    work: pathlib.Path
    net: str
    ranks: int

    @property
    def on_hosts(self):
        """The ranks are on two hosts, half of them on each; within a host each library does as it likes."""
        return self.net in hosts.NETS

    @property
    def crowded(self):
        """More ranks than cores: nobody is pinned, and who waits must yield."""
        return self.ranks > CORES


def build(peers, work, library, earlier=None):
    """Builds the programs of `peers` into `work`, Tutti's with `library` and an earlier Tutti's with `earlier`.

    Returns {name: why} of those that cannot be measured here.
    """
    common = [str(HERE / "bench_common.c"), "-lm"]
    _compile(["cc", *C_FLAGS, "-shared", "-fPIC", *common, "-o", str(work / "libbench_common.so")])
    missing = {}
    for peer in peers:
        try:
            _build_one(peer, work, earlier if peer in EARLIER else library, common)
        except Unavailable as why:
            missing[peer.name] = str(why)
    return missing


def _build_one(peer, work, library, common):
    if peer.family == "mpi":
        wrapper = {"ompi": "mpicc.openmpi", "mpich": "mpicc.mpich"}[peer.name]
        if not shutil.which(wrapper):
            package = {"ompi": "libopenmpi-dev", "mpich": "libmpich-dev"}[peer.name]
            raise Unavailable(f"{wrapper} is not installed (Debian: {package})")
        _compile([wrapper, *C_FLAGS, str(HERE / "mpi_bench.c"), *common, "-o", str(work / peer.program)])
    elif peer.family == "gloo":
        probe = "import torch.distributed as d; raise SystemExit(not (d.is_available() and d.is_gloo_available()))"
        if subprocess.run([sys.executable, "-c", probe], capture_output=True, check=False).returncode != 0:
            raise Unavailable("this Python has no PyTorch with Gloo (pip install torch, the CPU build)")
    else:
        if not library.exists():
            where = os.path.relpath(library, REPOSITORY)
            raise Unavailable(f"Tutti's library {where} is not there; build it first")
        _compile(["cc", *C_FLAGS, f"-I{REPOSITORY / 'include'}", str(HERE / "tutti_bench.c"), *common, str(library),
                  f"-Wl,-rpath,{library.parent}", "-o", str(work / peer.program)])


def _compile(command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Unavailable(f"{command[0]} failed: " + " ".join(done.stderr.split())[:300])


def _commands(peer, site):
    """The command lines to start, each with its environment additions."""
    if peer.family == "mpi":
        program = str(site.work / peer.program)
        return [(_open_mpi if peer.name == "ompi" else _mpich)(site, program)]
    program = [sys.executable, str(HERE / "gloo_bench.py")]
    interface = hosts.DEVICE if site.on_hosts else "lo"
    extra = {"GLOO_SOCKET_IFNAME": interface, "BENCH_LIBRARY": str(site.work / "libbench_common.so")}
    if peer.family == "tutti":
        program = [str(site.work / peer.program)]
        extra = {"BENCH_MEMORY": "nccl" if peer.name.endswith("-mem") else "plain"}
        if site.net == "tcp":
            extra |= {"NCCL_SHM_DISABLE": "1", "NCCL_P2P_DISABLE": "1"}
        if site.net != "shm":
            extra |= {"NCCL_SOCKET_IFNAME": interface}
    start = [START_RANKS, "sh"]
    if site.on_hosts:
        start = [START_ON_HOSTS, "sh", str(site.work / "agent"), *hosts.ADDRESSES]
    return [(["sh", "-c", *start, *program], extra | {"WORLD_SIZE": str(site.ranks)})]


def _open_mpi(site, program):
    network = {"shm": ["--mca", "btl", "self,vader"],
               "tcp": ["--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "lo"]}.get(site.net)
    if site.on_hosts:
        slots = ",".join(f"{address}:{(site.ranks + 1) // 2}" for address in hosts.ADDRESSES)
        network = ["-H", slots, "--mca", "btl", "self,vader,tcp", "--mca", "btl_tcp_if_include", hosts.DEVICE,
                   "--mca", "oob_tcp_if_include", hosts.DEVICE, "--mca", "plm_rsh_no_tree_spawn", "1",
                   "--mca", "plm_rsh_agent", str(site.work / "agent")]
    command = [*_on_first(site), "mpirun.openmpi", "-n", str(site.ranks), "--oversubscribe", "--bind-to", "none", "--mca", "pml", "ob1",
               *network, "--mca", "mpi_yield_when_idle", "1" if site.crowded else "0", program]
    return command, {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def _mpich(site, program):
    """Debian's MPICH is ch4:ucx: shared memory is ch4's own, and without it (NOLOCAL) UCX does the talking."""
    extra = {}
    if site.net == "tcp":
        extra |= {"MPIR_CVAR_NOLOCAL": "1", "UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "lo"}
    where = []
    if site.on_hosts:
        extra |= {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": hosts.DEVICE}
        where = ["-hosts", ",".join(f"{address}:{(site.ranks + 1) // 2}" for address in hosts.ADDRESSES), "-iface",
                 hosts.DEVICE, "-launcher", "ssh", "-launcher-exec", str(site.work / "agent")]
    return [*_on_first(site), "mpiexec.mpich", *where, "-n", str(site.ranks), "-bind-to", "none", program], extra


def _on_first(site):
    """What runs a command on the first of two hosts."""
    return [str(site.work / "agent"), hosts.ADDRESSES[0]] if site.on_hosts else []


class Group:
    """The ranks of one peer, started once and asked again and again. Owns their processes; close() ends them."""

    def __init__(self, peer, site):
        self.peer = peer
        self.site = site
        self.connections = []
        self.processes = []
        self.directory = site.work / f"{peer.name}-{site.net}-{site.ranks}-{time.monotonic_ns()}"
        self.directory.mkdir()
        try:
            self._start()
        except BaseException:
            self.kill()
            raise

    def _start(self):
        paths = {name: self.directory / name for name in ("socket", "barrier", "id", "log")}
        paths["barrier"].write_bytes(bytes(4096))
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with listener, open(paths["log"], "wb") as log:
            listener.bind(str(paths["socket"]))
            listener.listen(self.site.ranks)
            shared = {
                "BENCH_SOCKET": str(paths["socket"]), "BENCH_BARRIER": str(paths["barrier"]),
                "BENCH_ID_FILE": str(paths["id"]), "BENCH_RANKS": str(self.site.ranks),
                "BENCH_POOL_BYTES": str(POOL_BYTES), "BENCH_PIN": "0" if self.site.crowded else "1",
                "BENCH_YIELD": "1" if self.site.crowded else "0"}
            for command, extra in _commands(self.peer, self.site):
                self.processes.append(subprocess.Popen(
                    command, env=os.environ | shared | extra, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    start_new_session=True))
            self._accept(listener, time.monotonic() + START_DEADLINE_S)
        self._answers(START_DEADLINE_S)  # "hello" from each

    def _accept(self, listener, deadline):
        listener.settimeout(0.2)
        while len(self.connections) < self.site.ranks:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                if time.monotonic() > deadline or any(p.poll() not in (None, 0) for p in self.processes):
                    raise Failed(f"{self.peer.name} did not start: {self._log_tail()}") from None
                continue
            self.connections.append((connection, connection.makefile("r")))

    def _log_tail(self):
        text = (self.directory / "log").read_text(errors="replace")
        return " ".join(text.split())[-300:] or "(it printed nothing)"

    def _answers(self, timeout_s):
        """One line from every rank, as words."""
        answers = []
        deadline = time.monotonic() + timeout_s
        waiting = dict(self.connections)
        while waiting:
            ready, _, _ = select.select(waiting, [], [], max(0, deadline - time.monotonic()))
            if not ready:
                raise Failed(f"{len(waiting)} of {self.site.ranks} ranks gave no answer within {timeout_s:.0f} s")
            for connection in ready:
                words = waiting.pop(connection).readline().split()
                if not words:
                    raise Failed(f"a rank ended: {self._log_tail()}")
                if words[0] == "error":
                    raise Failed(" ".join(words[1:]))
                answers.append(words)
        return answers

    def measure(self, collective, bytes_, warmup, iterations, batch, check, timeout_s):
        """Microseconds of one call, one number per iteration: the slowest rank's. Raises Failed."""
        command = f"measure {collective} {bytes_} {warmup} {iterations} {batch} {int(check)}\n".encode()
        try:
            for connection, _ in self.connections:
                connection.sendall(command)
            answers = self._answers(timeout_s)
        except (Failed, OSError) as error:
            self.kill()
            raise Failed(f"{collective} of {bytes_} bytes: {error}") from None
        wrong = [" ".join(answer[1:]) for answer in answers if answer[0] == "wrong"]
        if wrong:
            raise Wrong("wrong result: " + wrong[0])
        return [max(map(int, iteration)) / 1000 / batch for iteration in zip(*(a[1:] for a in answers), strict=True)]

    def close(self):
        """Lets the ranks leave in good order, and ends them if they do not."""
        for connection, _ in self.connections:
            try:
                connection.sendall(b"quit\n")
            except OSError:
                pass
        deadline = time.monotonic() + 10
        for process in self.processes:
            try:
                process.wait(max(0.01, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                pass
        self.kill()

    def kill(self):
        """Ends the processes that this group started, each with the session it leads, and drops the connections."""
        for process in self.processes:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
        for connection, lines in self.connections:
            lines.close()
            connection.close()
        self.processes, self.connections = [], []
