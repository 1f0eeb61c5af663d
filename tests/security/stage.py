"""The stage of the attacks: a network of its own, processes of several users, and ranks as victims.

The program that runs the attacks enters a network namespace and a host name of its own before it starts anything, so
that nothing outside can be reached and nothing outside disturbs. Victims run as one user, attackers as another user
without capabilities. Both use the library by ctypes; the parent loads the library and forks, so that an attacker needs
no access to the folder of the build.
"""

import ctypes
import encodings.idna  # noqa: F401  for look-ups of names: another user may not reach the folder of Python any more
import errno
import multiprocessing
import os
import pathlib
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback

VICTIM, ATTACKER = 61234, 65534
CLONE_NEWUTS, CLONE_NEWNET = 0x04000000, 0x40000000
PR_SET_DUMPABLE = 4
HOST_NAME = "host-that-nobody-else-should-see"
# An address of this machine that is no loopback address: what ranks on other machines would be told.
OWN_ADDRESS = "10.213.81.1"
# Variables of launchers and of the library that a developer's shell may have.
FOREIGN = ("TUTTI_", "NCCL_", "HOROVOD_", "OMPI_", "PMI", "SLURM_", "TORCHELASTIC_", "MASTER_", "RANK", "WORLD_SIZE",
           "LOCAL_RANK", "LOCAL_WORLD_SIZE", "_HOROVOD_")

libc = ctypes.CDLL(None, use_errno=True)


class Skipped(Exception):
    """This machine cannot show the attack; the text says why."""


def check_libc(result, what):
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def run_ip(*words):
    subprocess.run(["ip", *words], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def enter_own_network():
    """Moves this process into an empty network with loopback only, and gives the host a name to search for."""
    if os.geteuid() != 0:
        raise Skipped("the attacks need root: an attacker is another user, and the network is a namespace")
    try:
        check_libc(libc.unshare(CLONE_NEWNET | CLONE_NEWUTS), "unshare")
        run_ip("link", "set", "lo", "up")
        run_ip("addr", "add", f"{OWN_ADDRESS}/32", "dev", "lo")
    except (OSError, subprocess.CalledProcessError) as error:
        raise Skipped(f"the attacks need network namespaces and the ip program (package iproute2): {error}") from error
    socket.sethostname(HOST_NAME)


def clear_environment():
    for name in list(os.environ):
        if name.startswith(FOREIGN):
            del os.environ[name]


def become(user):
    """Gives up root, and with it all capabilities. The process may still be examined by others of the user, as any
    program that the user starts may be."""
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)


def disguise_as(user):
    """Has the library take this process, and the far ends of local sockets, for the user's (disguise.c)."""
    if not hasattr(libc, "DisguiseAs"):
        raise Skipped("the build has no tests/security/security_disguise.so")
    libc.DisguiseAs(user)


class Process:
    """A forked process that runs `body(talk, *arguments)` as `user`, where `talk` is its end of a pipe of objects."""

    def __init__(self, stage, body, *arguments, user=VICTIM, environment=None, before=None):
        self.talk, theirs = multiprocessing.Pipe()
        self.log_path = stage.new_file()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self._run(stage, theirs, body, arguments, user, environment or {}, before)
        theirs.close()
        self.ended = False

    def _run(self, stage, theirs, body, arguments, user, environment, before):
        status = 1
        try:
            log = os.open(self.log_path, os.O_WRONLY | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            if before:
                before()
            if user:
                become(user)
            os.environ["HOME"] = stage.home_of(user)
            os.environ.update(environment)
            body(theirs, *arguments)
            status = 0
        except BaseException:  # noqa: B902  the process ends here, whatever happened
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def hear(self, seconds=15):
        """Returns the next object from the process; None when there is none in time, or the process has ended."""
        try:
            return self.talk.recv() if self.talk.poll(seconds) else None
        except (EOFError, ConnectionResetError):
            return None

    def log(self):
        return pathlib.Path(self.log_path).read_text(errors="replace")

    def wait(self, seconds=15):
        """Returns the status of os.waitpid, or None when the process still runs."""
        limit = time.monotonic() + seconds
        while not self.ended and time.monotonic() < limit:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid == self.pid:
                self.ended = True
                return status
            time.sleep(0.005)
        return None

    def end(self):
        if not self.ended:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.ended = True
        self.talk.close()


class Stage:
    """Owns the processes and files of one attack, and ends them with it."""

    def __init__(self, build, library):
        self.build, self.library = pathlib.Path(build), library
        self.folder = tempfile.TemporaryDirectory(prefix="tutti-security-")
        os.chmod(self.folder.name, 0o755)
        self.processes, self.programs, self.files, self.homes = [], [], 0, {}

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        for process in self.processes:
            process.end()
        for program in self.programs:
            program.kill()
            program.wait()
        self.folder.cleanup()

    def home_of(self, user):
        """Returns a folder of the user's own."""
        if user not in self.homes:
            self.homes[user] = f"{self.folder.name}/home-{user}"
            os.makedirs(self.homes[user], mode=0o700, exist_ok=True)
            if os.geteuid() == 0:
                os.chown(self.homes[user], user or 0, user or 0)
        return self.homes[user]

    def lend(self, pattern):
        """Returns a copy, for every user, of the file of the build that matches a pattern."""
        built = next(iter(self.build.glob(pattern)), None)
        if built is None:
            raise Skipped(f"the build has no {pattern}")
        os.chmod(self.home_of(0), 0o755)
        copy = pathlib.Path(self.home_of(0), built.name)
        copy.write_bytes(built.read_bytes())
        copy.chmod(0o755)
        return copy

    def new_file(self):
        self.files += 1
        path = f"{self.folder.name}/{self.files}"
        pathlib.Path(path).touch()
        os.chmod(path, 0o666)
        return path

    def start(self, body, *arguments, **options):
        self.home_of(options.get("user", VICTIM))
        process = Process(self, body, *arguments, **options)
        self.processes.append(process)
        return process

    def start_program(self, *command, environment=None, descriptors=None):
        """Starts the `tutti` program, with its output on a pipe."""
        def limit():
            if descriptors:
                resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
        program = subprocess.Popen([self.build / "tools" / "tutti", *command], stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, preexec_fn=limit,
                                   env={**os.environ, "HOME": self.home_of(0), **(environment or {})})
        self.programs.append(program)
        return program


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def memory_kib(pid):
    """Returns the resident memory of a process."""
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise OSError(errno.ESRCH, f"process {pid} has no memory any more")


def demand_seconds(pid):
    """Returns how long the threads of a process have run or waited for a processor, which a busy machine does not
    lessen."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        run, delay, _ = pathlib.Path(f"/proc/{pid}/task/{task}/schedstat").read_text().split()
        total += int(run) + int(delay)
    return total / 1e9


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def await_true(condition, seconds=5):
    """Returns whether the condition became true in time."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        if condition():
            return True
        time.sleep(0.01)
    return False


def listens(port):
    """Returns whether a process of this network listens at a TCP port."""
    for name in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rsplit(":", 1)[1], 16) == port:
                return True
    return False

