"""How ranks learn who they are and meet, in one process."""

import os
import socket
import struct
import threading
import time
import unittest
import warnings
from unittest import mock

import ports
from tutti import _features, _launch, check_build

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


class Meeting(unittest.TestCase):
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
