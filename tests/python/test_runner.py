"""tutti.run, the `tutti` command of the package, and the names by which Horovod's scripts know them;
starts the ranks itself."""

import os
import subprocess
import sys
import unittest

import numpy as np

import tutti
import tutti.numpy as hvd


def total(first, second=0):
    hvd.init()
    got = hvd.allreduce(np.array([first + second + hvd.rank()]), op=hvd.Sum)
    return hvd.rank(), hvd.size(), int(got[0])


def fails():
    hvd.init()
    if hvd.rank() == 1:
        raise KeyError("of rank 1")
    hvd.barrier()


class Run(unittest.TestCase):
    def test_results_come_by_rank(self):
        self.assertEqual(tutti.run(total, args=(10,), kwargs={"second": 5}, np=2),
                         [(0, 2, 31), (1, 2, 31)])

    def test_a_rank_that_fails(self):
        with self.assertRaisesRegex(RuntimeError, "a rank failed"):
            tutti.run(fails, np=2)

    def test_other_hosts(self):
        with self.assertRaisesRegex(ValueError, "ranks of this machine only, not of other:2"):
            tutti.run(total, args=(1,), np=2, hosts="localhost:2,other:2")
        self.assertEqual(len(tutti.run(total, args=(1,), np=1, hosts="localhost:1", verbose=2)), 1)

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
        ended = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=60,
                               check=False)
        self.assertEqual((ended.returncode, ended.stdout), (0, "[0, 1]\n"), ended.stderr)


class Command(unittest.TestCase):
    def test_python_m_tutti(self):
        ended = subprocess.run([sys.executable, "-m", "tutti", "run", "-n", "2", "true"], timeout=60,
                               check=False)
        self.assertEqual(ended.returncode, 0)

    def test_without_a_program(self):
        ended = subprocess.run(
            [sys.executable, "-m", "tutti", "run"], capture_output=True, text=True, timeout=60,
            env=dict({k: v for k, v in os.environ.items() if k != "TUTTI_PROGRAM"}, PATH=""),
            check=False)
        self.assertEqual(ended.returncode, 1)
        self.assertIn("there is no `tutti` program", ended.stderr)


class HorovodsNames(unittest.TestCase):
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
