# SPDX-License-Identifier: Apache-2.0
"""Who this process is among the ranks that a launcher started, and how rank 0's unique id reaches
the others.

The environment is read in this order: HOROVOD_RANK …, the names that torchrun and `tutti run` set,
Open MPI's, PMI's (MPICH, Intel MPI, srun --mpi=pmi2), Slurm's. Ranks meet at
HOROVOD_GLOO_RENDEZVOUS_ADDR and _PORT, TUTTI_ADDR (host:port), or MASTER_ADDR and MASTER_PORT, where
rank 0 listens while it initialises; ranks of mpirun or srun on one machine need none of them and
meet at a socket of that machine, those of srun on several on the first of them.

Wire format, over one connection for each rank but 0. A frame is a length (4 bytes, big-endian, at
most 64 KiB; 1 MiB for the answer) and JSON. The acceptor sends 32 random bytes, the connector 32
random bytes and the proof of the key, then a frame {rank, host, told}; the acceptor answers with
its own proof and a frame {id, hosts, local_ranks}. Key = BLAKE2b of the job's name and
TUTTI_COMM_KEY, else a secret that the launcher gave its ranks (Open MPI does); without either, the
ranks prove only that they know the job's name, and rank 0 warns where others can reach it. Sockets of
the machine are for one user alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import ipaddress
import json
import os
import secrets
import selectors
import socket
import struct
import time
import warnings
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from tutti import _hosts

# As long as a launcher may take to start the last rank.
TIMEOUT_S = 120.0
# What a guest has to prove who it is, from its first byte to its last. Strangers who take longer are
# sent away; they hold nobody up.
_HANDSHAKE_S = 5.0
# So that strangers cannot take all descriptors; who was there longest goes when more come.
_MAX_GUESTS = 256
_MAX_HELLO_BYTES = 64 * 1024
_MAX_ANSWER_BYTES = 1024 * 1024 * 64  # a host name for each of 2^20 ranks
_NONCE_BYTES = 32
# torchrun's agent holds MASTER_PORT itself, so rank 0 takes one of the next few. A port that is
# made of a job's number may be somebody's.
_PORT_CHOICES = 8
# What starts ranks on a machine for MPICH's and Intel MPI's mpirun.
_HYDRAS_PROXY = "hydra_pmi_proxy"

Address = Union[str, Tuple[str, int]]  # a str is the name of an abstract local socket


@dataclass
class Launch:
    """This process among its job's."""
    rank: int = 0
    size: int = 1
    job: str = ""
    host: str = ""
    addresses: List[Address] = field(default_factory=list)
    one_machine: bool = False  # where the launcher says so
    told: _hosts.Told = None


@dataclass
class Meeting:
    """What all ranks know after they have met: the unique id, each rank's host and number there."""
    unique_id: bytes
    hosts: List[str]
    local_ranks: List[int] = field(default_factory=list)


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name}={text} in the environment is not a number") from None


def _ranks(environ: Mapping[str, str], rank: str, size: str) -> Tuple[int, int]:
    numbers = _number(environ, rank), _number(environ, size)
    if not 0 <= numbers[0] < numbers[1]:
        raise ValueError(f"{rank}={numbers[0]} in the environment is not below {size}={numbers[1]}")
    return numbers


def _host_port(name: str, text: str) -> Address:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"{name}={text} in the environment is not HOST:PORT")
    return host.strip("[]"), int(port)


def _master_addresses(environ: Mapping[str, str]) -> List[Address]:
    if not environ.get("MASTER_ADDR") or not environ.get("MASTER_PORT"):
        return []
    address, port = environ["MASTER_ADDR"], _number(environ, "MASTER_PORT")
    if environ.get("TORCHELASTIC_USE_AGENT_STORE", "False").lower() not in ("true", "1"):
        return [(address, port)]
    return [(address, port + i if port + i < 65536 else port - i)
            for i in range(1, _PORT_CHOICES + 1)]


def _addresses(environ: Mapping[str, str]) -> List[Address]:
    """Those that were given for the ranks to meet at."""
    if environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR") and environ.get("HOROVOD_GLOO_RENDEZVOUS_PORT"):
        return [(environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"],
                 _number(environ, "HOROVOD_GLOO_RENDEZVOUS_PORT"))]
    if environ.get("TUTTI_ADDR"):
        return [_host_port("TUTTI_ADDR", environ["TUTTI_ADDR"])]
    return _master_addresses(environ)


def _first_host(nodes: str) -> str:
    """Of Slurm's lists: n[07-12,20]x,m is n07x."""
    head, bracket, rest = nodes.partition("[")
    if not bracket or "," in head:
        return head.partition(",")[0]
    numbers, _, tail = rest.partition("]")
    return head + numbers.replace("-", ",").partition(",")[0] + tail.partition(",")[0]


def _slurm_addresses(environ: Mapping[str, str]) -> List[Address]:
    """On the step's first node, which has rank 0: ports that all ranks make of the same numbers,
    below those that the system gives away by itself (32768) and above its own."""
    host = _first_host(environ.get("SLURM_STEP_NODELIST", ""))
    if not host or not environ.get("SLURM_JOB_ID"):
        return []
    job, step = _number(environ, "SLURM_JOB_ID"), _number(environ, "SLURM_STEP_ID")
    return [(host, 15000 + (job * 7 + step) % 17000 + i) for i in range(_PORT_CHOICES)]


def _proxy() -> int:
    """The process that started this rank, itself or by way of scripts: the nearest ancestor that is
    mpirun's or has no rank in its environment."""
    pid = os.getppid()
    while pid > 1:
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                has_rank = b"\0PMI_RANK=" in b"\0" + file.read()
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                # pid (name) state parent …; the name may have any characters.
                before, _, behind = file.read().rpartition(")")
        except OSError:
            break
        if not has_rank or before.partition("(")[2] == _HYDRAS_PROXY:
            break
        pid = int(behind.split()[1])
    return pid


@dataclass
class _Launcher:
    """What one kind of launcher says in the environment."""
    rank: str  # a variable's name, as the next
    size: str
    job: str
    told: _hosts.Told
    # Whether there is one machine, if the launcher says it by other means than `told`.
    one_machine: bool = False
    step: bool = False  # of Slurm, with a list of nodes
    proxy: bool = False  # only the process that started the ranks tells its jobs apart


def _pmi(environ: Mapping[str, str]) -> _Launcher:
    job = environ.get("PMI_JOBID", "")
    size = environ.get("PMI_SIZE", "")
    # mpirun may have been started by srun, and its ranks then see variables of both. Its own come
    # first; a step of as many tasks as there are ranks is what started them only without those.
    if not environ.get("MPI_LOCALNRANKS") and size and environ.get("SLURM_STEP_ID") and \
            environ.get("SLURM_STEP_NUM_TASKS") == size:
        return _Launcher("PMI_RANK", "PMI_SIZE", f"pmi {job}", _hosts.slurm_told(environ),
                         [str(tasks) for tasks in _hosts.slurms_tasks(environ)] == [size], step=True,
                         proxy=not job)
    return _Launcher("PMI_RANK", "PMI_SIZE", f"pmi {job}",
                     _hosts.told(environ, "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
                     environ.get("MPI_LOCALNRANKS") == size, proxy=True)


def _launchers(environ: Mapping[str, str]) -> List[_Launcher]:
    """In the order in which they count."""
    torch = f"torch {environ.get('MASTER_ADDR', '')} {environ.get('MASTER_PORT', '')} " \
            f"{environ.get('TORCHELASTIC_RUN_ID', '')} " \
            f"{environ.get('TORCHELASTIC_RESTART_COUNT', '')}"
    open_mpi = environ.get("PMIX_NAMESPACE", environ.get("OMPI_MCA_ess_base_jobid", ""))
    made = [
        _Launcher(rank, size, job, _hosts.told(environ, local_rank, local_size),
                  bool(environ.get(size)) and environ.get(local_size) == environ.get(size))
        for rank, size, local_rank, local_size, job in (
            ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE", "horovod"),
            ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", torch),
            ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
             "OMPI_COMM_WORLD_LOCAL_SIZE", f"openmpi {open_mpi}"))]
    made.append(_pmi(environ))
    if environ.get("SLURM_STEP_ID"):
        size = "SLURM_STEP_NUM_TASKS" if environ.get("SLURM_STEP_NUM_TASKS") else "SLURM_NTASKS"
        made.append(_Launcher(
            "SLURM_PROCID", size,
            f"slurm {environ.get('SLURM_JOB_ID')} {environ['SLURM_STEP_ID']}",
            _hosts.slurm_told(environ),
            [str(tasks) for tasks in _hosts.slurms_tasks(environ)] == [environ.get(size)],
            step=True))
    return made


def read(environ: Mapping[str, str] = os.environ) -> Launch:
    """What the launcher says. One rank alone where there was none. ValueError, in a sentence, for
    what cannot be."""
    host = _hosts.identity(environ)
    for launcher in _launchers(environ):
        if not environ.get(launcher.rank) or not environ.get(launcher.size):
            continue
        rank, size = _ranks(environ, launcher.rank, launcher.size)
        job, addresses = launcher.job, _addresses(environ)
        if not addresses and launcher.one_machine:
            # Ranks of several machines have no such process in common.
            job += f" {_proxy()}" if launcher.proxy else ""
            addresses = [_local_address(job)]
        elif not addresses and launcher.step:
            addresses = _slurm_addresses(environ)
        if size > 1 and not addresses:
            raise ValueError(
                f"{launcher.rank} says that there are {size} ranks, but they have no way to meet: "
                "set MASTER_ADDR and MASTER_PORT, or TUTTI_ADDR=HOST:PORT, to an address of rank 0")
        return Launch(rank, size, job, host, addresses, launcher.one_machine, launcher.told)
    return Launch(host=host, one_machine=True)


def _local_address(name: str) -> Address:
    """A socket of this machine that other users' jobs of the same name do not share."""
    digest = hashlib.blake2b(f"{name}|{os.getuid()}".encode(), digest_size=16).hexdigest()
    return f"\0tutti-{digest}"


def part(launch: Launch, ranks: Sequence[int]) -> Launch:
    """A job of these of the launch's ranks alone, numbered in the order given, which every one of
    them begins and the others do not. ValueError where that cannot be."""
    numbers = [int(rank) for rank in ranks]
    if not numbers or len(set(numbers)) != len(numbers) or \
            not all(0 <= number < launch.size for number in numbers):
        raise ValueError(f"comm={numbers} does not consist of different ranks from 0 to "
                         f"{launch.size - 1}")
    if launch.rank not in numbers:
        raise ValueError(f"rank {launch.rank} is not among comm={numbers}; ranks that take no part "
                         "do not call init")
    job = f"{launch.job}|{numbers}"
    if launch.one_machine:
        # Of jobs that were given addresses these may be all that differs.
        addresses = [_local_address(f"{job}|{launch.addresses}")]
    elif numbers[0] == 0:
        addresses = launch.addresses
    else:
        raise ValueError(f"comm={numbers}: ranks of several machines meet at an address of rank 0, "
                         "so that has to be the first of them")
    return Launch(numbers.index(launch.rank), len(numbers), job, launch.host, addresses,
                  launch.one_machine)


# Variables in which launchers give the ranks of one job, and nobody else, random text.
_LAUNCHERS_SECRETS = ("OMPI_MCA_orte_precondition_transports",)


def _secret(environ: Mapping[str, str] = os.environ) -> str:
    """What only the job's ranks know; empty where there is nothing."""
    for name in ("TUTTI_COMM_KEY", *_LAUNCHERS_SECRETS):
        if environ.get(name):
            return environ[name]
    return ""


def _key(launch: Launch) -> bytes:
    text = f"tutti python|{launch.job}|{launch.size}|{_secret()}"
    return hashlib.blake2b(text.encode(), digest_size=32).digest()


def _proof(key: bytes, who: bytes, nonces: bytes, body: bytes) -> bytes:
    return hmac.new(key, who + nonces + body, hashlib.sha256).digest()


def _receive(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(min(count - len(data), 1 << 20))
        if not part:
            raise ConnectionError("the connection was closed early")
        data += part
    return data


def _send_frame(connection: socket.socket, body: bytes) -> None:
    connection.sendall(struct.pack(">I", len(body)) + body)


def _receive_frame(connection: socket.socket, limit: int) -> bytes:
    (count,) = struct.unpack(">I", _receive(connection, 4))
    if count > limit:
        raise ConnectionError(f"a frame of {count} bytes is longer than {limit}")
    return _receive(connection, count)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.split("%")[0]).is_loopback
    except ValueError:
        return False


def _own_addresses(address: Tuple[str, int]) -> List[Any]:
    """Where to listen so that connections to `address` arrive: (family, socket address), the
    narrowest first, all of the machine's addresses last."""
    host, port = address
    everywhere = [(socket.AF_INET6, ("", port))] if socket.has_dualstack_ipv6() else \
        [(socket.AF_INET, ("", port))]
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return everywhere
    # Other machines may know a name by another address than this one does.
    if host != "localhost" and all(host != entry[4][0] for entry in found):
        return everywhere
    return [(entry[0], entry[4]) for entry in found] + \
        ([] if _is_loopback(str(found[0][4][0])) else everywhere)


def _bind(family: int, target: Any) -> socket.socket:
    listener = socket.socket(family)
    try:
        if family != socket.AF_UNIX:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(target[0] != ""))
        listener.bind(target)
        listener.listen(128)
        return listener
    except OSError:
        listener.close()
        raise


def _listen(launch: Launch) -> socket.socket:
    errors = []
    for address in launch.addresses:
        places = [(socket.AF_UNIX, address)] if isinstance(address, str) \
            else _own_addresses(address)
        for family, target in places:
            try:
                listener = _bind(family, target)
            except OSError as error:
                errors.append(f"{address}: {error}")
                continue
            if family != socket.AF_UNIX and not _secret() and not _is_loopback(target[0]):
                warnings.warn(f"ranks meet at {address[0]}:{address[1]} without TUTTI_COMM_KEY: "
                              "whoever reaches that address and knows the job's name could take "
                              "part in it; set the variable to one secret on all ranks",
                              RuntimeWarning)
            return listener
    raise ConnectionError("rank 0 cannot listen for the others at " + ", ".join(errors))


def _check_user(connection: socket.socket) -> None:
    """ConnectionError where the other end of a socket of this machine is another user's (root may)."""
    if connection.family != socket.AF_UNIX:
        return
    size = struct.calcsize("3i")
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED,
                                                           size))
    if user not in (os.getuid(), 0):
        raise ConnectionError(f"the other end belongs to user {user}")


class _Guest:
    """Who has connected and not proved yet to be a rank."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.deadline = time.monotonic() + _HANDSHAKE_S
        self._nonce = secrets.token_bytes(_NONCE_BYTES)
        self._data = b""
        connection.setblocking(False)
        _check_user(connection)
        connection.send(self._nonce)  # fits into the empty buffer of a new connection

    def advance(self, key: bytes, size: int) -> Tuple[int, bytes, str, _hosts.Told]:
        """Reads what has come: (rank, nonces, host, told) once that is all. BlockingIOError before; another
        OSError, ValueError, KeyError or TypeError for a stranger."""
        head = 2 * _NONCE_BYTES + 4
        while True:
            wanted = head
            if len(self._data) >= head:
                wanted += struct.unpack(">I", self._data[head - 4:head])[0]
                if wanted - head > _MAX_HELLO_BYTES:
                    raise ConnectionError("a frame that is too long")
                if len(self._data) == wanted:
                    return self._prove(key, size, head)
            part = self.connection.recv(wanted - len(self._data))
            if not part:
                raise ConnectionError("the connection was closed early")
            self._data += part

    def _prove(self, key: bytes, size: int, head: int) -> Tuple[int, bytes, str, _hosts.Told]:
        nonces, body = self._nonce + self._data[:_NONCE_BYTES], self._data[head:]
        proof = self._data[_NONCE_BYTES:2 * _NONCE_BYTES]
        if not hmac.compare_digest(proof, _proof(key, b"connector", nonces, body)):
            raise ConnectionError("wrong key")
        hello = json.loads(body)
        rank = int(hello["rank"])
        if not 0 < rank < size:
            raise ValueError(f"there is no rank {rank}")
        told = hello["told"]
        return rank, nonces, str(hello["host"]), (int(told[0]), int(told[1])) if told else None


class _Door:
    """Lets in who proves to be a rank, several at a time, and sends the others away. One thread."""

    def __init__(self, launch: Launch, listener: socket.socket) -> None:
        self._key, self._size, self._listener = _key(launch), launch.size, listener
        self._guests: Dict[socket.socket, _Guest] = {}  # in the order in which they came
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        listener.setblocking(False)
        self.ranks: Dict[int, Any] = {}  # connection, nonces, host, told

    def wait(self, deadline: float) -> None:
        """For something to happen, not longer than until the deadline."""
        ends = [guest.deadline for guest in self._guests.values()] + [deadline]
        for key, _ in self._selector.select(max(0.0, min(ends) - time.monotonic())):
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj in self._guests:
                self._hear(self._guests[key.fileobj])  # type: ignore[index]
        now = time.monotonic()
        for guest in [guest for guest in self._guests.values() if guest.deadline <= now]:
            self._send_away(guest)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return  # gone again, or no descriptor left
        try:
            guest = _Guest(connection)
        except OSError:
            connection.close()
            return
        if len(self._guests) >= _MAX_GUESTS:
            self._send_away(next(iter(self._guests.values())))
        self._guests[connection] = guest
        self._selector.register(connection, selectors.EVENT_READ)

    def _hear(self, guest: _Guest) -> None:
        try:
            rank, *said = guest.advance(self._key, self._size)
        except (BlockingIOError, InterruptedError):
            return
        except (OSError, LookupError, TypeError, ValueError):
            self._send_away(guest)
            return
        self._selector.unregister(guest.connection)
        del self._guests[guest.connection]
        if rank in self.ranks:  # it has tried again
            self.ranks[rank][0].close()
        self.ranks[rank] = (guest.connection, *said)

    def _send_away(self, guest: _Guest) -> None:
        self._selector.unregister(guest.connection)
        del self._guests[guest.connection]
        guest.connection.close()

    def close(self) -> None:
        """Closes everybody's connection."""
        self._selector.close()
        for guest in self._guests.values():
            guest.connection.close()
        for connection, *_ in self.ranks.values():
            connection.close()


def _meet_as_zero(launch: Launch, unique_id: bytes, deadline: float,
                  timeout_s: float) -> Meeting:
    key = _key(launch)
    with contextlib.ExitStack() as stack:
        door = _Door(launch, stack.enter_context(_listen(launch)))
        stack.callback(door.close)
        while len(door.ranks) < launch.size - 1:
            if time.monotonic() >= deadline:
                missing = [str(r) for r in range(1, launch.size) if r not in door.ranks]
                raise ConnectionError(
                    f"{len(door.ranks) + 1} of {launch.size} ranks came within {timeout_s:g} s; "
                    f"missing: {', '.join(missing[:20])}")
            door.wait(deadline)
        said = [(launch.host, launch.told)] + \
            [tuple(door.ranks[rank][2:]) for rank in range(1, launch.size)]
        hosts, local_ranks = _hosts.settle([host for host, _ in said], [told for _, told in said])
        body = json.dumps({"id": unique_id.hex(), "hosts": hosts,
                           "local_ranks": local_ranks}).encode()
        for connection, nonces, *_ in door.ranks.values():
            connection.settimeout(_HANDSHAKE_S)
            connection.sendall(_proof(key, b"acceptor", nonces, body))
            _send_frame(connection, body)
    return Meeting(unique_id, hosts, local_ranks)


def _ask_zero(launch: Launch, address: Address, deadline: float) -> Meeting:
    key = _key(launch)
    if isinstance(address, str):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(address)
        _check_user(connection)
    else:
        connection = socket.create_connection(address, timeout=_HANDSHAKE_S)
    with connection:
        connection.settimeout(_HANDSHAKE_S)
        nonce_a = _receive(connection, _NONCE_BYTES)
        nonce_c = secrets.token_bytes(_NONCE_BYTES)
        body = json.dumps({"rank": launch.rank, "host": launch.host, "told": launch.told}).encode()
        connection.sendall(nonce_c + _proof(key, b"connector", nonce_a + nonce_c, body))
        _send_frame(connection, body)
        # Rank 0 answers when all have come.
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        proof = _receive(connection, _NONCE_BYTES)
        answer = _receive_frame(connection, _MAX_ANSWER_BYTES)
        if not hmac.compare_digest(proof, _proof(key, b"acceptor", nonce_a + nonce_c, answer)):
            raise ConnectionError("the other end does not hold the job's key")
        fields = json.loads(answer)
        return Meeting(bytes.fromhex(fields["id"]), [str(host) for host in fields["hosts"]],
                       [int(number) for number in fields["local_ranks"]])


def patience_s(environ: Mapping[str, str] = os.environ) -> float:
    """How long ranks wait for one another to come."""
    for name in ("HOROVOD_GLOO_TIMEOUT_SECONDS", "TUTTI_INIT_TIMEOUT_S"):
        try:
            return float(environ[name])
        except KeyError:
            continue
        except ValueError:
            raise ValueError(f"{name} is {environ[name]!r}, which is no number of seconds") from None
    return TIMEOUT_S


def meet(launch: Launch, unique_id: bytes, timeout_s: Optional[float] = None) -> Meeting:
    """Blocks until all ranks have come, for patience_s() by default. `unique_id` counts on rank 0
    only. ConnectionError, in a sentence, when that does not happen in time."""
    if launch.size == 1:
        return Meeting(unique_id, *_hosts.settle([launch.host], [launch.told]))
    timeout_s = patience_s() if timeout_s is None else timeout_s
    deadline = time.monotonic() + timeout_s
    if launch.rank == 0:
        return _meet_as_zero(launch, unique_id, deadline, timeout_s)
    pause_s, reason = 0.002, "nobody answered"
    while time.monotonic() < deadline:
        for address in launch.addresses:
            try:
                return _ask_zero(launch, address, deadline)
            except (OSError, ValueError) as error:
                reason = f"{address}: {error}"
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, 0.2)
    raise ConnectionError(f"rank {launch.rank} did not reach rank 0 within {timeout_s:g} s "
                          f"({reason})")
