"""The wheel, as users have it: built, audited, installed into fresh environments, used, taken away.

python3 wheel_test.py BUILD [TESTS...]   where BUILD is a build directory and BUILD/tests/library/foreign
has a library of NCCL's name that is not Tutti's. wheel_torch_test.py has the tests with PyTorch.
"""

import filecmp
import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

import environments
from environments import Environment, clean_environment, run

BUILD = os.path.abspath(sys.argv.pop(1)) if len(sys.argv) > 1 else ""
FOREIGN = os.path.join(BUILD, "tests", "library", "foreign", "libnccl.so.2")
INSTALL = os.path.join(environments.ROOT, "tests", "install")  # programs that use the library

LOADED = "import _tutti_nccl; print(*_tutti_nccl.loaded())"
# What a program does that knows the library by name only.
BY_NAME = ("import ctypes, os\n"
           "library = ctypes.CDLL('libnccl.so.2')\n"
           "print('Tutti' if hasattr(library, 'tuttiGetVersion') else 'another')")
RANK = """
import sys
from tutti import _basics
_basics.init()
_basics.job().barrier()
sys.stdout.write(f"rank {_basics.job().rank()} of {_basics.job().size()}\\n")
"""


def setUpModule():
    global wheel, folder, environment
    folder = tempfile.mkdtemp(prefix="tutti-wheel-test-")
    unittest.addModuleCleanup(shutil.rmtree, folder, ignore_errors=True)
    wheel = environments.build_wheel(BUILD, folder, "none")
    environment = Environment()
    unittest.addModuleCleanup(environment.remove)
    environment.install(wheel)


def which(*arguments, **variables):
    """What `tutti which` says, as a dictionary."""
    said = run([environment.program("tutti"), "which", "--json", *arguments], check=False,
               env=clean_environment(**variables))
    report = json.loads(said.stdout)
    if said.returncode != (0 if "kind" in report else 1):
        raise AssertionError(f"it ends with {said.returncode}: {report}")
    return report


def tutti(*arguments, check=True, **variables):
    return run([environment.program("tutti"), *arguments], check=check, env=clean_environment(**variables))


def in_package(*parts):
    return os.path.join(environment.site, "tutti", *parts)


class Wheel(unittest.TestCase):
    def test_is_what_its_name_promises(self):
        self.assertRegex(os.path.basename(wheel), r"^tutti_collectives-[0-9.]+-py3-none-manylinux_2_")

    def test_has_the_sources_of_the_backend_in_cpp(self):
        sources = os.path.join(environments.ROOT, "python", "tutti", "torch", "_c10d")
        names = sorted(os.listdir(sources))
        self.assertIn("backend.cc", names)
        self.assertEqual(filecmp.cmpfiles(sources, in_package("torch", "_c10d"), names, shallow=False),
                         (names, [], []))

    def test_is_the_same_when_built_again(self):
        again = tempfile.mkdtemp(dir=folder)
        run([sys.executable, "-B", os.path.join(environments.ROOT, "python", "build_backend.py"), again],
            env=clean_environment(TUTTI_PREFIX=os.path.join(folder, "prefix")))
        with open(wheel, "rb") as one, open(glob.glob(again + "/*.whl")[0], "rb") as other:
            self.assertEqual(one.read(), other.read())

    def test_works_with_every_python_here_and_leaves_nothing(self):
        for python in environments.pythons():
            with self.subTest(python=python):
                fresh = Environment(python)
                self.addCleanup(fresh.remove)
                fresh.install(wheel)
                # PATH is empty: no compiler, no program of the system.
                said = run([fresh.program("tutti"), "run", "-n", "2", fresh.python, "-c", RANK],
                           env=clean_environment(PATH=""))
                self.assertEqual(sorted(said.stdout.splitlines()), ["rank 0 of 2", "rank 1 of 2"])
                fresh.run_code("import tutti; tutti.Communicator", "-W", "error")
                fresh.pip("uninstall", "--yes", "tutti-collectives")
                self.assertEqual(glob.glob(fresh.site + "/*"), [])

    def test_programs_are_built_against_it(self):
        if not shutil.which("cc") or not shutil.which("pkg-config"):
            self.skipTest("there is no C compiler")
        source = os.path.join(INSTALL, "sum.c")
        packages = clean_environment(PKG_CONFIG_PATH=tutti("prefix", "pkgconfig").stdout.strip())
        for package in ("tutti", "nccl"):
            flags = run(["pkg-config", "--cflags", "--libs", package], env=packages).stdout.split()
            program = os.path.join(folder, "sum_" + package)
            run(["cc", "-std=c99", source, *flags, "-o", program])
            run([program], env=clean_environment(LD_LIBRARY_PATH=in_package("lib"), TUTTI_BACKEND="host"))

    def test_cmake_finds_it(self):
        consumer = os.path.join(folder, "consumer")
        shutil.copytree(os.path.join(INSTALL, "consumer"), consumer)
        shutil.copy(os.path.join(INSTALL, "sum.c"), consumer)
        cmake = os.environ.get("CMAKE", "cmake")
        prefix = tutti("prefix").stdout.strip()
        run([cmake, "-S", consumer, "-B", consumer + "/build", f"-DCMAKE_PREFIX_PATH={prefix}"])
        run([cmake, "--build", consumer + "/build"])
        for name in ("sum_tutti", "sum_nccl"):
            run([os.path.join(consumer, "build", name)], env=clean_environment(TUTTI_BACKEND="host"))


class StartUpFile(unittest.TestCase):
    def setUp(self):
        self.addCleanup(tutti, "disable", "nccl")

    def test_does_nothing_unasked(self):
        said = environment.run_code(
            "import sys; print('ctypes' in sys.modules, 'tutti' in sys.modules);" + LOADED)
        self.assertEqual((said.stdout, said.stderr), ("False False\n\n", ""))
        said = environment.run_code(LOADED, TUTTI_NCCL="0")
        self.assertEqual((said.stdout, said.stderr), ("\n", ""))

    def test_has_programs_get_tutti_by_name(self):
        said = environment.run_code(LOADED + "\n" + BY_NAME, TUTTI_NCCL="1")
        self.assertEqual(said.stdout.splitlines()[1], "Tutti")
        self.assertIn(environment.site, said.stdout)
        self.assertEqual(said.stderr, "")

    def test_wins_against_a_library_that_is_loaded_by_path_later(self):
        code = f"import ctypes; ctypes.CDLL({FOREIGN!r})\n{BY_NAME}"
        self.assertEqual(environment.run_code(code, TUTTI_NCCL="1").stdout, "Tutti\n")
        self.assertEqual(environment.run_code(code).stdout, "another\n")

    def test_is_switched_for_the_whole_environment(self):
        self.assertIn("from now on", tutti("enable", "nccl").stdout)
        self.assertEqual(environment.run_code(BY_NAME).stdout, "Tutti\n")
        self.assertEqual(environment.run_code(LOADED, TUTTI_NCCL="0").stdout, "\n")
        self.assertIn("`tutti enable nccl`", which()["why"])
        tutti("disable", "nccl")
        self.assertEqual(environment.run_code(LOADED).stdout, "\n")

    def test_cannot_be_switched_where_no_python_reads_it(self):
        copy = tempfile.mkdtemp(dir=folder)
        for name in os.listdir(environment.site):
            if "tutti" in name and not name.endswith(".dist-info"):
                os.symlink(os.path.join(environment.site, name), os.path.join(copy, name))
        said = run([sys.executable, "-I", "-c", "import sys; sys.path.insert(0, sys.argv.pop(1))\n"
                    "from tutti._program import main; main()", copy, "enable", "nccl"], check=False)
        self.assertEqual((said.returncode, said.stdout), (1, ""))
        self.assertRegex(said.stderr, "^tutti: this has no effect, .*\n$")
        self.assertEqual(environment.run_code(LOADED).stdout, "\n")

    def test_reaches_children(self):
        code = ("import multiprocessing, sys, _tutti_nccl\n"
                "if __name__ == '__main__':\n"
                "  for method in ('fork', 'spawn', 'forkserver'):\n"
                "    with multiprocessing.get_context(method).Pool(1) as pool:\n"
                "      print(method, len(pool.apply(_tutti_nccl.loaded)))\n")
        said = environment.run_code(code, TUTTI_NCCL="1")
        self.assertEqual(said.stdout.splitlines(), ["fork 1", "spawn 1", "forkserver 1"])

    def test_leaves_a_library_that_is_there_first(self):
        said = environment.run_code(BY_NAME, TUTTI_NCCL="1", LD_PRELOAD=FOREIGN)
        self.assertEqual(said.stdout, "another\n")
        self.assertRegex(said.stderr, f"^tutti: {FOREIGN} is loaded already, .*LD_PRELOAD.*\n$")
        self.assertEqual(which(TUTTI_NCCL="1", LD_PRELOAD=FOREIGN)["why"], "LD_PRELOAD")

    def test_says_one_sentence_where_the_library_is_broken(self):
        path = in_package("lib", "tutti", "overlay", "nvidia", "nccl", "lib", "libnccl.so.2")
        os.rename(path, path + ".kept")
        self.addCleanup(os.replace, path + ".kept", path)
        missing = environment.run_code("print('runs')", TUTTI_NCCL="1")
        self.assertEqual(missing.stdout, "runs\n")
        self.assertRegex(missing.stderr, "^tutti: TUTTI_NCCL is set, but there is no libnccl.so.2 .*\n$")
        with open(path, "w", encoding="utf-8") as file:
            file.write("no library")
        broken = environment.run_code("print('runs')", TUTTI_NCCL="1")
        self.assertEqual(broken.stdout, "runs\n")
        self.assertRegex(broken.stderr, "^tutti: Tutti does not take NCCL's place: .*too short.*\n$")
        self.expect_not_switched("tutti: Tutti's libnccl.so.2 cannot be loaded: .*too short; install .*")

    def test_is_not_switched_on_for_another_library(self):
        path = in_package("lib", "tutti", "overlay", "nvidia", "nccl", "lib", "libnccl.so.2")
        os.rename(path, path + ".kept")
        self.addCleanup(os.replace, path + ".kept", path)
        self.expect_not_switched(".* no libnccl.so.2 in tutti/overlay; install .*")
        shutil.copy(FOREIGN, path)
        self.expect_not_switched("tutti: .*libnccl.so.2 is not Tutti's; install .*")

    def expect_not_switched(self, sentence):
        said = tutti("enable", "nccl", check=False)
        self.assertEqual((said.returncode, said.stdout), (1, ""))
        self.assertRegex(said.stderr, f"^{sentence}\n$")
        self.assertEqual(environment.run_code(LOADED).stdout, "\n")

    def test_raises_nothing_without_standard_error(self):
        said = run(["sh", "-c", 'exec "$0" -c "print(1)" 2>&-', environment.python],
                   env=clean_environment(TUTTI_NCCL="1", LD_PRELOAD=FOREIGN))
        self.assertEqual(said.stdout, "1\n")

    def test_is_not_read_by_a_python_without_start_up_files(self):
        said = environment.run_code(BY_NAME, "-S", check=False, TUTTI_NCCL="1")
        self.assertNotEqual(said.returncode, 0)
        self.assertIn("libnccl.so.2: cannot open", said.stderr)
        report = which(environment.python, "-S", TUTTI_NCCL="1")
        self.assertIn("runs no start-up files (-S)", report["notes"][0])
        # Isolated from variables of Python, of which this is none.
        self.assertEqual(environment.run_code(BY_NAME, "-I", TUTTI_NCCL="1").stdout, "Tutti\n")

    def test_read_only_packages(self):
        script = ('mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && shift && '
                  'export PYTHONDONTWRITEBYTECODE=1 && exec "$@"')
        command = ["unshare", "--mount", *(() if os.getuid() == 0 else ("--map-root-user",)), "sh", "-c",
                   script, "sh", environment.folder]
        if run([*command, "true"], check=False).returncode != 0:
            self.skipTest("this process may not mount")
        said = run([*command, environment.program("tutti"), "enable", "nccl"], check=False)
        self.assertEqual(said.returncode, 1)
        self.assertRegex(said.stderr, "^tutti: .*cannot be written.*; set TUTTI_NCCL=1 in the environment.*\n$")
        said = run([*command, environment.python, "-c", BY_NAME], env=clean_environment(TUTTI_NCCL="1"))
        self.assertEqual(said.stdout, "Tutti\n")


class OtherWays(unittest.TestCase):
    def test_overlay(self):
        overlay = tutti("overlay").stdout.strip()
        code = ("import nvidia.nccl, importlib.util\n"
                "print(nvidia.nccl.__path__[0])\n"
                "print(importlib.util.find_spec('nvidia.other') is not None)\n")
        # NVIDIA's other packages beside it, with and without an __init__.py.
        for files in (("other",), ("other", "nccl", "__init__.py", "nccl/__init__.py")):
            with tempfile.TemporaryDirectory() as packages:
                for file in files:
                    path = os.path.join(packages, "nvidia", file)
                    if file.endswith(".py"):
                        open(path, "w", encoding="utf-8").close()
                    else:
                        os.makedirs(path)
                said = environment.run_code(code, PYTHONPATH=overlay + os.pathsep + packages)
                self.assertEqual(said.stdout.splitlines(),
                                 [os.path.join(overlay, "nvidia", "nccl"), "True"])
        report = which(PYTHONPATH=overlay)
        self.assertTrue(report["package"].startswith(overlay))
        for name in ("include/nccl.h", "lib/libnccl.so.2"):
            self.assertTrue(os.path.exists(os.path.join(overlay, "nvidia", "nccl", name)), name)

    def test_env_is_for_a_shell(self):
        script = f'eval "$("{environment.program("tutti")}" env --audit)" && env'
        said = run(["sh", "-c", script], env=clean_environment(PYTHONPATH="/with space"))
        found = dict(line.split("=", 1) for line in said.stdout.splitlines() if "=" in line)
        for name in ("VLLM_NCCL_SO_PATH", "SGLANG_NCCL_SO_PATH", "MSCCLPP_NCCL_LIB_PATH", "LD_AUDIT"):
            self.assertTrue(os.path.exists(found[name]), name)
        for name in ("NCCL_HOME", "EP_NCCL_ROOT_DIR"):
            self.assertTrue(os.path.exists(os.path.join(found[name], "include", "nccl.h")), name)
        self.assertEqual(found["TUTTI_NCCL"], "1")
        self.assertRegex(found["PYTHONPATH"], "/overlay:/with space$")
        self.assertEqual(tutti("env", PYTHONPATH=found["PYTHONPATH"]).stdout.count("overlay:"), 1)

    def test_audit_library_serves_other_programs(self):
        program = os.path.join(BUILD, "tests", "library", "library_version_foreign")
        audit = tutti("audit").stdout.strip()
        self.assertNotEqual(run([program], check=False).returncode, 0)
        run([program], env=clean_environment(LD_AUDIT=audit))
        run(["sh", "-c", program], env=clean_environment(LD_AUDIT=audit))
        off = run([program], check=False, env=clean_environment(LD_AUDIT=audit, TUTTI_NCCL="0"))
        self.assertNotEqual(off.returncode, 0)
        report = which(program, LD_AUDIT=audit)
        self.assertIn(environment.site, report["library"])
        self.assertIn("LD_AUDIT", report["why"])

    def test_wheel_under_nvidias_name(self):
        made = os.path.join(folder, "index")
        said = tutti("wheel", "--as-nccl", "--cuda", "13", "--nccl-version", "2.30.7", "--output", made)
        self.assertRegex(said.stdout, r"nvidia_nccl_cu13-2\.30\.7\+tutti[0-9.]+-py3-none-manylinux_2_\d+_\w+\.whl")
        other = Environment()
        self.addCleanup(other.remove)
        other.pip("install", "--no-index", "--find-links", made, "nvidia-nccl-cu13==2.30.7")
        code = ("import ctypes, nvidia.nccl\n"
                "library = ctypes.CDLL(nvidia.nccl.__path__[0] + '/lib/libnccl.so.2')\n"
                "print(hasattr(library, 'tuttiGetVersion'))")
        self.assertEqual(other.run_code(code).stdout, "True\n")
        wrong = tutti("wheel", "--as-nccl", "--nccl-version", "new", check=False)
        self.assertEqual(wrong.stderr, "tutti: new is no version; it would be one like 2.30.7\n")
        nowhere = tutti("wheel", "--as-nccl", "--output", "/proc/none", check=False)
        self.assertRegex(nowhere.stderr, "^tutti: .*'/proc/none'\n$")


class Which(unittest.TestCase):
    def script(self, text):
        path = os.path.join(folder, "script")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, 0o755)
        return path

    def test_a_python(self):
        self.assertIn("no libnccl.so.2 that programs would find", which()["error"])
        self.assertIn("`tutti enable nccl`, would have it find", which()["notes"][0])
        report = which(environment.python, LD_LIBRARY_PATH=in_package("lib"))
        self.assertEqual(report["library"], in_package("lib", "libnccl.so.2"))
        self.assertEqual(report["why"], "LD_LIBRARY_PATH")
        self.assertRegex(report["tutti"], r"^\d+\.\d+\.\d+$")
        report = which(TUTTI_NCCL="1")
        self.assertIn("by TUTTI_NCCL", report["why"])
        report = which(LD_LIBRARY_PATH=os.path.dirname(FOREIGN))
        self.assertEqual((report["library"], report["tutti"]), (os.path.realpath(FOREIGN), None))
        text = tutti("which", TUTTI_NCCL="1").stdout
        self.assertRegex(text, r"by name   /.*libnccl.so.2, Tutti \d+\.\d+\.\d+ \(NCCL \d+\.\d+\.\d+\)\n +because of: ")

    def test_a_script_of_python(self):
        report = which(environment.program("tutti"), TUTTI_NCCL="1")
        self.assertIn("by TUTTI_NCCL", report["why"])
        # As pip writes them where the path of the Python is too long for a first line.
        script = self.script(f"""#!/bin/sh\n'''exec' "{environment.python}" "$0" "$@"\n' '''\n""")
        self.assertIn("by TUTTI_NCCL", which(script, TUTTI_NCCL="1")["why"])

    def test_a_program(self):
        program = os.path.join(BUILD, "tests", "library", "library_version_nccl")
        report = which(program)
        self.assertRegex(report["why"], "RUNPATH|RPATH")
        self.assertTrue(report["library"].startswith(BUILD))
        report = which(program, LD_PRELOAD=FOREIGN)
        self.assertEqual(report["library"], os.path.realpath(FOREIGN))

    def test_what_asks_for_none(self):
        self.assertIn("asks for no libnccl.so.2 at its start", which("/bin/sh")["error"])
        self.assertIn("there is no such program", which("/no/such/program")["error"])
        script = self.script("#!/bin/sh\n")
        self.assertIn("it is a script of /bin/sh", which(script)["error"])
        os.chmod(script, 0o644)
        self.assertIn("it is not executable", which(script)["error"])
        os.rename(self.script("no program"), os.path.join(folder, "python3.99"))
        self.assertIn("it cannot be read or started", which(os.path.join(folder, "python3.99"))["error"])

    def test_what_cannot_be_asked_is_not_run(self):
        """Of programs that glibc's loader does not start, nothing is asked: they would run instead."""
        if not shutil.which("cc"):
            self.skipTest("there is no C compiler")
        source, program, trace = (os.path.join(folder, name) for name in ("trace.c", "trace", "ran"))
        with open(source, "w", encoding="utf-8") as file:
            file.write(f'#include <stdio.h>\nint main(void) {{ return !fopen("{trace}", "w"); }}\n')
        for option, said in (("-static", "linked statically"), ("-shared", "it is a library"),
                             ("-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1", "not that of glibc")):
            with self.subTest(option=option):
                run(["cc", "-fPIC", source, option, "-o", program])
                self.assertIn(said, which(program)["error"])
                self.assertFalse(os.path.exists(trace))


class Faults(unittest.TestCase):
    def test_three_copies_in_one_process(self):
        """The wheel's, one that is preloaded, and one that the loader finds: each works by itself."""
        system = os.path.join(BUILD, "src")
        said = run([environment.program("tutti"), "run", "-n", "2", environment.python, "-c",
                    RANK + BY_NAME],
                   env=clean_environment(TUTTI_NCCL="1", LD_LIBRARY_PATH=system,
                                         LD_PRELOAD=os.path.join(system, "libnccl.so.2")))
        self.assertEqual(said.stdout.count("of 2"), 2)
        self.assertEqual(said.stdout.count("Tutti"), 2)

    def test_beside_another_nccl(self):
        said = run([environment.program("tutti"), "run", "-n", "2", environment.python, "-c",
                    f"import ctypes; ctypes.CDLL({FOREIGN!r}, ctypes.RTLD_GLOBAL)\n" + RANK])
        self.assertEqual(said.stdout.count("of 2"), 2)

    def test_without_torch_or_numpy(self):
        for package in ("numpy", "torch"):
            said = environment.run_code(f"import tutti, tutti.{package}", check=False)
            self.assertRegex(said.stderr, f"No module named '{package}'")

    def test_without_shared_memory_folder(self):
        script = 'mount -t tmpfs -o ro none /dev/shm && exec "$@"'
        command = ["unshare", "--mount", *(() if os.getuid() == 0 else ("--map-root-user",)), "sh", "-c",
                   script, "sh"]
        if not os.path.isdir("/dev/shm") or run([*command, "true"], check=False).returncode != 0:
            self.skipTest("this process may not mount")
        said = run([*command, environment.program("tutti"), "run", "-n", "2", environment.python, "-c", RANK])
        self.assertEqual(said.stdout.count("of 2"), 2)

    def test_without_a_library(self):
        bare = Environment()
        self.addCleanup(bare.remove)
        made = os.path.join(folder, "without")
        run([sys.executable, "-B", os.path.join(environments.ROOT, "python", "build_backend.py"), made],
            env=clean_environment(TUTTI_LIBRARY=""))
        (alone,) = glob.glob(made + "/*-py3-none-any.whl")
        bare.install(alone)
        said = run([bare.program("tutti"), "overlay"], check=False)
        if said.returncode == 0:
            self.skipTest("a library of the system was found")
        self.assertRegex(said.stderr, "^tutti: this package has no libnccl.so.2, .*; install the wheel.*\n$")


if __name__ == "__main__":
    environments.skip_without_a_wheel(BUILD)
    unittest.main(verbosity=2)
