"""One trial of a cell: a job, a fault at a seeded moment, and what the survivors tell."""

import contextlib
import json
import mmap
import os
import pathlib
import re
import signal
import struct
import subprocess
import tempfile
import threading
import time

import cells

MOST_RANKS = 8
ID_BYTES = 128
# Of Shared in rank.cc.
GO, FINISH, READY, ROUNDS, COMMANDS = 0, 4, 16, 16 + 4 * MOST_RANKS, 16 + 8 * MOST_RANKS
SHARED_BYTES = 16 + 12 * MOST_RANKS + 2 * ID_BYTES
EXIT, RESET_LINK, RESET_DATA = 1, 2, 3
# How long a job may take to begin, and the length of a flap; how many calls follow a fault that passes.
BEGIN_S, FLAP_S, GO_ON_CALLS = 20, 1.5, 20
LOOK_S = 0.5  # for the reset of a rank's data connection; the rank looks at every call
# The phases begin within this time; the fault comes at a moment of it, so that it meets every step of the calls.
SPREAD_S = {"init": 0.03, "first": 0.01, "finalize": 0.01}


class Job:
    """The processes of a trial."""

    def __init__(self, build, world, cell, ranks, folder):
        self.cell, self.ranks, self.world = cell, ranks, world
        self.folder = folder
        shared = folder / "shared"
        shared.write_bytes(bytes(SHARED_BYTES))
        with open(shared, "r+b") as file:
            self._shared = mmap.mmap(file.fileno(), SHARED_BYTES)
        self.count = ranks + (cell.phase == "grow")
        self.boards = folder / "boards"
        self.boards.mkdir()
        fault = cells.FAULTS[cell.fault]
        environment = {"PATH": os.environ["PATH"], "TUTTI_BACKEND": "host", "TUTTI_OBSERVE_DIR": str(self.boards),
                       "TUTTI_TIMEOUT_S": str(fault.timeout_s), "TUTTI_INIT_TIMEOUT_S": str(fault.init_timeout_s),
                       "TUTTI_HOST_TIMEOUT_S": str(cells.HOST_TIMEOUT_S), "NCCL_DEBUG": "WARN", "HOME": str(folder)}
        if "TUTTI_BOARD_DEBUG" in os.environ:
            environment["NCCL_DEBUG"] = os.environ["TUTTI_BOARD_DEBUG"]
        if cell.transport == "sockets":
            environment["NCCL_SHM_DISABLE"] = "1"
        self.processes = []
        for rank in range(self.count):
            words = [build / "tests" / "board" / "board_rank", shared, rank, ranks, cell.phase]
            namespace = world.namespace_of(rank, ranks) if cell.transport == "two hosts" else None
            words += [namespace] if namespace else []
            with open(folder / f"{rank}.out", "wb") as out, open(folder / f"{rank}.log", "wb") as log:
                self.processes.append(subprocess.Popen([str(word) for word in words], stdin=subprocess.DEVNULL,
                                                       stdout=out, stderr=log, env=environment))

    def get(self, at):
        return struct.unpack_from("i", self._shared, at)[0]

    def set(self, at, value):
        struct.pack_into("i", self._shared, at, value)

    def await_all(self, at, least, ranks):
        until = time.monotonic() + BEGIN_S
        while any(self.get(at + 4 * rank) < least for rank in ranks):
            if time.monotonic() > until or any(self.processes[rank].poll() is not None for rank in ranks):
                raise AssertionError("the job did not begin")
            time.sleep(0.0005)

    def signal(self, rank, number):
        self.processes[rank].send_signal(number)
        return time.monotonic_ns()

    def command(self, rank, command):
        self.set(COMMANDS + 4 * rank, command)

    def await_ends(self, ranks, until):
        """Returns the ranks that have not ended by then."""
        for rank in ranks:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.processes[rank].wait(max(0.001, until - time.monotonic()))
        return [rank for rank in ranks if self.processes[rank].poll() is None]

    def events(self, rank, kind=None):
        found = [json.loads(line) for line in (self.folder / f"{rank}.out").read_text().splitlines() if line]
        return [event for event in found if kind is None or event["event"] == kind]

    def log(self, rank):
        return (self.folder / f"{rank}.log").read_text(errors="replace")

    def boards_of(self, rank):
        return list(self.boards.glob(f"{self.processes[rank].pid}-*"))

    def end(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        self._shared.close()


class Trial:
    def __init__(self, job, dice, slack):
        self.job, self.cell, self.dice, self.slack = job, job.cell, dice, slack
        self.fault = cells.FAULTS[job.cell.fault]
        # The last rank of phase shrink is left out while it lives.
        candidates = list(range(job.ranks - (job.cell.phase == "shrink")))
        if job.cell.phase == "grow" and self.fault.victims == 1:
            candidates.append(job.ranks)
        self.victims = dice.sample(candidates, max(1, self.fault.victims))
        self.fault_ns = 0
        if self.cell.fault == "cut":
            self.victims = []

    def begin(self):
        everybody = range(self.job.count)
        self.job.await_all(READY, 1, everybody)
        self.job.set(GO, 1)
        if self.cell.phase in SPREAD_S:
            time.sleep(self.dice.random() * SPREAD_S[self.cell.phase])
            return
        self.job.await_all(ROUNDS, 2, [0])
        time.sleep(self.dice.random() * 0.02)

    def break_something(self):
        job, first = self.job, self.victims[0] if self.victims else None
        kind = self.cell.fault
        if kind in ("kill", "two kills", "kill and stop"):
            self.fault_ns = job.signal(first, signal.SIGKILL)
            if kind != "kill":
                time.sleep(self.dice.choice((0, self.dice.random() * 0.05)))
                last_ns = job.signal(self.victims[1], signal.SIGSTOP if kind == "kill and stop" else signal.SIGKILL)
                self.fault_ns = last_ns if kind == "two kills" else self.fault_ns
        elif kind == "stop":
            self.fault_ns = job.signal(first, signal.SIGSTOP)
        elif kind == "exit":
            job.command(first, EXIT)
        elif kind == "reset link":
            job.command(first, RESET_LINK)
        elif kind == "reset data":
            self.reset_data()
        elif kind in ("cut", "flap"):
            job.world.cut()
            self.fault_ns = time.monotonic_ns()

    def reset_data(self):
        """Looks for a rank that has a data connection: between hosts, few ranks have one."""
        for rank in self.dice.sample(range(self.job.ranks), self.job.ranks):
            self.victims = [rank]
            self.job.command(rank, RESET_DATA)
            until = time.monotonic() + LOOK_S
            while time.monotonic() < until:
                if self.job.events(rank, "reset"):
                    return
                time.sleep(0.002)

    def await_survivors(self):
        """Returns the ranks that must end by themselves but do not."""
        job = self.job
        if self.cell.fault == "flap":
            time.sleep(FLAP_S)
            job.world.mend()
        if self.cell.passes:
            self.await_further_calls()
            job.set(FINISH, 1)
        faulty = [] if self.cell.passes else self.victims
        members = [rank for rank in range(job.ranks) if rank not in faulty]
        most_s = self.cell.error_s + self.fault.shrink_s + 2 * self.fault.init_timeout_s + 12 + 5 * self.slack
        hanging = job.await_ends(members, time.monotonic() + most_s)
        job.set(FINISH, 2)
        newcomers = [rank for rank in range(job.ranks, job.count) if rank not in faulty]
        return hanging + job.await_ends(newcomers, time.monotonic() + 2 * self.fault.init_timeout_s + 12)

    def await_further_calls(self):
        """Waits until the fault has happened and rank 0 has made further calls, or a rank has ended."""
        job, until = self.job, time.monotonic() + BEGIN_S
        calls = None
        while time.monotonic() < until and all(process.poll() is None for process in job.processes):
            if calls is None and (self.fault_ns or job.events(self.victims[0], "reset")):
                calls = job.get(ROUNDS)
            if calls is not None and job.get(ROUNDS) >= calls + GO_ON_CALLS:
                return
            time.sleep(0.002)

    def blamed_by(self, rank):
        """Returns the ranks that a survivor may blame: those with a fault, or those of the other host."""
        if self.cell.fault != "cut":
            return set(self.victims)
        side = self.job.world.side_of
        here = side(rank, self.job.ranks)
        return {other for other in range(self.job.count) if side(other, self.job.ranks) != here}

    def judge(self, hanging):
        job = self.job
        if hanging:
            calls = {rank: [event["event"] for event in job.events(rank)] for rank in hanging}
            return cells.Outcome(named=False, bad=f"ranks did not end, after these events: {calls}")
        if self.cell.fault == "exit":
            exits = job.events(self.victims[0], "exit")
            self.fault_ns = exits[0]["ns"] if exits else 0
        faulty = [] if self.cell.passes else self.victims
        survivors = [rank for rank in range(job.count) if rank not in faulty]
        left = sum(event["descriptors"] for rank in survivors for event in job.events(rank, "end")
                   if event["descriptors"] > 0)
        left += sum(len(job.boards_of(rank)) for rank in survivors)
        wrong = [rank for rank in survivors
                 if job.events(rank, "wrong result") or job.processes[rank].returncode != 0]
        bad = (f"rank {wrong[0]} had a wrong result, or ended with status {job.processes[wrong[0]].returncode}"
               if wrong else "")
        outcome = self.judge_passing(survivors) if self.cell.passes else self.judge_failing(survivors)
        bad = bad or outcome.bad or (f"{left} descriptors or files were left" if left else "")
        return outcome._replace(left=left, bad=bad)

    def judge_passing(self, survivors):
        for rank in survivors:
            for kind in ("error", "excluded", "destroy failed"):
                for event in self.job.events(rank, kind):
                    return cells.Outcome(error_s=(event["ns"] - self.fault_ns) / 1e9 if self.fault_ns else 0,
                                         bad=f"rank {rank}: {event.get('text', kind)}")
        # In phase finalize the rank may have ended before.
        if (self.cell.fault.startswith("reset") and self.cell.phase != "finalize"
                and not self.job.events(self.victims[0], "reset")):
            return cells.Outcome(bad=f"rank {self.victims[0]} had no connection to reset")
        return cells.Outcome()

    def judge_failing(self, survivors):
        times, named, accused, bad = [], True, 0, ""
        for rank in survivors:
            blamed = self.blamed_by(rank)
            errors = self.job.events(rank, "error")
            for event in errors:
                times.append((event["ns"] - self.fault_ns) / 1e9)
                if not self.names(event["text"], blamed):
                    named, bad = False, bad or f"rank {rank} does not name {sorted(blamed)}: {event['text']}"
            gone = {other for event in self.job.events(rank) for other in event.get("gone", [])}
            # A rank that gave the start up is lost to a rank whose start had ended.
            gone -= {other for other in survivors for event in self.job.events(other, "error")
                     if event["call"] == "ncclCommInitRank"}
            if gone - blamed:
                accused += 1
                bad = bad or f"rank {rank} calls {sorted(gone - blamed)} lost or hung"
            # Nobody waits for a rank that has left its last call, or has come to no call.
            if not errors and self.cell.phase not in ("finalize", "grow"):
                bad = bad or f"rank {rank} got no error"
        error_s = max(times, default=0)
        if error_s > self.cell.error_s * self.slack:
            bad = bad or f"the error came after {error_s:.2f} s"
        shrink_s, why = self.judge_shrink(survivors)
        return cells.Outcome(error_s, named, accused, shrink_s, 0, bad or why)

    def judge_shrink(self, survivors):
        """Returns the longest time that a survivor took to go on, and why that was bad."""
        if self.cell.phase in ("init", "finalize"):
            return 0, ""
        longest = 0
        for rank in survivors:
            if rank >= self.job.ranks:
                continue
            members = {other for other in range(self.job.ranks)} - self.blamed_by(rank)
            if len(members) == self.job.ranks:
                continue
            done = self.job.events(rank, "shrunk")
            if not done:
                tries = [event.get("text", event["event"]) for event in self.job.events(rank) if event["event"] != "end"]
                return longest, f"rank {rank} did not go on: {tries}"
            # The second fault may come when the others have gone on with the rank.
            if not 0 <= done[0]["count"] - len(members) <= len(self.victims[1:]):
                return longest, f"rank {rank} went on with {done[0]['count']} ranks instead of {len(members)}"
            longest = max(longest, done[0]["took_ns"] / 1e9)
        limit = self.fault.shrink_s * self.slack
        return longest, f"the shrink took {longest:.2f} s" if longest > limit else ""

    def names(self, text, blamed):
        if any(re.search(rf"\brank {rank}\b", text) for rank in blamed):
            return True
        if self.cell.phase not in ("init", "grow"):
            return False
        missing = re.search(r"missing: ([\d, -]+)", text)
        for part in missing.group(1).split(",") if missing else []:
            ends = [int(end) for end in part.strip().rstrip(".").split("-")]
            if any(ends[0] <= rank <= ends[-1] for rank in blamed):
                return True
        # The root is in the process of rank 0.
        return 0 in blamed and "the root" in text


def run(build, world, cell, dice, slack, show):
    """Returns the outcome of one trial."""
    ranks = dice.randint(3 + (cells.FAULTS[cell.fault].victims == 2), 5 if cell.phase == "grow" else 6)
    with tempfile.TemporaryDirectory(prefix="tutti-board-") as folder:
        job = Job(build, world, cell, ranks, pathlib.Path(folder))
        one = Trial(job, dice, slack)
        try:
            one.begin()
            one.break_something()
            outcome = one.judge(one.await_survivors())
        except AssertionError as why:
            outcome = cells.Outcome(bad=f"{why}: " + "; ".join(event.get("text", "") for rank in range(job.count)
                                                               for event in job.events(rank, "error")))
        finally:
            if cell.fault == "cut":
                world.mend()
            job.end()
        if outcome.bad and show:
            told(job, one)
        return outcome


PRINTING = threading.Lock()


def told(job, one):
    with PRINTING:
        print(f"--- {job.cell}, {job.ranks} ranks, faults of {one.victims} at {one.fault_ns / 1e9:.3f}")
        for rank in range(job.count):
            for event in job.events(rank):
                print(f"  rank {rank} {(event['ns'] - one.fault_ns) / 1e9:+.3f} s: {event}")
            for line in job.log(rank).splitlines():
                print(f"  rank {rank} log: {line}")
