"""Attacks by someone on the wire between two hosts, who reads all packets and may change them (F2)."""

import multiprocessing.connection
import struct
import time

import formats
import network
import rank as ranks
import stage as stages
from meeting import PATIENT
from outcome import Outcome, attack

NUMBERS = (1234.5, 2.0)
SUM = ("sum", sum(NUMBERS))
PORT = 29500
SECRET = {"TUTTI_COMM_KEY": "what the wire must not tell, nor the key that is made from this text"}
# The floats of either rank, or of the sum, as they would cross the wire.
PATTERNS = [struct.pack("<f", number) * 8 for number in (*NUMBERS, sum(NUMBERS))]
# The bytes of the handshake from either end, by the version that the acceptor names first.
HANDSHAKES = {b"TUTTIHS1": {"connector": 320, "acceptor": 72}, b"TUTTIHS2": {"connector": 368, "acceptor": 104}}
# Within the first rank's words to the second, as far from their end, lies the number of the id.
FROM_END = 76


def start_job(wire, **more):
    """Starts a rank on each host, as torchrun does, with the address of the host for tests/plugins/net_example.cc."""
    processes = []
    for number, side in enumerate(network.ADDRESSES):
        environment = {"RANK": str(number), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
                       "MASTER_ADDR": network.ADDRESSES["a"], "MASTER_PORT": str(PORT), "TUTTI_BACKEND": "host",
                       "EXAMPLE_ADDRESS": network.ADDRESSES[side], **PATIENT, **more}
        processes.append(wire.start(side, ranks.take_part, wire.stage.library, NUMBERS[number],
                                    environment=environment))
    return processes


def watch_job(processes, seconds=10):
    """Returns what each rank said, up to the first refusal, or to the sums of both."""
    said, limit = {process: [] for process in processes}, time.monotonic() + seconds
    by_pipe = {process.talk: process for process in processes}
    while by_pipe and time.monotonic() < limit:
        for pipe in multiprocessing.connection.wait(list(by_pipe), 0.1):
            heard = by_pipe[pipe].hear()
            said[by_pipe[pipe]].append(heard or ("silent", by_pipe[pipe].log()))
            if heard is None or heard[0] == "refused":
                return list(said.values())
            if heard[0] == "sum":
                del by_pipe[pipe]
    return list(said.values())


def run_job(wire, **more):
    """Runs a job to its end, and returns what each rank said."""
    wire.connections.clear()
    processes = start_job(wire, **more)
    said = watch_job(processes)
    for process in processes:
        process.end()
    return said


def id_of(said):
    return next((value for kind, value in said if kind == "id"), None)


def decrypt(wire):
    """Returns how the connections of the wire show the tensors to whoever has read the id; None where they do not."""
    everything = b"".join(wire.everything())
    at = everything.find(b"TUTTIID1")
    key = everything[at + 8:at + 40]
    for one in wire.connections if at >= 0 else ():
        plain = formats.open_connection(key, one.bytes_from("connector"), one.bytes_from("acceptor"))
        if any(pattern in plain for pattern in PATTERNS):
            return f"the id is read from the meeting, and opens {len(plain)} bytes of a connection with the tensors"
    return None


@attack("F2a", "decrypt TUTTI_ENCRYPT=1 of a job without a secret, by reading alone")
def read_without_secret(stage):
    """With TUTTI_INSECURE=1 as well, for ranks that would not meet otherwise."""
    with network.Wire(stage) as wire:
        sentences = []
        for insecure in ("0", "1"):
            said = run_job(wire, TUTTI_ENCRYPT="1", TUTTI_INSECURE=insecure)
            shown = decrypt(wire)
            if shown:
                return Outcome(True, shown)
            sentences += [value for one in said for kind, value in one if kind == "refused"][:1]
        assert len(sentences) == 2 and all("TUTTI_COMM_KEY" in one for one in sentences), said
        return Outcome(False, f"the job does not start: \"{sentences[0]}\"; with TUTTI_INSECURE=1 \"{sentences[1]}\"")


@attack("F2a", "find the id, host names or tensors in the traffic of a job with a secret and TUTTI_ENCRYPT=1")
def read_with_secret(stage):
    with network.Wire(stage) as wire:
        said = run_job(wire, TUTTI_ENCRYPT="1", **SECRET)
        assert all(one[-1] == SUM for one in said), said
        everything = b"".join(wire.everything())
        assert len(everything) > 2 * 4 * ranks.COUNT, f"the wire carried {len(everything)} bytes only"
        wanted = {"the id": b"TUTTIID1", "the id's key": id_of(said[0])[8:40],
                  "a host's name": stages.HOST_NAME.encode(), "the secret": SECRET["TUTTI_COMM_KEY"].encode()}
        wanted |= {f"floats of {pattern[:4].hex()}": pattern for pattern in PATTERNS}
        found = [name for name, value in wanted.items() if value in everything]
        found_text = ", ".join(found) or "nothing"
        return Outcome(bool(found), f"{len(everything)} bytes of {len(wire.connections)} connections show {found_text}")


@attack("F11", "read the tensors of TUTTI_ENCRYPT=1 where there is a network without encryption")
def read_with_plugin(stage):
    plugin = str(stage.lend("tests/plugins/libnccl-net-example.so"))
    with network.Wire(stage) as wire:
        shown, logs = [], []
        for encrypt in ("0", "1"):
            wire.connections.clear()
            processes = start_job(wire, TUTTI_ENCRYPT=encrypt, NCCL_NET_PLUGIN=plugin, NCCL_DEBUG="INFO", **SECRET)
            said = watch_job(processes)
            logs.append(processes[0].log())
            assert all(one[-1] == SUM for one in said), said
            for process in processes:
                process.end()
            shown.append(any(pattern in one for one in wire.everything() for pattern in PATTERNS))
    assert shown[0] and "net Example carries data" in logs[0], f"the plugin carries no tensors: {logs[0]}"
    used = "the plugin" if "net Example carries data" in logs[1] else "another network"
    return Outcome(shown[1], f"{used} carries the data, and the wire shows {'the' if shown[1] else 'no'} tensors")


def places_to_flip(connections):
    """Returns places in what each end of each connection says: a place in the handshake of the first connection, and
    places in the midst of all later bytes, and toward their end."""
    for one in connections:
        sizes = HANDSHAKES.get(one.bytes_from("acceptor")[:8])
        if sizes is None:
            continue
        for role, size in sizes.items():
            later = len(one.bytes_from(role)) - size
            if one.number == 0:
                yield one.number, role, 45
            if later > 0:
                yield one.number, role, size + later // 2
            if later > FROM_END:
                yield one.number, role, size + later - FROM_END


def judge(flip, said):
    """Returns whether changed data was taken as true, and whether the job ended with a sentence; a job that does
    neither must work."""
    ids = {id_of(one) for one in said} - {None}
    sums = [one[-1] for one in said if one and one[-1][0] == "sum"]
    refused = any(kind == "refused" and value for one in said for kind, value in one)
    assert refused or len(sums) == 2, f"{flip}: the ranks neither work nor say why not: {said}"
    return len(ids) > 1 or any(one != SUM for one in sums), refused


@attack("F2b", "change one bit of the traffic, at each connection in turn")
def change_a_bit(stage):
    with network.Wire(stage) as wire:
        secure = {"TUTTI_ENCRYPT": "1", "TUTTI_INIT_TIMEOUT_S": "4", **SECRET}
        said = run_job(wire, **secure)
        assert all(one[-1] == SUM for one in said), said
        places = list(places_to_flip(wire.connections))
        assert len(places) > 8, f"{len(wire.connections)} connections have only {len(places)} places"
        changed, ended, altered = 0, 0, []
        for place in places:
            wire.flip = network.Flip(*place)
            taken, refused = judge(wire.flip, run_job(wire, **secure))
            changed, ended = changed + wire.flip.done, ended + refused
            altered += [str(wire.flip)] if taken else []
    assert changed > len(places) // 2, f"only {changed} of {len(places)} changes could be made"
    taken_after = f"after a change of {'; '.join(altered)}" if altered else "never"
    return Outcome(bool(altered), f"of {changed} jobs with a changed bit {ended} end with a sentence, the others work; "
                                  f"changed data is taken as true {taken_after}")
