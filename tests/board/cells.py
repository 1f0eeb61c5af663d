"""The cells of the board, what a good outcome is, and the table of outcomes."""

import platform
import subprocess
import time
import typing

# What a job of the board sets. A wait ends by the time-out of operations or of the start, whichever applies, except
# where a silent host is to be noticed first.
TIMEOUT_S, INIT_TIMEOUT_S, HOST_TIMEOUT_S, LONG_TIMEOUT_S = 3, 4, 3, 10
# The time from the end of a wait, or from a death, to the error.
SOON_S = 1.0
# A host that falls silent is looked at four times within HOST_TIMEOUT_S, and the time begins at a look.
SILENT_S = HOST_TIMEOUT_S * 1.5

PHASES = ("init", "first", "steady", "split", "shrink", "grow", "window", "suspend", "finalize")
TRANSPORTS = ("shared memory", "sockets", "two hosts")


class Fault(typing.NamedTuple):
    text: str
    victims: int        # how many ranks have a fault; a cut takes away the ranks of the other host
    error_s: float      # until the error of every survivor; 0: nobody gets an error
    shrink_s: float     # until a communicator without the faulty ranks works
    timeout_s: float = TIMEOUT_S
    init_timeout_s: float = INIT_TIMEOUT_S


FAULTS = {
    "kill": Fault("kill -9", 1, SOON_S, SOON_S),
    "stop": Fault("SIGSTOP for ever", 1, TIMEOUT_S + SOON_S, SOON_S),
    "exit": Fault("exit without a goodbye", 1, SOON_S, SOON_S),
    "reset data": Fault("reset of a data connection", 0, 0, 0),
    "reset link": Fault("reset of a lifeline", 0, 0, 0),
    "kill and stop": Fault("kill -9, and SIGSTOP of another rank", 2, SOON_S, 2 * TIMEOUT_S + SOON_S),
    "two kills": Fault("kill -9 of two ranks", 2, SOON_S, 2 * SOON_S),
    "cut": Fault("the way between two hosts is cut for ever", 0, SILENT_S + SOON_S, HOST_TIMEOUT_S / 2 + SOON_S, LONG_TIMEOUT_S,
                 LONG_TIMEOUT_S),
    "flap": Fault("the way between two hosts is cut for 1.5 s", 0, 0, 0, LONG_TIMEOUT_S, LONG_TIMEOUT_S),
}


class Cell(typing.NamedTuple):
    fault: str
    phase: str
    transport: str

    def __str__(self):
        return f"{self.fault} / {self.phase} / {self.transport}"

    @property
    def not_applicable(self):
        """Why there is nothing to try; empty where there is."""
        if self.fault in ("cut", "flap") and self.transport != "two hosts":
            return "one host has no way to be cut"
        if self.fault == "reset data" and self.transport == "shared memory":
            return "shared memory has no data connection"
        if self.fault == "reset data" and self.phase in ("init", "finalize"):
            return "there is no data connection in this phase"
        return ""

    @property
    def passes(self):
        """Whether the job is to go on as if nothing had been."""
        return FAULTS[self.fault].error_s == 0

    @property
    def error_s(self):
        """The longest time from the fault to the error of every survivor."""
        fault = FAULTS[self.fault]
        # A rank that has not reached the root yet is missed at the end of the start, and no earlier. A rank that waits
        # for a waiting rank reports a second later, and a grow then looks for a rank that does not answer.
        return max(fault.error_s, fault.init_timeout_s + 3 * SOON_S) if self.phase in ("init", "grow") else fault.error_s


def all_cells():
    return [Cell(fault, phase, transport) for fault in FAULTS for phase in PHASES for transport in TRANSPORTS]


def in_slice(cell):
    """Whether the cell is in the part that is tried with every change: every fault, and a death in every phase."""
    if cell.not_applicable:
        return False
    if cell.phase == "steady":
        return True
    # A reset of the connection with the root still ends the start of all ranks.
    return cell.fault in ("kill", "cut") or (cell.fault == "reset link" and cell.phase != "init")


class Outcome(typing.NamedTuple):
    error_s: float = 0       # the longest time of a survivor from the fault to the error; 0: no errors
    named: bool = True       # every error named a rank with a fault
    accused: int = 0         # survivors that called a healthy rank lost or hung
    shrink_s: float = 0
    left: int = 0            # descriptors, files and processes
    bad: str = ""            # the reason why the trial is bad


class Row:
    def __init__(self, cell, outcomes):
        self.cell, self.outcomes = cell, outcomes

    @property
    def good(self):
        return not any(one.bad for one in self.outcomes)

    @property
    def verdict(self):
        if self.cell.not_applicable:
            return f"not applicable: {self.cell.not_applicable}"
        bad = [one.bad for one in self.outcomes if one.bad]
        return f"**{len(bad)} of {len(self.outcomes)} bad**: {bad[0][:300]}" if bad else "good"

    def figures(self):
        worst = max((one.error_s for one in self.outcomes), default=0)
        shrink = max((one.shrink_s for one in self.outcomes), default=0)
        count = len(self.outcomes)
        return (f"{worst * 1000:.0f}" if worst else "–", f"{sum(one.named for one in self.outcomes)}/{count}",
                str(sum(one.accused for one in self.outcomes)), f"{shrink * 1000:.0f}" if shrink else "–",
                str(sum(one.left for one in self.outcomes)))

    def line(self):
        if self.cell.not_applicable:
            return f"{self.cell}: {self.verdict}"
        error, named, accused, shrink, left = self.figures()
        return (f"{self.cell}: error {error} ms, named {named}, accused {accused}, shrink {shrink} ms, left {left}: "
                f"{self.verdict}")


def page(table, options):
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    lines = ["# The fault board", "",
             "Faults × phases × transports on hosts: what the survivors tell, and how they go on. Times are the worst of "
             "all trials of a cell, in milliseconds: *error* from the fault to the last survivor's error, *shrink* from "
             "this error to a working communicator of the survivors. *named*: trials in which every error named a rank "
             "with a fault. *accused*: survivors that called a healthy rank lost or hung. *left*: descriptors, files "
             "and processes of survivors that remained.", "",
             f"**Settings of the jobs.** `TUTTI_TIMEOUT_S={TIMEOUT_S}`, `TUTTI_INIT_TIMEOUT_S={INIT_TIMEOUT_S}`, "
             f"`TUTTI_HOST_TIMEOUT_S={HOST_TIMEOUT_S}`; where the way is cut, the first two are {LONG_TIMEOUT_S}. 3 to 6 "
             "ranks.", "",
             f"**Machine.** {platform.platform()}, {time.strftime('%Y-%m-%d')}. **Commit.** {commit.stdout.strip()}.", "",
             f"**Command.** `tests/board/board build/release --trials {options.trials} --seed {options.seed} "
             f"--slack {options.slack:g} --write bench/results/board.md`", ""]
    for name, fault in FAULTS.items():
        rows = [row for row in table if row.cell.fault == name]
        if not rows:
            continue
        lines += [f"## {fault.text[0].upper()}{fault.text[1:]}", "",
                  "| phase | transport | error | named | accused | shrink | left | verdict |",
                  "|---|---|---|---|---|---|---|---|"]
        for row in rows:
            figures = ("", "", "", "", "") if row.cell.not_applicable else row.figures()
            lines.append(f"| {row.cell.phase} | {row.cell.transport} | {' | '.join(figures)} | {row.verdict} |")
        lines.append("")
    return "\n".join(lines)
