"""Runs Horovod's integration suite of elastic jobs with PyTorch, unmodified, on this package's horovodrun.

    python3 tests/python/horovod_elastic_suite.py CHECKOUT --library build/.../libtutti.so.0

CHECKOUT is a checkout of Horovod's repository; nothing is fetched. The suite calls functions of
Horovod's launcher. In their place stand functions that start horovodrun as it would be typed, with
--end-failed-hosts, and --blacklist-cooldown-range 0 0 where the suite names none: both are Horovod's
way (docs/elastic.md). Further words are pytest's. PyTorch, pytest, psutil and mock must be installed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import types
from typing import List
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGES = [os.path.join(HERE, "..", "..", "python"),
            os.path.join(HERE, "..", "..", "python", "horovod_alias")]
# The sentences by which the suite knows why a job failed.
FAILED = "Horovod detected that one or more processes exited with non-zero status"
LIMIT = "the job began anew {} times, which is its limit"
LIMIT_S = 600  # for a job, on a machine that has other work


def run_elastic(words: List[str]) -> None:
    """Runs a job. RuntimeError, in the suite's words, where it fails."""
    command = [sys.executable, "-m", "tutti._horovodrun", "--end-failed-hosts", *words]
    if "--blacklist-cooldown-range" not in words:
        command[3:3] = ["--blacklist-cooldown-range", "0", "0"]
    ended = subprocess.run(command, stderr=subprocess.PIPE, timeout=LIMIT_S, check=False, text=True)
    sys.stderr.write(ended.stderr)
    if ended.returncode != 0:
        raise RuntimeError(f"{FAILED}: {ended.stderr}")


def module(name: str, **members: object) -> None:
    """Makes a module of this name, which its package knows, too."""
    made = sys.modules[name] = types.ModuleType(name)
    made.__dict__.update(members)
    package, _, last = name.rpartition(".")
    if package:
        setattr(sys.modules[package], last, made)


def put_launcher_in_place() -> None:
    """Makes what the suite imports of Horovod's launcher."""
    for name in ("horovod", "horovod.runner", "horovod.runner.common", "horovod.runner.common.util",
                 "horovod.runner.elastic"):
        module(name)
    module("horovod.runner.common.util.config_parser", set_env_from_args=lambda env, args: None)
    module("horovod.runner.elastic.constants", RESET_LIMIT_EXCEEDED_MESSAGE=LIMIT)
    module("horovod.runner.elastic.driver", DISCOVER_HOSTS_FREQUENCY_SECS=1, ELASTIC_TIMEOUT_SECS=600)
    module("horovod.runner.gloo_run", _get_min_start_hosts=None)
    # The suite puts the command's words into sys.argv.
    module("horovod.runner.launch", parse_args=lambda: sys.argv[1:], _run_elastic=run_elastic)


def put_common_in_place() -> None:
    """Makes the two functions of Horovod's test/utils/common.py that the suite uses, whose module
    imports more of Horovod than there is."""

    @contextlib.contextmanager
    def temppath():
        with tempfile.TemporaryDirectory() as folder:
            yield os.path.join(folder, "file")

    module("common", temppath=temppath,
           override_args=lambda *words: mock.patch.object(sys, "argv", list(words)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout")
    parser.add_argument("--library", default=os.environ.get("TUTTI_LIBRARY"))
    parser.add_argument("--program", default=os.environ.get("TUTTI_PROGRAM", "tutti"))
    given, words = parser.parse_known_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [*PACKAGES, *filter(None, [os.environ.get("PYTHONPATH")])])
    os.environ["TUTTI_PROGRAM"] = given.program
    if given.library:
        os.environ["TUTTI_LIBRARY"] = os.path.abspath(given.library)
    put_launcher_in_place()
    put_common_in_place()
    import pytest
    folder = os.path.join(os.path.abspath(given.checkout), "test", "integration")
    sys.path.insert(0, folder)
    return pytest.main(["-v", "-c", os.devnull, "-p", "no:cacheprovider",
                        os.path.join(folder, "test_elastic_torch.py"), *words])


if __name__ == "__main__":
    sys.exit(main())
