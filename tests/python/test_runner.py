"""tutti.run, the `tutti` command of the package, and the names by which Horovod's scripts know them;
starts the ranks itself."""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

import numpy as np

import tutti
from tutti import _features, _mpirun
import tutti.numpy as hvd


# An option of mpirun that sets a variable.
MADE = "-x MADE=here" if hvd.mpi_built() and shutil.which("mpirun") and \
    _mpirun._find()[1] == "openmpi" else "-genv MADE here"


def total(first, second=0):
    hvd.init()
    got = hvd.allreduce(np.array([first + second + hvd.rank()]), op=hvd.Sum)
    return hvd.rank(), hvd.size(), int(got[0])


def fails():
    hvd.init()
    if hvd.rank() == 1:
        raise KeyError("of rank 1")
    hvd.barrier()


def elastic_sum():
    import tutti.elastic
    state = tutti.elastic.ObjectState(step=0)

    @tutti.elastic.run
    def train(state):
        while state.step < 5:
            hvd.allreduce(np.ones(1))
            state.step += 1
            state.commit()
        return hvd.rank(), hvd.size(), state.step
    return train(state)


def by_mpi():
    return (hvd.mpi_enabled(), hvd.gloo_enabled(), os.environ.get("HOROVOD_CPU_OPERATIONS"),
            os.environ.get("MADE"))


def seen(*names):
    return [os.environ.get(name) for name in names]


def seen_in_an_elastic_job(*names):
    hvd.init()
    return seen(*names)


class Run(unittest.TestCase):
    def test_results_come_by_rank(self):
        self.assertEqual(tutti.run(total, args=(10,), kwargs={"second": 5}, np=2),
                         [(0, 2, 31), (1, 2, 31)])

    def test_a_rank_that_fails(self):
        with self.assertRaisesRegex(RuntimeError, "Horovod detected that one or more processes "
                                                  "exited with non-zero status: a rank failed"):
            tutti.run(fails, np=2)

    def test_other_hosts(self):
        with self.assertRaisesRegex(ValueError, "ranks of this machine only, not of other:2"):
            tutti.run(total, args=(1,), np=2, hosts="localhost:2,other:2")
        self.assertEqual(len(tutti.run(total, args=(1,), np=1, hosts="localhost:1", verbose=2)), 1)

    def test_horovods_parameters(self):
        with self.assertWarnsRegex(DeprecationWarning, "np is deprecated; use num_proc"):
            self.assertEqual(len(tutti.run(seen, np=2)), 2)
        self.assertEqual(
            tutti.run(seen, ("TUTTI_INIT_TIMEOUT_S", "NCCL_SOCKET_IFNAME", "A"), num_proc=1,
                      start_timeout=50, network_interface="lo", env={"A": "1"}),
            [["50", "lo", "1"]])
        with tempfile.NamedTemporaryFile("w", suffix=".hosts") as file:
            file.write("# one\nlocalhost slots=2\n")
            file.flush()
            self.assertEqual(len(tutti.run(seen, num_proc=2, hostfile=file.name)), 2)
            with self.assertRaisesRegex(ValueError, "num_proc is 3, more than the slots"):
                tutti.run(seen, num_proc=3, hostfile=file.name)
            with self.assertRaisesRegex(ValueError, "not both"):
                tutti.run(seen, hosts="localhost", hostfile=file.name)
        self.assertEqual(tutti.run(seen, ("NCCL_SOCKET_IFNAME", "HOROVOD_GLOO_IFACE"),
                                   network_interfaces=["lo", "eth9"],
                                   env={"HOROVOD_GLOO_IFACE": "lo"}), [["lo,eth9", "lo"]])
        for options in ({"mpi_args": "-x A"}, {"output_filename": "out"},
                        {"use_mpi": True, "min_num_proc": 1}, {"use_gloo": True, "use_mpi": True}):
            with self.assertRaisesRegex(ValueError, next(iter(options))):
                tutti.run(seen, **options)
        with self.assertRaises(TypeError):
            tutti.run(seen, nonsense=1)

    def test_an_elastic_job(self):
        # The fifth is the least number of ranks, as with Horovod.
        self.assertEqual(tutti.run(elastic_sum, (), None, 2, 2, max_num_proc=2, reset_limit=3,
                                   cooldown_range=(1, 2)), [(0, 2, 5), (1, 2, 5)])

    def test_hosts_that_a_script_names(self):
        with tempfile.NamedTemporaryFile("w", suffix=".sh", delete=False) as file:
            file.write("#!/bin/sh\necho localhost:2\n")
        os.chmod(file.name, 0o755)
        self.addCleanup(os.remove, file.name)
        self.assertEqual(tutti.run(elastic_sum, num_proc=2, host_discovery_script=file.name),
                         [(0, 2, 5), (1, 2, 5)])

    @unittest.skipUnless(hvd.mpi_built() and shutil.which("mpirun"), "needs mpirun and a plugin")
    def test_ranks_of_mpi(self):
        self.assertEqual(tutti.run(total, args=(10,), num_proc=2, use_mpi=True),
                         [(0, 2, 21), (1, 2, 21)])
        self.assertEqual(tutti.run(by_mpi, num_proc=1, use_mpi=True, mpi_args=MADE),
                         [(True, False, "mpi", "here")])
        with self.assertRaisesRegex(RuntimeError, "^mpirun failed with exit code [1-9]"):
            tutti.run(fails, num_proc=2, use_mpi=True)

    def test_a_script_may_run_its_own_function(self):
        script = """
import horovod, horovod.runner
def where():
    import tutti.numpy as hvd
    hvd.init()
    return hvd.rank()
if __name__ == "__main__":
    assert horovod.run is horovod.runner.run
    print(horovod.run(where, np=2))
"""
        path = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"tutti-script-{os.getpid()}.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(script)
        self.addCleanup(os.remove, path)
        ended = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=300,
                               check=False)
        self.assertEqual((ended.returncode, ended.stdout), (0, "[0, 1]\n"), ended.stderr)


class Command(unittest.TestCase):
    def test_python_m_tutti(self):
        ended = subprocess.run([sys.executable, "-m", "tutti", "run", "-n", "2", "true"], timeout=300,
                               check=False)
        self.assertEqual(ended.returncode, 0)

    def test_without_a_program(self):
        ended = subprocess.run(
            [sys.executable, "-m", "tutti", "run"], capture_output=True, text=True, timeout=300,
            env=dict({k: v for k, v in os.environ.items() if k != "TUTTI_PROGRAM"}, PATH=""),
            check=False)
        self.assertEqual(ended.returncode, 1)
        self.assertIn("there is no `tutti` program", ended.stderr)


def horovodrun(*arguments, **environment):
    return subprocess.run([sys.executable, "-m", "tutti._horovodrun", *arguments],
                          env=dict(os.environ, **environment), capture_output=True, text=True,
                          timeout=300, check=False)


class Horovodrun(unittest.TestCase):
    def test_ranks_and_hosts(self):
        show = ["sh", "-c", "echo $RANK of $WORLD_SIZE -np, ${TUTTI_ELASTIC_ADDR:-fixed}"]
        with tempfile.NamedTemporaryFile("w", suffix=".hosts") as file:
            file.write("localhost slots=3\n")
            file.flush()
            for options in ([], ["-H", "localhost:4"], ["--hostfile", file.name], ["--gloo"]):
                ended = horovodrun("-np", "2", *options, *show)
                self.assertEqual(sorted(ended.stdout.splitlines()),
                                 ["[0] 0 of 2 -np, fixed", "[1] 1 of 2 -np, fixed"], ended.stderr)
            file.write("localhost many\n")
            file.flush()
            self.assertIn("is not `host slots=N`: localhost many",
                          horovodrun("-np", "2", "--hostfile", file.name, "true").stderr)
        ended = horovodrun("-np", "2", "--min-np", "1", "--max-np", "3", "--", *show)
        self.assertIn("of -np, 127.0.0.1", ended.stdout)

    def test_other_hosts_get_the_environment(self):
        with tempfile.TemporaryDirectory() as folder:
            # Another host, where nothing of this one's environment is.
            with open(os.path.join(folder, "ssh"), "w", encoding="ascii") as file:
                file.write('#!/bin/sh\nfor line; do :; done\nexec env -i sh -c "$line"\n')
            os.chmod(file.name, 0o755)
            ended = horovodrun(
                "-np", "1", "-H", "far:1", "sh", "-c", 'echo "$CUDA_VISIBLE_DEVICES,$DATA,$TERM"',
                PATH=f"{folder}:{os.environ['PATH']}", CUDA_VISIBLE_DEVICES="2", DATA="it's\nhere",
                TERM="mine")
        self.assertEqual(ended.stdout, "[0] 2,it's\n[0] here,\n", ended.stderr)

    def test_an_elastic_worker_may_start_ranks(self):
        self.assertEqual(
            tutti.run(total, args=(1,), num_proc=2,
                      env={"TUTTI_ELASTIC_ADDR": "127.0.0.1:1", "TUTTI_ELASTIC_WORKER": "3",
                           "HOROVOD_ELASTIC": "1", "HOROVOD_RANK": "5", "HOROVOD_SIZE": "6"}),
            [(0, 2, 3), (1, 2, 3)])

    def test_settings(self):
        wanted = {
            "--fusion-threshold-mb 32": "HOROVOD_FUSION_THRESHOLD=33554432",
            "--cycle-time-ms 3.5": "HOROVOD_CYCLE_TIME=3.5",
            "--cache-capacity 0": "HOROVOD_CACHE_CAPACITY=0",
            "--timeline-filename /tmp/t.json": "HOROVOD_TIMELINE=/tmp/t.json",
            "--timeline-mark-cycles": "HOROVOD_TIMELINE_MARK_CYCLES=1",
            "--no-autotune": "HOROVOD_AUTOTUNE=0",
            "--autotune-log-file log": "HOROVOD_AUTOTUNE_LOG=log",
            "--hierarchical-allreduce": "HOROVOD_HIERARCHICAL_ALLREDUCE=1",
            "--no-stall-check": "HOROVOD_STALL_CHECK_DISABLE=1",
            "--stall-check-warning-time-seconds 9": "HOROVOD_STALL_CHECK_TIME_SECONDS=9",
            "--start-timeout 30": "TUTTI_INIT_TIMEOUT_S=30",
            "--network-interfaces lo": "NCCL_SOCKET_IFNAME=lo",
            "--log-level DEBUG": "NCCL_DEBUG=INFO",
        }
        words = [word for option in wanted for word in option.split()]
        ended = horovodrun("-np", "1", "--verbose", *words, "env")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        for variable in wanted.values():
            self.assertIn(f"[0] {variable}\n", ended.stdout)
        self.assertIn("tutti run -n 1 --tag -- env", ended.stderr)
        self.assertIn("HOROVOD_AUTOTUNE=1", horovodrun("-np", "1", "--autotune", "env").stdout)

    def test_refusals(self):
        for sentence, arguments in (
                ("not allowed with argument", ["-np", "2", "--mpi", "--gloo", "true"]),
                ("no mpirun is started", ["-np", "2", "--mpi-args=-x A", "true"]),
                ("not elastic", ["-np", "2", "--mpi", "--min-np", "1", "true"]),
                ("say how many ranks", ["true"]),
                ("say which program", ["-np", "2"]),
                ("no configuration files", ["-np", "2", "--config-file", "x.yaml", "true"]),
                ("invalid int value", ["-np", "two", "true"]),
                ("not allowed with argument", ["-np", "1", "-H", "a", "--hostfile", "b", "true"])):
            ended = horovodrun(*arguments)
            self.assertEqual(ended.returncode, 2, arguments)
            self.assertIn(sentence, ended.stderr)

    def test_what_there_is(self):
        ended = horovodrun("--check-build")
        self.assertIn("[X] Tutti", ended.stdout)
        tensorflow = "X" if importlib.util.find_spec("tensorflow") else " "
        self.assertIn(f"[{tensorflow}] TensorFlow", ended.stdout)
        self.assertEqual(ended.stdout.count(f"[{'X' if hvd.gloo_built() else ' '}] Gloo"), 2)
        self.assertIn(f"[{'X' if _features.has_ccl() else ' '}] CCL", ended.stdout)
        self.assertIn("[ ] DDL (IBM ended it", ended.stdout)
        self.assertEqual(horovodrun("--version").stdout, "0.28.1\n")

    @unittest.skipUnless(hvd.mpi_built() and shutil.which("mpirun"), "needs mpirun and a plugin")
    def test_ranks_of_mpi(self):
        ended = horovodrun("-np", "2", "--mpi", f"--mpi-args={MADE}", "--cycle-time-ms", "3",
                           "sh", "-c", "echo $HOROVOD_CONTROLLER $HOROVOD_CYCLE_TIME $MADE")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertEqual(ended.stdout.count("mpi 3.0 here"), 2, ended.stdout)


class HorovodsNames(unittest.TestCase):
    def test_what_is_built(self):
        for operations, wanted in (("", False), ("mpi,ccl", False), ("ccl", _features.has_ccl())):
            with unittest.mock.patch.dict(os.environ, HOROVOD_CPU_OPERATIONS=operations):
                self.assertEqual(hvd.ccl_built(), wanted)

    def test_numbers_in_the_environment(self):
        names = [f"HOROVOD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE",
                                                "CROSS_RANK", "CROSS_SIZE")]
        self.assertEqual(tutti.run(seen, names, num_proc=2),
                         [[str(rank), "2", str(rank), "2", "0", "1"] for rank in range(2)])
        self.assertEqual(tutti.run(seen_in_an_elastic_job, names, num_proc=2, min_num_proc=2),
                         [[str(rank), "2", str(rank), "2", "0", "1"] for rank in range(2)])

    def test_helpers_of_tests(self):
        from horovod.common.util import _cache
        from horovod.runner.util.threads import in_thread
        calls = []
        once = _cache(lambda: calls.append(1) or len(calls))
        self.assertEqual([once(), once()], [1, 1])
        in_thread(calls.append, (2,)).join(60)
        in_thread(lambda: 1 / 0, silent=True).join(60)
        self.assertEqual(calls, [1, 2])
        with self.assertRaisesRegex(ValueError, "must be a tuple"):
            in_thread(calls.append, 2)

    def test_common(self):
        from horovod.common.basics import HorovodBasics
        from horovod.common.elastic import ObjectState, State, run_fn
        from horovod.common.exceptions import HorovodInternalError
        from horovod.common.process_sets import ProcessSet, global_process_set
        from horovod.common.util import (check_extension, extension_available, gpu_available,
                                         num_rank_is_power_2, split_list)
        self.assertIs(HorovodInternalError, tutti.HorovodInternalError)
        self.assertIs(ProcessSet, tutti.ProcessSet)
        self.assertIs(global_process_set, tutti.global_process_set)
        self.assertTrue(issubclass(ObjectState, State))
        self.assertTrue(callable(run_fn(lambda state: None, None)))
        self.assertFalse(HorovodBasics("tutti", "mpi_lib").is_initialized())
        self.assertTrue(extension_available("numpy"))
        self.assertFalse(extension_available("tensorflow"))
        self.assertFalse(gpu_available("tensorflow"))
        with self.assertRaises(ImportError):
            check_extension("horovod.tensorflow")
        self.assertEqual([n for n in range(10) if num_rank_is_power_2(n)], [1, 2, 4, 8])
        self.assertEqual(split_list([1, 2, 3, 4, 5], 3), [[1, 2], [3, 4], [5]])
        basics = HorovodBasics("tutti", "mpi_lib")
        self.assertEqual((basics.Average, basics.Sum, basics.Adasum, basics.Min, basics.Max,
                          basics.Product), (0, 1, 2, 3, 4, 5))

    def test_common_helpers(self):
        import horovod
        from horovod.common.exceptions import HorovodVersionMismatchError
        from horovod.common.util import (check_installed_version, env,
                                         get_average_backwards_compatibility_fun, is_iterable)
        self.assertEqual(horovod.__version__, "0.28.1")
        with env(TUTTI_TEST_A="1", TUTTI_TEST_B=None, PATH="x"):
            self.assertEqual((os.environ["TUTTI_TEST_A"], os.environ["PATH"]), ("1", "x"))
            self.assertNotIn("TUTTI_TEST_B", os.environ)
        self.assertNotIn("TUTTI_TEST_A", os.environ)
        self.assertNotEqual(os.environ["PATH"], "x")
        choose = get_average_backwards_compatibility_fun(hvd)
        self.assertEqual((choose(None, None), choose(hvd.Max, None)), (hvd.Average, hvd.Max))
        with self.assertWarns(DeprecationWarning):
            self.assertEqual(choose(None, False), hvd.Sum)
        with self.assertRaises(ValueError):
            choose(hvd.Sum, True)
        check_installed_version("numpy", np.__version__)
        with self.assertWarnsRegex(UserWarning, "numpy is expected in version 0.1"):
            check_installed_version("numpy", "0.1")
        with self.assertRaises(HorovodVersionMismatchError) as caught:
            check_installed_version("numpy", "0.1", ImportError("as if"))
        self.assertEqual(caught.exception.installed_version, np.__version__)
        self.assertEqual([is_iterable(value) for value in ([], "a", 5)], [True, True, False])


if __name__ == "__main__":
    unittest.main()
