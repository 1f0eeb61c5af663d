"""Attacks by strangers at the port where ranks meet that have never succeeded, and must not begin to: repeated and
reflected messages, garbage, many idle connections."""

import errno
import os
import resource
import socket
import time

import network
import stage as stages
from meeting import OWN_NUMBER, VICTIMS_NUMBER, expect_sum, horovod, outcome_of, start
from outcome import Outcome, attack

SECRET = {"TUTTI_COMM_KEY": "only the ranks know this text"}


def start_rank_0(stage, port, **more):
    victim = start(stage, horovod(0, TUTTI_ADDR=f"127.0.0.1:{port}", **SECRET, **more), VICTIMS_NUMBER)
    assert stages.await_true(lambda: stages.listens(port)), f"rank 0 does not listen: {outcome_of(victim)}"
    return victim


def start_rank_1(stage, port):
    return start(stage, horovod(1, TUTTI_ADDR=f"127.0.0.1:{port}", **SECRET), OWN_NUMBER)


def finish(stage, victim, port):
    """Lets the right rank 1 come. Returns after how long the ranks have their sum."""
    begin = time.monotonic()
    friend = start_rank_1(stage, port)
    expect_sum(friend, VICTIMS_NUMBER + OWN_NUMBER)
    expect_sum(victim, VICTIMS_NUMBER + OWN_NUMBER)
    return time.monotonic() - begin


def read_all(one, seconds=1):
    """Returns the bytes until the other end closes the connection or says nothing for `seconds`."""
    one.settimeout(seconds)
    got = b""
    try:
        while data := one.recv(65536):
            got += data
    except OSError:
        pass
    return got


@attack("-", "repeat a right rank's messages of an earlier meeting")
def replay(stage):
    port = stages.free_port()
    victim = start_rank_0(stage, port)
    relay = network.Relay(port)
    friend = start_rank_1(stage, relay.port)
    expect_sum(friend, VICTIMS_NUMBER + OWN_NUMBER)
    expect_sum(victim, VICTIMS_NUMBER + OWN_NUMBER)
    relay.close()
    recorded = max(relay.recorded, key=lambda one: len(one["acceptor"]))
    welcome = len(recorded["acceptor"])
    victim.end()
    friend.end()
    victim = start_rank_0(stage, port)
    with socket.create_connection(("127.0.0.1", port)) as one:
        one.sendall(recorded["connector"])
        answer = read_all(one)
    seconds = finish(stage, victim, port)
    assert welcome > 150, f"the recorded meeting had {welcome} bytes from rank 0"
    return Outcome(len(answer) >= welcome // 2,
                   f"{len(recorded['connector'])} repeated bytes are answered by {len(answer)} instead of {welcome}; "
                   f"the right rank 1 then needs {seconds:.1f} s")


@attack("-", "send rank 0's own messages back")
def reflect(stage):
    port = stages.free_port()
    victim = start_rank_0(stage, port)
    with socket.create_connection(("127.0.0.1", port)) as one, socket.create_connection(("127.0.0.1", port)) as other:
        got = b""
        for _ in range(8):
            for near, far in ((one, other), (other, one)):
                near.settimeout(0.05)
                try:
                    data = near.recv(65536)
                    got += data
                    far.sendall(data)
                    near.sendall(data)
                except OSError:
                    pass
    seconds = finish(stage, victim, port)
    return Outcome(len(got) > 400, f"rank 0 says {len(got)} bytes to two such connections; the right rank 1 then needs "
                                   f"{seconds:.1f} s")


def _throw_garbage(talk, port, count):
    words = (b"", b"\x16", b"GET / HTTP/1.1\r\n\r\n", bytes(4096), b"\xff" * 4096, os.urandom(4096), b"TUTTIHS1" * 64,
             b"TUTTIHS2" * 64)
    for number in range(count):
        with socket.create_connection(("127.0.0.1", port)) as one:
            try:
                one.sendall(words[number % len(words)])
            except OSError:
                pass
    talk.send("thrown")
    talk.recv()


@attack("-", "throw 1,500 connections of garbage at rank 0")
def garbage(stage):
    port = stages.free_port()
    victim = start_rank_0(stage, port)
    before = stages.descriptors(victim.pid), stages.memory_kib(victim.pid)
    attacker = stage.start(_throw_garbage, port, 1500, user=stages.ATTACKER)
    assert attacker.hear(20) == "thrown"
    calm = stages.await_true(lambda: stages.descriptors(victim.pid) <= before[0])
    after = stages.descriptors(victim.pid), stages.memory_kib(victim.pid)
    seconds = finish(stage, victim, port)
    grown = after[1] - before[1]
    return Outcome(not calm or grown > 8192, f"descriptors {before[0]} before and {after[0]} after, memory grown by "
                                             f"{grown} KiB; the right rank 1 then needs {seconds:.1f} s")


def _hold_connections(talk, port, count):
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    held = []
    for _ in range(count):
        one = socket.socket()
        one.setblocking(False)
        one.connect_ex(("127.0.0.1", port))
        held.append(one)
    talk.send("held")
    talk.recv()


@attack("-", "keep 1,000 idle connections at rank 0")
def idle(stage):
    port = stages.free_port()
    victim = start_rank_0(stage, port)
    attacker = stage.start(_hold_connections, port, 1000, user=stages.ATTACKER)
    assert attacker.hear() == "held"
    seconds = finish(stage, victim, port)
    return Outcome(seconds > 8, f"the right rank 1 needs {seconds:.1f} s")


def _churn(talk, port, seconds):
    """Opens and leaves connections, as fast as one process can, and tells how many."""
    talk.send("begins")
    count, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        with socket.socket() as one:
            one.setblocking(False)
            count += one.connect_ex(("127.0.0.1", port)) in (0, errno.EINPROGRESS)
    talk.send(count)
    talk.recv()


@attack("F14", "open connections at rank 0 as fast as possible while ranks start")
def flood(stage):
    port, seconds_of_flood = stages.free_port(), 3
    victim = start_rank_0(stage, port)
    attackers = [stage.start(_churn, port, seconds_of_flood, user=stages.ATTACKER) for _ in range(2)]
    assert all(attacker.hear() == "begins" for attacker in attackers)
    seconds = finish(stage, victim, port)
    rate = sum(attacker.hear() for attacker in attackers) / seconds_of_flood
    return Outcome(seconds > 8, f"{rate:.0f} connections a second; the right rank 1 needs {seconds:.1f} s")
