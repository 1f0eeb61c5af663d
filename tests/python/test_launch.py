"""How ranks learn who they are and meet, in one process."""

import os
import socket
import struct
import subprocess
import sys
import threading
import time
import unittest
import warnings
from unittest import mock

import ports
from tutti import _features, _hosts, _launch, check_build

# For what must come about, however busy the machine is.
PATIENCE_S = 60


class Environment(unittest.TestCase):
    def test_nothing_means_one_rank(self):
        launch = _launch.read({})
        self.assertEqual((launch.rank, launch.size), (0, 1))

    def test_launchers(self):
        master = {"MASTER_ADDR": "host0", "MASTER_PORT": "2900"}
        cases = [
            ({"RANK": "1", "WORLD_SIZE": "4", **master}, ("host0", 2900)),
            ({"HOROVOD_RANK": "1", "HOROVOD_SIZE": "4", "HOROVOD_GLOO_RENDEZVOUS_ADDR": "a",
              "HOROVOD_GLOO_RENDEZVOUS_PORT": "7", "RANK": "3"}, ("a", 7)),
            ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "TUTTI_ADDR": "b:8"},
             ("b", 8)),
            ({"PMI_RANK": "1", "PMI_SIZE": "4", "TUTTI_ADDR": "[::1]:8"}, ("::1", 8)),
            ({"SLURM_PROCID": "1", "SLURM_NTASKS": "4", "SLURM_STEP_ID": "0", **master},
             ("host0", 2900)),
        ]
        for environ, address in cases:
            launch = _launch.read(environ)
            self.assertEqual((launch.rank, launch.size), (1, 4), environ)
            self.assertEqual(launch.addresses, [address])

    def test_torchruns_agent_holds_its_port(self):
        launch = _launch.read({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "h",
                               "MASTER_PORT": "2900", "TORCHELASTIC_USE_AGENT_STORE": "True"})
        self.assertEqual(launch.addresses[0], ("h", 2901))

    def test_a_batch_script_of_slurm_is_no_rank(self):
        self.assertEqual(_launch.read({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}).size, 1)

    def test_pmi_on_several_machines(self):
        # Each machine has a process of its own that starts the ranks there.
        hydra = {"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALNRANKS": "2", "MPI_LOCALRANKID": "1",
                 "TUTTI_ADDR": "b:8"}
        jobs = []
        for pid in (100, 200):
            with mock.patch.object(os, "getppid", lambda pid=pid: pid):
                jobs.append(_launch.read(hydra))
        self.assertEqual(jobs[0].job, jobs[1].job)
        self.assertEqual((jobs[0].told, jobs[0].one_machine), ((1, 2), False))
        with self.assertRaisesRegex(ValueError, "PMI_RANK says .* no way to meet"):
            _launch.read({**hydra, "TUTTI_ADDR": ""})
        self.assertNotEqual(_launch.read({**hydra, "PMI_JOBID": "7.0"}).job, jobs[0].job)

    def test_pmi_behind_a_script(self):
        # The ranks' parents are shells; the mpirun is this process, or one called hydra_pmi_proxy.
        shows = "from tutti import _launch; print(_launch.read())"
        inherited = {name: value for name, value in os.environ.items()
                     if not name.startswith(("PMI_", "MPI_", "OMPI_", "HOROVOD_", "SLURM_"))}
        launches = [subprocess.run(
            ["sh", "-c", '"$0" -c "$1"; true', sys.executable, shows], capture_output=True, text=True,
            env={**inherited, "PMI_RANK": str(rank), "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2",
                 "MPI_LOCALRANKID": str(rank)}, check=True).stdout for rank in range(2)]
        self.assertIn("rank=1, size=2", launches[1])
        self.assertIn("\\x00tutti-", launches[0])
        self.assertEqual(launches[0].replace("rank=0", "rank=1").replace("told=(0,", "told=(1,"),
                         launches[1])

    # What slurmstepd sets (22.05), for the last of two tasks on one node and of three on two.
    SLURM = {"SLURM_JOB_ID": "12", "SLURM_STEP_ID": "3", "SLURM_NTASKS": "2", "SLURM_LOCALID": "1",
             "SLURM_NODEID": "0", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2",
             "SLURM_STEP_NODELIST": "node1", "SLURM_STEP_TASKS_PER_NODE": "2"}
    NODES = {**SLURM, "SLURM_NTASKS": "3", "SLURM_LOCALID": "0", "SLURM_NODEID": "1",
             "SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "3",
             "SLURM_STEP_NODELIST": "node[07-08]", "SLURM_STEP_TASKS_PER_NODE": "2,1"}

    def test_slurm(self):
        for pmi in ({}, {"PMI_RANK": "1", "PMI_SIZE": "2", "PMI_JOBID": "12.3", "PMI_FD": "9"}):
            with mock.patch.object(os, "getppid", lambda: self.fail("the parent's pid was used")):
                launch = _launch.read({**self.SLURM, **pmi})
            self.assertEqual((launch.rank, launch.size, launch.told, launch.one_machine),
                             (1, 2, (1, 2), True))
            self.assertIsInstance(launch.addresses[0], str)
        for pmi in ({}, {"PMI_RANK": "2", "PMI_SIZE": "3", "PMI_JOBID": "12.3", "PMI_FD": "9"}):
            launch = _launch.read({**self.NODES, **pmi})
            self.assertEqual((launch.rank, launch.size, launch.told, launch.one_machine),
                             (2, 3, (0, 1), False))
            self.assertEqual(launch.addresses[0], ("node07", 15087))
            self.assertEqual(_launch.read({**self.NODES, **pmi, "TUTTI_ADDR": "a:9"}).addresses,
                             [("a", 9)])

    def test_mpirun_inside_a_step_of_slurm(self):
        # Slurm started one process that starts ranks on each of two nodes.
        inside = {**self.NODES, "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
                  "PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "1", "MPI_LOCALRANKID": "0"}
        self.assertEqual(_launch.read({**inside, "TUTTI_ADDR": "a:9"}).told, (0, 1))
        inside.update({"MPI_LOCALNRANKS": "2", "MPI_LOCALRANKID": "1"})
        self.assertTrue(_launch.read(inside).one_machine)

    def test_lists_of_slurm(self):
        for nodes, first in (("a", "a"), ("a,b[1-2]", "a"), ("n[07-12,20]x,m", "n07x"),
                             ("n[3,5]", "n3"), ("n-1,n-2", "n-1"), ("", "")):
            self.assertEqual(_launch._first_host(nodes), first)
        for text, tasks in (("2", [2]), ("2(x3),1", [2, 2, 2, 1]), ("", []), ("many", [])):
            self.assertEqual(_hosts.slurms_tasks({"SLURM_STEP_TASKS_PER_NODE": text}), tasks)

    def test_sentences(self):
        with self.assertRaisesRegex(ValueError, "RANK=4 in the environment is not below"):
            _launch.read({"RANK": "4", "WORLD_SIZE": "4"})
        with self.assertRaisesRegex(ValueError, "RANK=x in the environment is not a number"):
            _launch.read({"RANK": "x", "WORLD_SIZE": "4"})
        with self.assertRaisesRegex(ValueError, "no way to meet"):
            _launch.read({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"})
        with self.assertRaisesRegex(ValueError, "not HOST:PORT"):
            _launch.read({"PMI_RANK": "0", "PMI_SIZE": "2", "TUTTI_ADDR": "nowhere"})


    def test_how_long_ranks_wait(self):
        self.assertEqual(_launch.patience_s({}), 120)
        self.assertEqual(_launch.patience_s({"TUTTI_INIT_TIMEOUT_S": "3.5"}), 3.5)
        self.assertEqual(_launch.patience_s({"TUTTI_INIT_TIMEOUT_S": "3",
                                             "HOROVOD_GLOO_TIMEOUT_SECONDS": "4"}), 4)
        with self.assertRaisesRegex(ValueError, "TUTTI_INIT_TIMEOUT_S is 'soon'"):
            _launch.patience_s({"TUTTI_INIT_TIMEOUT_S": "soon"})


class Hosts(unittest.TestCase):
    def test_equal_names_are_not_one_machine(self):
        with mock.patch.object(socket, "gethostname", lambda: "localhost"):
            mine = _hosts.identity({})
            with mock.patch.object(_hosts, "_BOOT_ID", __file__ + ".not"):
                self.assertEqual(_hosts.identity({}), "localhost")
        self.assertRegex(mine, "^localhost/[0-9a-f-]{36}$")
        self.assertEqual(_hosts.identity({"HOROVOD_HOSTNAME": "a"}), "a")

    def test_what_launchers_say(self):
        master = {"MASTER_ADDR": "h", "MASTER_PORT": "29"}
        for names in (("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
                      ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
                      ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                       "OMPI_COMM_WORLD_LOCAL_SIZE"),
                      ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")):
            environ = {**master, **dict(zip(names, ("5", "8", "1", "4")))}
            self.assertEqual(_launch.read(environ).told, (1, 4), names)
            for wrong in ("4", "-1", "x", ""):
                self.assertIsNone(_launch.read({**environ, names[2]: wrong}).told)

    def test_settle(self):
        pairs = [(0, 2), (1, 2)]
        # Nobody was told: counted. So it is where only some were, or what they were told has gaps.
        self.assertEqual(_hosts.settle(["a", "b", "a"], [None] * 3), (["a", "b", "a"], [0, 0, 1]))
        for said in ([(0, 2), (1, 2), None], [(0, 2), (1, 2), (0, 2)], [(0, 3), (1, 3), (0, 1)],
                     [(0, 2), (2, 2), (1, 2)]):
            self.assertEqual(_hosts.settle(["a"] * 3, said), (["a"] * 3, [0, 1, 2]), said)
        # The launcher's order on a host need not be that of the ranks.
        self.assertEqual(_hosts.settle(["a", "a", "b"], [(1, 2), (0, 2), (0, 1)]),
                         (["a", "a", "b"], [1, 0, 0]))
        # Two machines that nothing but the launcher tells apart, filled one by one or in turn.
        hosts, numbers = _hosts.settle(["a"] * 4, pairs + pairs)
        self.assertEqual((numbers, hosts[0] == hosts[1], hosts[2] == hosts[3], hosts[0] == hosts[2]),
                         ([0, 1, 0, 1], True, True, False))
        hosts, numbers = _hosts.settle(["a"] * 4, [(0, 2), (0, 2), (1, 2), (1, 2)])
        self.assertEqual((numbers, hosts[0] == hosts[2], hosts[1] == hosts[3], hosts[0] == hosts[1]),
                         ([0, 0, 1, 1], True, True, False))
        hosts, numbers = _hosts.settle(["a"] * 3, [(0, 2), (1, 2), (0, 1)])
        self.assertEqual((numbers, hosts[0] == hosts[1], hosts[0] == hosts[2]),
                         ([0, 1, 0], True, False))


class Meeting(unittest.TestCase):
    def test_what_ranks_were_told_comes_to_all(self):
        address, met = f"\0tutti-test-told-{os.getpid()}", {}

        def run(rank):
            launch = _launch.Launch(rank, 4, "job", "localhost", [address], told=(rank % 2, 2))
            met[rank] = _launch.meet(launch, b"id", 10)
        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for rank in range(4):
            self.assertEqual(met[rank].local_ranks, [0, 1, 0, 1])
            self.assertEqual(met[rank].hosts, met[0].hosts)
        self.assertEqual(len(set(met[0].hosts)), 2)

    def meet_all(self, addresses, size, disturb=lambda: None):
        met = {}

        def run(rank):
            launch = _launch.Launch(rank, size, "job", f"host{rank // 2}", addresses)
            met[rank] = _launch.meet(launch, b"\0id" if rank == 0 else b"", PATIENCE_S)

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
        threads[0].start()
        disturb()
        for thread in threads[1:]:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(met), size)
        for meeting in met.values():
            self.assertEqual(meeting.unique_id, b"\0id")
            self.assertEqual(meeting.hosts, [f"host{rank // 2}" for rank in range(size)])

    def test_tcp_and_local(self):
        self.meet_all([("127.0.0.1", ports.hold(self))], 5)
        self.meet_all([f"\0tutti-test-{os.getpid()}"], 4)

    def test_strangers_are_sent_away(self):
        port = ports.hold(self)

        def disturb():
            for noise in (b"", b"GET / HTTP/1.0\r\n\r\n" * 8, os.urandom(64) + b"\xff" * 8,
                          os.urandom(64) + b"\0\0\0\2{}"):
                stranger = self.connect(port)
                stranger.sendall(noise)
                stranger.close()

        self.meet_all([("127.0.0.1", port)], 3, disturb)

    def connect(self, port):
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            try:
                made = socket.create_connection(("127.0.0.1", port), 1)
                self.addCleanup(made.close)
                return made
            except OSError:
                time.sleep(0.01)
        raise AssertionError("rank 0 does not listen")

    def test_silent_strangers_hold_nobody_up(self):
        port = ports.hold(self)
        began = time.monotonic()
        with mock.patch.object(_launch, "_HANDSHAKE_S", PATIENCE_S / 2):  # what one of them may take
            self.meet_all([("127.0.0.1", port)], 3,
                          lambda: [self.connect(port).send(b"x") for _ in range(24)])
        self.assertLess(time.monotonic() - began, PATIENCE_S / 2)

    def test_more_strangers_than_are_heard_at_once(self):
        port = ports.hold(self)
        with mock.patch.object(_launch, "_MAX_GUESTS", 4):
            self.meet_all([("127.0.0.1", port)], 4,
                          lambda: [self.connect(port) for _ in range(20)])

    def test_a_stranger_who_dribbles_is_sent_away(self):
        port, gone = ports.hold(self), []

        def disturb():
            stranger = self.connect(port)
            stranger.settimeout(0.1)
            until = time.monotonic() + PATIENCE_S / 2
            while time.monotonic() < until:
                try:
                    stranger.send(b"x")
                    if not stranger.recv(64):
                        break
                except socket.timeout:
                    continue
                except OSError:
                    break
            gone.append(time.monotonic() < until)
        with mock.patch.object(_launch, "_HANDSHAKE_S", 0.5):
            self.meet_all([("127.0.0.1", port)], 2, disturb)
        self.assertEqual(gone, [True])

    def listen(self, *address):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with _launch._listen(_launch.Launch(0, 2, "job", "h", [address])) as listener:
                said = [str(w.message) for w in caught if w.category is RuntimeWarning]
                return listener.getsockname()[0], said

    def test_rank_0_listens_where_it_is_looked_for(self):
        with mock.patch.dict(os.environ, {"TUTTI_COMM_KEY": ""}):
            self.assertEqual(self.listen("127.0.0.1", ports.hold(self)), ("127.0.0.1", []))
            self.assertIn(self.listen("localhost", ports.hold(self))[0], ("127.0.0.1", "::1"))
            # An address of somebody else, as behind a service's name.
            place, said = self.listen("192.0.2.1", ports.hold(self))
            self.assertIn(place, ("::", "0.0.0.0"))
            self.assertRegex(said[0], "ranks meet at 192.0.2.1:.* without TUTTI_COMM_KEY")
            own = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 0))]
            with mock.patch.object(socket, "getaddrinfo", lambda *a, **k: own):
                self.assertIn(self.listen("thishost", ports.hold(self))[0], ("::", "0.0.0.0"))
        with mock.patch.dict(os.environ, {"TUTTI_COMM_KEY": "secret"}):
            self.assertEqual(self.listen("192.0.2.1", ports.hold(self))[1], [])

    def test_sockets_of_the_machine_are_for_one_user(self):
        class Socket:
            family = socket.AF_UNIX

            def getsockopt(self, *unused):
                return struct.pack("3i", 1, os.getuid() + 1, 1)
        with self.assertRaisesRegex(ConnectionError, f"belongs to user {os.getuid() + 1}"):
            _launch._check_user(Socket())

    def test_secrets_of_launchers(self):
        transport = {"OMPI_MCA_orte_precondition_transports": "12-34"}
        self.assertEqual(_launch._secret({}), "")
        self.assertEqual(_launch._secret(transport), "12-34")
        self.assertEqual(_launch._secret({**transport, "TUTTI_COMM_KEY": "a"}), "a")

    def test_another_key_does_not_meet(self):
        port = ports.hold(self)
        zero = _launch.Launch(0, 2, "job", "h", [("127.0.0.1", port)])
        one = _launch.Launch(1, 2, "another job", "h", [("127.0.0.1", port)])
        failures = []

        def run(launch):
            try:
                _launch.meet(launch, b"id", 0.6)
            except ConnectionError as error:
                failures.append(str(error))

        threads = [threading.Thread(target=run, args=(launch,)) for launch in (zero, one)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(failures), 2)
        self.assertTrue(any("missing: 1" in sentence for sentence in failures), failures)

    def test_the_secret_is_part_of_the_key(self):
        launch = _launch.Launch(0, 2, "job", "h", [])
        with mock.patch.dict(os.environ, {"TUTTI_COMM_KEY": "a"}):
            first = _launch._key(launch)
        with mock.patch.dict(os.environ, {"TUTTI_COMM_KEY": "b"}):
            self.assertNotEqual(first, _launch._key(launch))


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
