"""Runs Horovod's own test suites, unmodified, on this package, and writes a table of what passed.

    python3 tests/python/horovod_suites.py CHECKOUT -n 2 --launcher tutti --library build/.../libtutti.so.0

CHECKOUT is a checkout of Horovod's repository; nothing is fetched. The launchers are `tutti run`,
this package's horovodrun, and the mpirun of Open MPI and of MPICH. Every function is run by a job of
its own, so that none suffers from another: the ranks fork a process for each, after everything was
imported, and wait for it. With --fresh the launcher starts new ranks for each function, which takes
seconds more each, and is needed where ranks talk by MPI (HOROVOD_CONTROLLER=mpi), which a process
can join once.

A function passes when it passes on every rank, or skips on some; it skips when it skips on all. The
exit status is 0 when none failed but those that --expect names. PyTorch, pytest, NumPy and
cloudpickle must be installed; where PyTorch lies without its bytecode, PYTHONPYCACHEPREFIX=FOLDER
spares each function seconds. Suites that import horovod.tensorflow for its process sets get
horovod.torch, where TensorFlow is missing; so do those that import `mock` get unittest.mock.
"""

from __future__ import annotations

import argparse
import ast
import collections
import contextlib
import gc
import importlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from typing import Dict, List, NamedTuple, Optional

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGES = [os.path.join(HERE, "..", "..", "python"),
            os.path.join(HERE, "..", "..", "python", "horovod_alias")]
SUITES = ["test_torch.py", "test_adasum_pytorch.py", "test_common.py", "test_timeline.py",
          "test_process_sets_static.py", "test_process_sets_multi_comm.py"]
PASSED, FAILED, SKIPPED = "pass", "fail", "skip"


class Function(NamedTuple):
    """A function of a suite: its file, and what pytest calls it there."""
    path: str
    name: str

    def __str__(self) -> str:
        return f"{os.path.basename(self.path)}::{self.name.split('::')[-1]}"


def functions_of(path: str) -> List[Function]:
    """Returns the tests of a file, in its order, without importing it."""
    with open(path, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    found = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            found.append(Function(path, node.name))
        for part in node.body if isinstance(node, ast.ClassDef) else []:
            if isinstance(part, ast.FunctionDef) and part.name.startswith("test_"):
                found.append(Function(path, f"{node.name}::{part.name}"))
    return found


# On a rank


class Recorder:
    """A plugin of pytest that keeps how one function ended."""

    def __init__(self) -> None:
        self.outcome, self.why = FAILED, "it did not run"

    def pytest_runtest_logreport(self, report) -> None:
        if report.skipped:
            self.outcome, self.why = SKIPPED, str(report.longrepr[2])
        elif report.failed:
            self.outcome, self.why = FAILED, report.longrepr.reprcrash.message
        elif report.when == "call":
            self.outcome, self.why = PASSED, ""


def import_everything() -> None:
    """Imports what the suites do, so that forked processes need not."""
    for name in ("torch", "pytest", "numpy", "horovod.torch"):
        importlib.import_module(name)
    # Optimizers of PyTorch 2 import it when they are made, which takes seconds.
    with contextlib.suppress(ImportError):
        importlib.import_module("torch._dynamo")
    for name, instead in (("mock", "unittest.mock"), ("horovod.tensorflow", "horovod.torch")):
        needed = "tensorflow" if "tensorflow" in name else name
        if importlib.util.find_spec(needed) is None:
            sys.modules[name] = importlib.import_module(instead)
            if name.startswith("horovod."):
                setattr(sys.modules["horovod"], name.split(".")[1], sys.modules[name])


def pytest_on(path: str, what: List[str], *plugins: object) -> None:
    """Has pytest do what is asked for with a file of Horovod's."""
    checkout = os.path.dirname(os.path.dirname(os.path.dirname(path)))
    importlib.import_module("pytest").main(
        ["-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", checkout, *what],
        plugins=plugins)


def run_one(function: Function, folder: str, number: int) -> None:
    """Runs one function here and writes how it ended into the folder."""
    recorder = Recorder()
    pytest_on(function.path, [f"{function.path}::{function.name}"], recorder)
    with tempfile.NamedTemporaryFile("w", dir=folder, prefix=f"{number}.", suffix=".json",
                                     delete=False) as file:
        json.dump({"outcome": recorder.outcome, "why": recorder.why.splitlines()[:1]}, file)


def await_end(process: int, limit_s: float) -> None:
    """Waits for a child, and kills it at the limit."""
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        if os.waitpid(process, os.WNOHANG)[0]:
            return
        time.sleep(0.01)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)


def work(plan: str, folder: str, limit_s: float) -> None:
    """Runs the functions of a plan on this rank, each in a process of its own where there are
    several."""
    with open(plan, encoding="utf-8") as file:
        functions = [(number, Function(*one)) for number, one in json.load(file)]
    import_everything()
    # The suites, too: a forked process finds them imported.
    for path in sorted({function.path for _, function in functions} if len(functions) > 1 else ()):
        pytest_on(path, ["--collect-only", "-qq", path])
    for number, function in functions:
        if len(functions) == 1:
            run_one(function, folder, number)
            return
        sys.stdout.flush()
        gc.freeze()  # The child's collector leaves alone, and does not copy, what it shares with this.
        process = os.fork()
        if process == 0:
            # What the suite prints goes into a file, for --verbose.
            with open(os.path.join(folder, f"{number}.{os.getpid()}.out"), "wb") as output:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
            try:
                run_one(function, folder, number)
            finally:
                # The package ends a job that still runs, as at the end of any process.
                sys.exit(0)
        await_end(process, limit_s)


# The table


def launcher_of(arguments: argparse.Namespace) -> List[str]:
    ranks = str(arguments.ranks)
    if arguments.launcher == "tutti":
        return [arguments.program, "run", "-n", ranks]
    if arguments.launcher == "horovodrun":
        return [sys.executable, "-m", "tutti._horovodrun", "-np", ranks]
    if arguments.launcher == "openmpi":
        return ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", ranks]
    return ["mpirun.mpich", "-n", ranks]


def environment_of(arguments: argparse.Namespace) -> Dict[str, str]:
    variables = dict(os.environ, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    if "PYTHONPYCACHEPREFIX" not in variables:
        variables["PYTHONDONTWRITEBYTECODE"] = "1"  # nothing is written into the checkout
    variables.setdefault("OMP_NUM_THREADS", "1")
    variables["PYTHONPATH"] = os.pathsep.join(
        [*PACKAGES, *filter(None, [os.environ.get("PYTHONPATH")])])
    if arguments.library:
        variables["TUTTI_LIBRARY"] = os.path.abspath(arguments.library)
    variables["TUTTI_PROGRAM"] = arguments.program
    return variables


def run_jobs(arguments: argparse.Namespace, functions: List[Function], folder: str) -> None:
    """Runs all functions, by one job or by one each, and leaves the results in the folder."""
    numbered = list(enumerate(functions))
    for part in [[one] for one in numbered] if arguments.fresh else [numbered]:
        plan = os.path.join(folder, "plan")
        with open(plan, "w", encoding="utf-8") as file:
            json.dump(part, file)
        limit_s = (arguments.limit + 10) * len(part) + 60
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run([*launcher_of(arguments), sys.executable, os.path.abspath(__file__),
                            "--work", plan, folder, str(arguments.limit)],
                           env=environment_of(arguments), timeout=limit_s, check=False,
                           stdout=None if arguments.verbose else subprocess.DEVNULL,
                           stderr=None if arguments.verbose else subprocess.DEVNULL)


def results_of(folder: str, functions: List[Function], ranks: int) -> List[List[str]]:
    """Returns a row for each function: what became of it, and why."""
    told: Dict[int, List[Dict]] = collections.defaultdict(list)
    for name in os.listdir(folder):
        if name.endswith(".json"):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                told[int(name.split(".")[0])].append(json.load(file))
    rows = []
    for number, function in enumerate(functions):
        ended = told[number]
        outcomes = {one["outcome"] for one in ended}
        if len(ended) < ranks:
            outcomes.add(FAILED)
            ended.append({"outcome": FAILED, "why": [f"{ranks - len(ended)} ranks did not end"]})
        outcome = FAILED if FAILED in outcomes else PASSED if PASSED in outcomes else SKIPPED
        why = next((one["why"][0] for one in ended if one["outcome"] == outcome and one["why"]), "")
        rows.append([str(function), outcome, why])
    return rows


def table(rows: List[List[str]], title: str) -> str:
    """Returns the rows as a table in Markdown, with the sums of each suite above."""
    lines = [f"## {title}", "", "| suite | pass | fail | skip |", "|---|---|---|---|"]
    suites = collections.OrderedDict()
    for name, outcome, _ in rows:
        suites.setdefault(name.split("::")[0], collections.Counter())[outcome] += 1
    for suite, count in suites.items():
        lines.append(f"| {suite} | {count[PASSED]} | {count[FAILED]} | {count[SKIPPED]} |")
    lines += ["", "| function | | why |", "|---|---|---|"]
    for name, outcome, why in rows:
        shown = why.replace("|", "\\|")[:150]
        lines.append(f"| {name} | {outcome} | {shown} |")
    return "\n".join(lines) + "\n"


def main(words: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", help="a checkout of Horovod's repository")
    parser.add_argument("-n", "--ranks", type=int, default=2)
    parser.add_argument("--launcher", default="tutti",
                        choices=["tutti", "horovodrun", "openmpi", "mpich"])
    parser.add_argument("--library", default=os.environ.get("TUTTI_LIBRARY"), help="libtutti.so.0")
    parser.add_argument("--program", default=os.environ.get("TUTTI_PROGRAM", "tutti"),
                        help="the program tutti")
    parser.add_argument("--suite", action="append", help="files below test/parallel; may be repeated")
    parser.add_argument("-k", default="", help="only functions in whose name this stands")
    parser.add_argument("--fresh", action="store_true", help="start new ranks for each function")
    parser.add_argument("--limit", type=float, default=120, help="seconds for each function")
    parser.add_argument("--expect", default="", help="functions that may fail, with commas between")
    parser.add_argument("--output", help="write the table there, too")
    parser.add_argument("--verbose", action="store_true", help="show what launcher and ranks write")
    given = parser.parse_args(words)
    functions = [function for suite in given.suite or SUITES
                 for function in functions_of(os.path.abspath(
                     os.path.join(given.checkout, "test", "parallel", suite)))
                 if given.k in function.name]
    with tempfile.TemporaryDirectory(prefix="tutti-suites-") as folder:
        run_jobs(given, functions, folder)
        rows = results_of(folder, functions, given.ranks)
    text = table(rows, f"{given.launcher}, {given.ranks} ranks")
    print(text, end="")
    if given.output:
        with open(given.output, "w", encoding="utf-8") as file:
            file.write(text)
    expected = given.expect.split(",")
    return int(any(outcome == FAILED and name.split("::")[1] not in expected
                   for name, outcome, _ in rows))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(sys.argv[2], sys.argv[3], float(sys.argv[4]))
    else:
        sys.exit(main())
