"""Environments of Python for tests of the wheel: made without a network, and without pip inside."""

import glob
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile

import needs

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, os.pardir))

# Whatever would lead a program to another library or package.
MISLEADING = ("PYTHONPATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "LD_AUDIT", "NCCL_HOME")


def clean_environment(**variables):
    """Returns this process's environment without what misleads, and with these variables."""
    result = {name: value for name, value in os.environ.items()
              if name not in MISLEADING and not name.startswith("TUTTI_")}
    return {**result, **{name: str(value) for name, value in variables.items()}}


def run(command, check=True, **options):
    """Runs a command; where it fails, what it said is the error."""
    options = {"env": clean_environment(), "timeout": 600, **options}
    ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                         stdin=subprocess.DEVNULL, **options)
    if check and ran.returncode != 0:
        raise AssertionError(f"{' '.join(command)} ends with {ran.returncode}:\n{ran.stdout}\n{ran.stderr}")
    return ran


def skip_without_a_wheel(build):
    """Ends the process, with a word, where the build directory or this Python makes no wheel."""
    if not os.path.exists(os.path.join(build, "wheel", "lib", "libtutti.so.0")):
        print("skipped: this build has no library for a wheel")
        sys.exit(needs.SKIPPED)
    if subprocess.run([sys.executable, "-c", "import pip, venv"], stderr=subprocess.DEVNULL,
                      check=False).returncode != 0:
        print("skipped: this Python has no pip or no venv")
        sys.exit(needs.SKIPPED)


def build_wheel(build, folder, *torches):
    """Builds and audits the wheel of a build directory, and returns its path. `torches` are those of
    tools/build_wheel."""
    run([os.path.join(ROOT, "tools", "build_wheel"), build, folder, *torches])
    (path,) = glob.glob(os.path.join(folder, "tutti_collectives-*.whl"))
    return path


def pythons():
    """Returns an interpreter of each version of Python from 3.9 on that is on this machine, and that
    this Python's pip can install for: before 23.2, such as Debian's, it fails with 3.12."""
    pip = run([sys.executable, "-c", "import pip; print(pip.__version__)"]).stdout.split(".")
    after_last = (3, 12) if tuple(map(int, pip[:2])) < (23, 2) else (4,)
    named = [sys.executable, "/usr/bin/python3", *(f"python3.{minor}" for minor in range(9, 16)),
             *glob.glob(os.path.expanduser("~/.pyenv/versions/3.*/bin/python3"))]
    found = {}
    for name in named:
        path = shutil.which(name)
        if path is None:
            continue
        asked = run([path, "-c", "import sys, venv; print(*sys.version_info[:2])"], check=False)
        version = tuple(map(int, asked.stdout.split())) if asked.returncode == 0 else ()
        if (3, 9) <= version < after_last:
            found.setdefault(version, path)
    return [found[version] for version in sorted(found)]


class Environment:
    """A virtual environment in a folder of its own, or a given one, which remove() takes away."""

    def __init__(self, python=sys.executable, folder=None):
        self.folder = os.path.abspath(folder) if folder else tempfile.mkdtemp(prefix="tutti-env-")
        run([python, "-m", "venv", "--without-pip", self.folder])
        self.python = os.path.join(self.folder, "bin", "python")
        self.site = run([self.python, "-c",
                         "import sysconfig; print(sysconfig.get_path('purelib'))"]).stdout.strip()

    def pip(self, *arguments, **options):
        return run([sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python",
                    self.python, *arguments],
                   env=clean_environment(PIP_ROOT_USER_ACTION="ignore"), **options)

    def install(self, *wheels):
        self.pip("install", "--no-index", "--no-deps", *wheels)

    def add_packages_of_this_python(self):
        """Lets it see what is installed for the Python that runs the tests, such as PyTorch."""
        folders = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"),
                   *(one for one in sys.path if one.endswith(("site-packages", "dist-packages")))}
        with open(os.path.join(self.site, "borrowed.pth"), "w", encoding="utf-8") as file:
            file.write("".join(f"{folder}\n" for folder in sorted(folders)))

    def program(self, name):
        return os.path.join(self.folder, "bin", name)

    def run_code(self, code, *options, check=True, **variables):
        return run([self.python, *options, "-c", code], check=check, env=clean_environment(**variables))

    def remove(self):
        shutil.rmtree(self.folder, ignore_errors=True)
