# SPDX-License-Identifier: Apache-2.0
"""Who this process is among the ranks that a launcher started, and how rank 0's unique id reaches
the others.

The environment is read in this order: HOROVOD_RANK …, the names that torchrun and `tutti run` set,
Open MPI's, PMI's, Slurm's. Ranks meet at HOROVOD_GLOO_RENDEZVOUS_ADDR and _PORT, TUTTI_ADDR
(host:port), or MASTER_ADDR and MASTER_PORT, where rank 0 listens while it initialises; ranks of
mpirun or srun on one machine need none of them and meet at a socket of that machine.

Wire format, over one connection for each rank but 0. A frame is a length (4 bytes, big-endian, at
most 64 KiB; 1 MiB for the answer) and JSON. The acceptor sends 32 random bytes, the connector 32
random bytes and the proof of the key, then a frame {rank, size, host}; the acceptor answers with
its own proof and a frame {id, hosts} or {error}. Key = BLAKE2b of the job's name and
TUTTI_COMM_KEY; without that, the ranks prove only that they belong to the same job.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import socket
import struct
import time
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

# As long as a launcher may take to start the last rank.
TIMEOUT_S = 120.0
# A stranger that connects and says nothing holds rank 0 up for no longer than this.
_HANDSHAKE_S = 5.0
_MAX_HELLO_BYTES = 64 * 1024
_MAX_ANSWER_BYTES = 1024 * 1024 * 64  # a host name for each of 2^20 ranks
_NONCE_BYTES = 32
# torchrun's agent holds MASTER_PORT itself, so rank 0 takes one of the next few.
_PORT_CHOICES = 8

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


@dataclass
class Meeting:
    """What all ranks know after they have met: the unique id and each rank's host."""
    unique_id: bytes
    hosts: List[str]


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


def _addresses(environ: Mapping[str, str], one_machine: bool, job: str) -> List[Address]:
    if environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR") and environ.get("HOROVOD_GLOO_RENDEZVOUS_PORT"):
        return [(environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"],
                 _number(environ, "HOROVOD_GLOO_RENDEZVOUS_PORT"))]
    if environ.get("TUTTI_ADDR"):
        return [_host_port("TUTTI_ADDR", environ["TUTTI_ADDR"])]
    master = _master_addresses(environ)
    if master or not one_machine:
        return master
    return [_local_address(job)]


def read(environ: Mapping[str, str] = os.environ) -> Launch:
    """What the launcher says. One rank alone where there was none. ValueError, in a sentence, for
    what cannot be."""
    host = environ.get("HOROVOD_HOSTNAME") or socket.gethostname()
    torch = f"torch {environ.get('MASTER_ADDR', '')} {environ.get('MASTER_PORT', '')} " \
            f"{environ.get('TORCHELASTIC_RUN_ID', '')} " \
            f"{environ.get('TORCHELASTIC_RESTART_COUNT', '')}"
    slurm = "SLURM_STEP_NUM_TASKS" if environ.get("SLURM_STEP_NUM_TASKS") else "SLURM_NTASKS"
    pmi_job = environ.get("PMI_JOBID") or environ.get("PMI_ID") or ""
    # rank, size, the size of the part on this machine, the name of the job
    launchers = [
        ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_SIZE", "horovod"),
        ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", torch),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE",
         "openmpi " + environ.get("PMIX_NAMESPACE", environ.get("OMPI_MCA_ess_base_jobid", ""))),
        ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", f"pmi {pmi_job} {os.getppid()}"),
    ]
    if environ.get("SLURM_STEP_ID"):
        launchers.append(("SLURM_PROCID", slurm, "SLURM_STEP_TASKS_PER_NODE",
                          f"slurm {environ.get('SLURM_JOB_ID')} {environ['SLURM_STEP_ID']}"))
    for rank_name, size_name, local_name, job in launchers:
        if not environ.get(rank_name) or not environ.get(size_name):
            continue
        rank, size = _ranks(environ, rank_name, size_name)
        one_machine = environ.get(local_name) == str(size)
        addresses = _addresses(environ, one_machine, job)
        if size > 1 and not addresses:
            raise ValueError(
                f"{rank_name} says that there are {size} ranks, but they have no way to meet: set "
                "MASTER_ADDR and MASTER_PORT, or TUTTI_ADDR=HOST:PORT, to an address of rank 0")
        return Launch(rank, size, job, host, addresses, one_machine)
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
        addresses = [_local_address(job)]
    elif numbers[0] == 0:
        addresses = launch.addresses
    else:
        raise ValueError(f"comm={numbers}: ranks of several machines meet at an address of rank 0, "
                         "so that has to be the first of them")
    return Launch(numbers.index(launch.rank), len(numbers), job, launch.host, addresses,
                  launch.one_machine)


def _key(launch: Launch) -> bytes:
    secret = os.environ.get("TUTTI_COMM_KEY", "")
    text = f"tutti python|{launch.job}|{launch.size}|{secret}"
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


def _listen(launch: Launch) -> socket.socket:
    errors = []
    for address in launch.addresses:
        if isinstance(address, str):
            listener, target = socket.socket(socket.AF_UNIX), address
        else:
            listener = socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6()
                                     else socket.AF_INET)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if listener.family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            target = ("", address[1])  # type: ignore[assignment]
        try:
            listener.bind(target)
            listener.listen(128)
            return listener
        except OSError as error:
            listener.close()
            errors.append(f"{address}: {error}")
    raise ConnectionError("rank 0 cannot listen for the others at " + ", ".join(errors))


def _accept_one(connection: socket.socket, key: bytes, launch: Launch,
                waiting: Dict[int, Any]) -> None:
    """Adds who proved to be a rank to `waiting`; raises OSError or ValueError for anybody else."""
    nonce = secrets.token_bytes(_NONCE_BYTES)
    connection.sendall(nonce)
    head = _receive(connection, 2 * _NONCE_BYTES)
    body = _receive_frame(connection, _MAX_HELLO_BYTES)
    nonces = nonce + head[:_NONCE_BYTES]
    if not hmac.compare_digest(head[_NONCE_BYTES:], _proof(key, b"connector", nonces, body)):
        raise ConnectionError("wrong key")
    hello = json.loads(body)
    rank = int(hello["rank"])
    if not 0 < rank < launch.size:
        raise ValueError(f"there is no rank {rank}")
    waiting[rank] = (connection, nonces, str(hello["host"]))


def _meet_as_zero(launch: Launch, unique_id: bytes, deadline: float,
                  timeout_s: float) -> Meeting:
    key = _key(launch)
    waiting: Dict[int, Any] = {}
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(_listen(launch))
        while len(waiting) < launch.size - 1:
            listener.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                connection, _ = listener.accept()
            except socket.timeout:
                missing = [str(r) for r in range(1, launch.size) if r not in waiting]
                raise ConnectionError(
                    f"{len(waiting) + 1} of {launch.size} ranks came within {timeout_s:g} s; "
                    f"missing: {', '.join(missing[:20])}") from None
            connection.settimeout(_HANDSHAKE_S)
            try:
                _accept_one(connection, key, launch, waiting)
                stack.enter_context(connection)
            except (OSError, ValueError, KeyError, TypeError):
                connection.close()  # a stranger
        hosts = [launch.host] + [waiting[rank][2] for rank in range(1, launch.size)]
        body = json.dumps({"id": unique_id.hex(), "hosts": hosts}).encode()
        for connection, nonces, _ in waiting.values():
            connection.sendall(_proof(key, b"acceptor", nonces, body))
            _send_frame(connection, body)
    return Meeting(unique_id, hosts)


def _ask_zero(launch: Launch, address: Address, deadline: float) -> Meeting:
    key = _key(launch)
    if isinstance(address, str):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(address)
    else:
        connection = socket.create_connection(address, timeout=_HANDSHAKE_S)
    with connection:
        connection.settimeout(_HANDSHAKE_S)
        nonce_a = _receive(connection, _NONCE_BYTES)
        nonce_c = secrets.token_bytes(_NONCE_BYTES)
        body = json.dumps({"rank": launch.rank, "host": launch.host}).encode()
        connection.sendall(nonce_c + _proof(key, b"connector", nonce_a + nonce_c, body))
        _send_frame(connection, body)
        # Rank 0 answers when all have come.
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        proof = _receive(connection, _NONCE_BYTES)
        answer = _receive_frame(connection, _MAX_ANSWER_BYTES)
        if not hmac.compare_digest(proof, _proof(key, b"acceptor", nonce_a + nonce_c, answer)):
            raise ConnectionError("the other end does not hold the job's key")
        fields = json.loads(answer)
        return Meeting(bytes.fromhex(fields["id"]), [str(host) for host in fields["hosts"]])


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
        return Meeting(unique_id, [launch.host])
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
