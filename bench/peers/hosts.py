"""Two hosts on one machine: network namespaces joined by a cable, over which the ranks of all libraries run."""

import contextlib
import os
import pathlib
import subprocess

HERE = pathlib.Path(__file__).resolve().parent
DEVICE = "tutti0"
ADDRESSES = ("10.213.80.1", "10.213.80.2")
# Speed and delay each way of a cable; those of the others are what the kernel's veth has.
CABLES = {"hosts-1ms": ("1000", "1000")}
NETS = ("hosts", *CABLES)
# Runs a command on a host, as ssh would. Each has a name of its own, because MPI tells hosts apart by that.
AGENT = """#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
address=$1; shift
case $address in {first}) host={a} ;; *) host={b} ;; esac
exec ip netns exec $host unshare --uts sh -c "hostname $host; $*"
"""


class Unavailable(Exception):
    """This machine has no such hosts; the text says why."""


def _run(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Unavailable(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")


def _go_before_ranks(pid):
    """Lets the cable go before ranks that run under a real-time policy (chrt): those that spin would hold it up."""
    policy = os.sched_getscheduler(0)
    if policy in (os.SCHED_RR, os.SCHED_FIFO):
        priority = os.sched_param(os.sched_getparam(0).sched_priority + 1)
        for thread in os.listdir(f"/proc/{pid}/task"):
            os.sched_setscheduler(int(thread), policy, priority)


@contextlib.contextmanager
def joined(net, work):
    """Makes the hosts; their agent is work/agent as long as the context lasts."""
    names = tuple(f"tutti-bench-{os.getpid()}-{side}" for side in "ab")
    with contextlib.ExitStack() as stack:
        for name in names:
            _run("ip", "netns", "add", name)
            stack.callback(subprocess.run, ["ip", "netns", "del", name], capture_output=True, check=False)
        if net in CABLES:
            program = str(work / "cable")
            _run("cc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", str(HERE / "cable.c"), "-o", program)
            cable = subprocess.Popen([program, DEVICE, *names, *CABLES[net]], stdout=subprocess.PIPE, text=True)
            stack.callback(cable.wait)
            stack.callback(cable.kill)
            if cable.stdout.readline().strip() != "ready":
                raise Unavailable("the cable cannot be laid (it needs /dev/net/tun)")
            _go_before_ranks(cable.pid)
        else:
            _run("ip", "link", "add", DEVICE, "netns", names[0], "type", "veth", "peer", "name", DEVICE, "netns", names[1])
        for name, address in zip(names, ADDRESSES, strict=True):
            _run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", DEVICE)
            _run("ip", "-n", name, "link", "set", "lo", "up")
            _run("ip", "-n", name, "link", "set", DEVICE, "up")
        agent = work / "agent"
        agent.write_text(AGENT.format(first=ADDRESSES[0], a=names[0], b=names[1]))
        agent.chmod(0o755)
        yield agent
