# SPDX-License-Identifier: Apache-2.0
"""Puts a copy of libtutti into the package: TUTTI_LIBRARY, or what `make` built beside it; of the
plugins for MPI, Gloo and oneCCL that lie beside that, where libtutti looks for them; and of the
`tutti`
program: TUTTI_PROGRAM, or what was built or installed with that library. Without any the package is
made without, and looks for them when it is used."""

import atexit
import os
import shutil
import subprocess
import tempfile

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

PLUGINS = ("libtutti_openmpi.so", "libtutti_mpich.so", "libtutti_gloo.so", "libtutti_ccl.so")
HERE = os.path.dirname(os.path.abspath(__file__))


def library():
    """Returns the path of a libtutti that was built, or None."""
    named = os.environ.get("TUTTI_LIBRARY")
    if named:
        if not os.path.exists(named):
            raise SystemExit(f"setup: TUTTI_LIBRARY is {named}, and there is no such file")
        return named
    built = os.path.join(HERE, "..", "build", "release", "src", "libtutti.so.0")
    return built if os.path.exists(built) else None


def program(beside):
    """Returns the path of the `tutti` program of a library's build or installation, or None."""
    named = os.environ.get("TUTTI_PROGRAM")
    if named:
        if not os.path.exists(named):
            raise SystemExit(f"setup: TUTTI_PROGRAM is {named}, and there is no such file")
        return named
    folder = os.path.dirname(os.path.abspath(beside))
    for place in ("../tools/tutti", "../bin/tutti", "../../bin/tutti"):
        path = os.path.normpath(os.path.join(folder, place))
        if os.path.isfile(path):
            return path
    return None


class BuildWithLibrary(build_py):
    def run(self):
        super().run()
        source = library()
        if source is None:
            print("setup: no libtutti was built; the package will look for one when it is used")
            return
        self.pack(source, "lib", "libtutti.so.0")
        for plugin in PLUGINS:
            beside = os.path.join(os.path.dirname(os.path.abspath(source)), plugin)
            if os.path.exists(beside):
                self.pack(beside, "lib", plugin)
        launcher = program(source)
        if launcher is None:
            print("setup: no tutti program was built; the package will look for one on PATH")
            return
        os.chmod(self.pack(launcher, "bin", "tutti"), 0o755)

    def pack(self, source, folder, name):
        """Copies a file into a folder of the package and returns its new path."""
        target = os.path.join(self.build_lib, "tutti", folder, name)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copyfile(source, target)
        if shutil.which("strip"):
            subprocess.run(["strip", "--strip-debug", target], check=True)
        return target


class PlatformDistribution(Distribution):
    """A distribution without extension modules that is platform-specific where it carries the
    library."""

    def has_ext_modules(self):
        return library() is not None


commands = {"build_py": BuildWithLibrary}
try:
    try:
        from setuptools.command.bdist_wheel import bdist_wheel
    except ImportError:  # setuptools before 70.1
        from wheel.bdist_wheel import bdist_wheel

    class AnyPython(bdist_wheel):
        def get_tag(self):
            tag = super().get_tag()
            return ("py3", "none", tag[2])  # ctypes works with every version of Python

    commands["bdist_wheel"] = AnyPython
except ImportError:
    pass

# setuptools keeps what it built in "build" beside this file, and puts it into the next wheel, too, be
# it of another library. Every build starts from nothing.
scratch = tempfile.mkdtemp(prefix="tutti-wheel-")
atexit.register(shutil.rmtree, scratch, ignore_errors=True)
setup(cmdclass=commands, distclass=PlatformDistribution,
      options={"build": {"build_base": scratch}})
