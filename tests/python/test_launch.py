"""How ranks learn who they are and meet. What the environment means and how ranks prove themselves
is tested with the library (src/launch); here is what the package makes of it."""

import json
import os
import signal
import subprocess
import sys
import threading
import unittest
from unittest import mock

import ports
from tutti import _features, _launch, check_build

# For what must come about, however busy the machine is.
PATIENCE_S = 60

_LAUNCHERS = ("PMI_", "PMIX_", "MPI_", "OMPI_", "HOROVOD_", "SLURM_", "TUTTI_ADDR", "RANK", "LOCAL_",
              "WORLD_SIZE", "MASTER_", "TORCHELASTIC_", "TUTTI_COMM_KEY", "TUTTI_INSECURE",
              "TUTTI_INIT_TIMEOUT_S")


def environment(**variables):
    """This process's environment without what launchers leave in it, and with `variables`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_LAUNCHERS)}
    return {**kept, **{name: str(value) for name, value in variables.items()}}


def read(**variables):
    with mock.patch.dict(os.environ, environment(**variables), clear=True):
        return _launch.read()


def ranks(size, port, **variables):
    return [read(RANK=rank, WORLD_SIZE=size, MASTER_ADDR="127.0.0.1", MASTER_PORT=port, **variables)
            for rank in range(size)]


class Environment(unittest.TestCase):
    def test_nothing_means_one_rank(self):
        launch = read()
        self.assertEqual((launch.rank, launch.size), (0, 1))
        meeting = launch.meet(b"\0id")
        self.assertEqual(meeting.unique_id, b"\0id")
        self.assertEqual(meeting.places, [_launch.Place(0, 0, 1, 0, 1)])

    def test_what_is_read(self):
        launch = read(RANK=1, WORLD_SIZE=4, MASTER_ADDR="host0", MASTER_PORT=2900,
                      TUTTI_INIT_TIMEOUT_S=7)
        self.assertEqual((launch.rank, launch.size, launch.timeout_s), (1, 4, 7))
        self.assertEqual(launch.rendezvous, "TCP at host0 port 2900")

    def test_pmi_behind_a_script(self):
        # The ranks' parents are shells; the mpirun is this process, or one called hydra_pmi_proxy.
        shows = "from tutti import _launch; launch = _launch.read(); " \
                "print(launch.rank, launch.meet(b'id').unique_id)"
        started = [subprocess.Popen(
            ["sh", "-c", '"$0" -c "$1"; true', sys.executable, shows], stdout=subprocess.PIPE,
            text=True, env=environment(PMI_RANK=rank, PMI_SIZE=2, MPI_LOCALNRANKS=2,
                                       MPI_LOCALRANKID=rank)) for rank in range(2)]
        self.assertEqual([process.communicate(timeout=PATIENCE_S)[0] for process in started],
                         ["0 b'id'\n", "1 b'id'\n"])

    def test_sentences(self):
        with self.assertRaisesRegex(ValueError, "RANK=4 in the environment is not below"):
            read(RANK=4, WORLD_SIZE=4)
        with self.assertRaisesRegex(ValueError, "RANK=x in the environment is not a number"):
            read(RANK="x", WORLD_SIZE=4)
        with self.assertRaisesRegex(ValueError, "no way to meet"):
            read(OMPI_COMM_WORLD_RANK=0, OMPI_COMM_WORLD_SIZE=2)
        with self.assertRaisesRegex(ValueError, "not HOST:PORT"):
            read(PMI_RANK=0, PMI_SIZE=2, TUTTI_ADDR="nowhere")
        with self.assertRaisesRegex(ValueError, "TUTTI_INIT_TIMEOUT_S=soon"):
            read(TUTTI_INIT_TIMEOUT_S="soon")

    def test_parts(self):
        launch = read(RANK=1, WORLD_SIZE=4, MASTER_ADDR="host0", MASTER_PORT=7)
        part = launch.part([0, 1])
        self.assertEqual((part.rank, part.size, part.rendezvous), (1, 2, "TCP at host0 port 7"))
        with self.assertRaisesRegex(ValueError, "the first of them"):
            launch.part([1, 2])
        with self.assertRaisesRegex(ValueError, "does not consist of different ranks"):
            launch.part([])


class Machines(unittest.TestCase):
    def test_names(self):
        with mock.patch.dict(os.environ, environment(), clear=True):
            self.assertRegex(_launch.machine(), "/[0-9a-f-]{36}$")
        with mock.patch.dict(os.environ, environment(HOROVOD_HOSTNAME="a"), clear=True):
            self.assertEqual(_launch.machine(), "a")

    def test_counting(self):
        self.assertEqual(_launch.count_places(["a", "b", "a"]),
                         [_launch.Place(0, 0, 2, 0, 2), _launch.Place(1, 0, 1, 1, 2),
                          _launch.Place(0, 1, 2, 0, 1)])


class Meeting(unittest.TestCase):
    def meet_all(self, launches, seconds=PATIENCE_S):
        outcomes = {}

        def run(launch):
            try:
                outcomes[launch.rank] = launch.meet(b"\0id" if launch.rank == 0 else b"", seconds)
            except ConnectionError as error:
                outcomes[launch.rank] = error
        threads = [threading.Thread(target=run, args=(launch,)) for launch in launches]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [outcomes[launch.rank] for launch in launches]

    def test_everybody_has_the_id_and_the_places(self):
        for variables in ({}, {"LOCAL_WORLD_SIZE": 4}):
            met = self.meet_all(ranks(4, ports.hold(self), **variables))
            for meeting in met:
                self.assertEqual(meeting.unique_id, b"\0id")
                self.assertEqual([place.local_rank for place in meeting.places], [0, 1, 2, 3])
                self.assertEqual(meeting.places[3], _launch.Place(0, 3, 4, 0, 1))

    def test_over_tcp_only_with_a_secret(self):
        launches = ranks(2, ports.hold(self), TUTTI_ADDR="127.0.0.1:9", HOME="/nonexistent")
        for rank, outcome in enumerate(self.meet_all(launches)):
            self.assertRegex(str(outcome), f"rank {rank} of 2.*without a secret.*TUTTI_COMM_KEY"
                                           ".*`tutti key`")

    def test_another_secret_does_not_meet(self):
        port = ports.hold(self)
        zero = ranks(2, port, TUTTI_COMM_KEY="a" * 32)[0]
        one = ranks(2, port, TUTTI_COMM_KEY="b" * 32)[1]
        zero, one = self.meet_all([zero, one], 0.6)
        self.assertRegex(str(zero), "rank 1 did not arrive")
        self.assertRegex(str(one), "rank 0 could not be reached")

    def test_a_rank_0_without_an_id_tells_the_others(self):
        begins = "import tutti.numpy as hvd\ntry: hvd.init()\nexcept ValueError as error: print(error)"
        port = ports.hold(self)
        started = [subprocess.Popen(
            [sys.executable, "-c", begins], stdout=subprocess.PIPE, text=True,
            env=environment(RANK=rank, WORLD_SIZE=2, MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
                            NCCL_SOCKET_IFNAME="=none0" if rank == 0 else ""))
                   for rank in range(2)]
        for process in started:
            said = process.communicate(timeout=PATIENCE_S)[0]
            self.assertRegex(said, "rank 0 cannot begin: .*no network interface fits")

    def test_ctrl_c_ends_the_wait(self):
        waits = "from tutti import _launch; launch = _launch.read(); print('ready', flush=True); " \
                "launch.meet(b'id')"
        for rank in range(2):
            process = subprocess.Popen(
                [sys.executable, "-c", waits], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                text=True, env=environment(RANK=rank, WORLD_SIZE=2, MASTER_ADDR="127.0.0.1",
                                           MASTER_PORT=ports.hold(self)))
            self.assertEqual(process.stdout.readline(), "ready\n")
            process.send_signal(signal.SIGINT)
            self.assertIn("KeyboardInterrupt", process.communicate(timeout=PATIENCE_S)[1])


# A rank of the package that is in one job with ranks of other programs.
SUMS = """
import numpy, tutti
from tutti import _launch
launch = _launch.read()
meeting = launch.meet(tutti.Communicator.unique_id() if launch.rank == 0 else b"")
comm = tutti.Communicator(launch.rank, launch.size, meeting.unique_id)
print(comm.allreduce(numpy.full(1024, launch.rank + 1, numpy.float32))[0])
"""

MEETS = """
import sys
from tutti import _launch
sys.stdout.write(_launch.read().meet(b"no invitation").unique_id.decode())
"""


@unittest.skipUnless(os.environ.get("TUTTI_PROGRAM"), "TUTTI_PROGRAM names no `tutti` program")
class OtherPrograms(unittest.TestCase):
    """Ranks of the package and of other programs in one job."""

    def start(self, commands):
        port = ports.hold(self)
        started = []
        for rank, command in enumerate(commands):
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                env=environment(RANK=rank, WORLD_SIZE=len(commands), MASTER_ADDR="127.0.0.1",
                                MASTER_PORT=port, TUTTI_COMM_KEY="secret" * 8, TUTTI_BACKEND="host"))
            self.addCleanup(process.wait)
            self.addCleanup(process.kill)
            started.append(process)
        return [(*process.communicate(timeout=PATIENCE_S), process.returncode)
                for process in started]

    def test_c_and_python_reduce_together(self):
        program, package = [os.environ["TUTTI_EXAMPLE"]], [sys.executable, "-c", SUMS]
        for commands in ([program, package, program], [package, program, package]):
            for command, (said, wrong, status) in zip(commands, self.start(commands)):
                self.assertEqual(status, 0, wrong)
                self.assertIn("6.0" if command is package else "the sum is 6", said)

    def test_tutti_perf_and_python_meet(self):
        perf = [os.environ["TUTTI_PROGRAM"], "perf", "all_reduce", "-b", "8", "--timeout", "3"]
        package = [sys.executable, "-c", MEETS]
        # The package has what the driver handed round, and takes no part in the measurement.
        (_, wrong, status), (invitation, _, _) = self.start([perf, package])
        self.assertEqual(sorted(json.loads(invitation)), ["addresses", "key", "port"])
        self.assertNotEqual(status, 0)
        self.assertIn("gathering the ranks: rank 1 did not arrive", wrong)
        (_, _, zero), (_, wrong, status) = self.start([package, perf])
        self.assertEqual((zero, status), (0, 1))
        self.assertIn("rank 0 is no rank of `tutti perf`", wrong)


class WhatIsThere(unittest.TestCase):
    def test_the_first_controller_counts(self):
        # As the library reads the list.
        with mock.patch.object(_features, "mpi_built", lambda: True):
            for text, mpi in (("mpi", True), ("MPI", True), (" mpi ,tutti", True), ("", False),
                              ("tutti,mpi", False), ("gloo", False), ("openmpi", False)):
                with mock.patch.dict(os.environ, {"HOROVOD_CONTROLLER": text}):
                    self.assertEqual((_features.mpi_enabled(), _features.gloo_enabled()),
                                     (mpi, not mpi), text)

    def test_a_library_that_cannot_be_had(self):
        with mock.patch.dict(os.environ, {"TUTTI_NCCL_LIBRARY": "/nowhere/libnccl.so.2"}):
            own = _features.nccl_built()
            with mock.patch.dict(os.environ, {"HOROVOD_GPU_OPERATIONS": "NCCL"}):
                self.assertEqual(_features.nccl_built(), own)
            with self.assertRaisesRegex(ValueError, "/nowhere/libnccl.so.2 cannot be loaded"):
                _features.find_nccl()
            self.assertIn("[ ] NCCL (tuttiCoordinatorFindNccl: /nowhere/libnccl.so.2", check_build.report())


if __name__ == "__main__":
    unittest.main()
