"""The wheel with PyTorch, as users have it: the backend of torch.distributed that is compiled in the
wheel, and the names by which PyTorch finds the backend.

python3 wheel_torch_test.py BUILD TORCH [TESTS...]   where BUILD is a build directory, and TORCH a folder
with a PyTorch (scripts/setup unpacks a PyTorch into build/torch)
"""

import glob
import os
import shutil
import sys
import tempfile
import unittest

import environments
from environments import Environment, clean_environment, run

sys.path.insert(0, os.path.join(environments.ROOT, "python"))
from tutti import _torch_compile  # noqa: E402

BUILD, NEW_TORCH = (os.path.abspath(sys.argv.pop(1)) for _ in range(2))
HAS_TORCH = os.path.isdir(NEW_TORCH)


def setUpModule():
    global wheel, folder
    folder = tempfile.mkdtemp(prefix="tutti-wheel-test-")
    unittest.addModuleCleanup(shutil.rmtree, folder, ignore_errors=True)
    wheel = environments.build_wheel(BUILD, folder, NEW_TORCH if HAS_TORCH else "none")


@unittest.skipUnless(HAS_TORCH, "there is no new PyTorch")
class WithTorch(unittest.TestCase):
    """An environment with the wheel and the new PyTorch."""

    def setUp(self):
        self.with_torch = Environment()
        self.addCleanup(self.with_torch.remove)
        self.with_torch.install(wheel)
        with open(os.path.join(self.with_torch.site, "new_torch.pth"), "w", encoding="utf-8") as file:
            file.write(NEW_TORCH + "\n")


class Names(WithTorch):
    def test_the_backend_needs_no_import(self):
        script = os.path.join(folder, "train.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write("import torch, sys\n"
                       "assert 'tutti.torch' not in sys.modules\n"
                       "torch.distributed.init_process_group('tutti')\n"
                       "one = torch.ones(3)\n"
                       "torch.distributed.monitored_barrier()\n"
                       "torch.distributed.all_reduce(one)\n"
                       "print('sum', one.tolist())\n"
                       "torch.distributed.destroy_process_group()\n")
        said = run([self.with_torch.python, "-m", "torch.distributed.run", "--standalone",
                    "--nproc_per_node", "2", script])
        self.assertEqual(said.stdout.count("sum [2.0, 2.0, 2.0]"), 2)

    def test_a_broken_package_does_not_break_torch(self):
        os.remove(os.path.join(self.with_torch.site, "tutti", "lib", "libtutti.so.0"))
        said = self.with_torch.run_code("import torch; print(torch.ones(1).item())", TUTTI_NCCL="1")
        self.assertEqual(said.stdout, "1.0\n")


# Makes the default group, and says which form of the backend it has, and how long that took: on the clock, and on
# processors, those of a compiler included.
FIRST_GROUP = """
import os, sys, time, torch
begun, times = time.monotonic(), sum(os.times()[:4])
torch.distributed.init_process_group("tutti")
seconds, used = time.monotonic() - begun, sum(os.times()[:4]) - times
one = torch.ones(3)
torch.distributed.all_reduce(one)
group = torch.distributed.group.WORLD
form = "python" if type(group).__name__ == "ProcessGroupTutti" else "cpp"
sys.stdout.write(f"{form} {seconds:.3f} {used:.3f} {one.tolist()}\\n")
torch.distributed.destroy_process_group()
"""


class CompiledBackend(WithTorch):
    """The backend of torch.distributed that is compiled in the wheel, without any compiler."""

    def setUp(self):
        super().setUp()
        self.kept = os.path.join(self.with_torch.folder, "kept")
        (self.path,) = glob.glob(os.path.join(self.with_torch.site, "tutti", "lib", "tutti", "torch", "*.so"))

    def first_group(self, script=FIRST_GROUP, **variables):
        """Returns what two ranks print, and what is said beside that. PATH has no compiler."""
        said = run([self.with_torch.program("tutti"), "run", "-n", "2", self.with_torch.python, "-c", script],
                   env=clean_environment(PATH="", TUTTI_CACHE_DIR=self.kept, **variables))
        return [line.split(maxsplit=3) for line in said.stdout.splitlines()], said.stderr

    def expect_python(self, sentence):
        """The refused file is not loaded, and the ranks take the backend in Python."""
        printed, said = self.first_group()
        self.assertEqual([form for form, *_ in printed], ["python"] * 2, said)
        self.assertRegex(said, sentence)
        self.assertRegex(said, r"there is no C\+\+ compiler; install one \(the package g\+\+ of Debian .*\), or "
                               r"PyTorch \d+\.\d+, for which this package has the backend compiled")

    def seal_as(self, name):
        """Gives the file the seal of a file of another name."""
        with open(self.path, "rb") as file:
            data = file.read()
        target = os.path.join(os.path.dirname(self.path), name)
        with open(self.path, "wb") as file:
            file.write(data[:data.rindex(_torch_compile._SEAL)])
        _torch_compile.keep(self.path, target)
        os.replace(target, self.path)

    def test_is_taken_within_two_seconds(self):
        printed, said = self.first_group()
        self.assertEqual([(form, values) for form, *_, values in printed], [("cpp", "[2.0, 2.0, 2.0]")] * 2, said)
        self.assertNotIn("compiles", said)
        self.assertFalse(os.path.exists(self.kept))  # Nothing was compiled, nor looked for.
        # On the clock a busy machine takes any time, and the first rank waits for the import of PyTorch in the last.
        for _, seconds, used, _ in printed:
            self.assertLess(float(used), 2)
            print(f"init_process_group took {seconds} s, and {used} s of a processor")

    def test_is_refused_where_it_was_compiled_for_another_pytorch(self):
        name = os.path.basename(self.path)
        version, _ = _torch_compile.version_and_abi(name)
        self.seal_as(name.replace(version, "2.3", 1))
        self.expect_python(f"{name} was compiled for PyTorch 2.3 as tutti_c10d-2.3-.*, not for PyTorch {version}")

    def test_is_refused_where_it_is_damaged(self):
        with open(self.path, "rb") as file:
            data = bytearray(file.read())
        for damaged in (data[:len(data) // 2], bytes([*data[:5000], data[5000] ^ 1, *data[5001:]]), b""):
            with self.subTest(bytes=len(damaged)):
                with open(self.path, "wb") as file:
                    file.write(damaged)
                self.expect_python(f"{os.path.basename(self.path)} is damaged")

    def test_is_found_by_name_without_the_search_of_the_import(self):
        """TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps PyTorch from asking packages for backends at its import. From
        2.14 on PyTorch asks at the first use of the name."""
        version, _ = _torch_compile.version_and_abi(os.path.basename(self.path))
        lazily = [int(part) for part in version.split(".")] >= [2, 14]
        script = FIRST_GROUP if lazily else "import tutti.torch.distributed\n" + FIRST_GROUP
        printed, said = self.first_group(script, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
        self.assertEqual([form for form, *_ in printed], ["cpp"] * 2, said)

    def test_is_not_taken_for_other_sources(self):
        with open(os.path.join(self.with_torch.site, "tutti", "torch", "_c10d", "work.cc"), "a", encoding="utf-8") as file:
            file.write("// Changed.\n")
        self.expect_python("the slower one in Python")


if __name__ == "__main__":
    environments.skip_without_a_wheel(BUILD)
    unittest.main(verbosity=2)
