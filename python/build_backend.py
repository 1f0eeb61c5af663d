# SPDX-License-Identifier: Apache-2.0
"""Builds the package's wheel, for pip (PEP 517) and for the target `wheel` of the build.

What is compiled comes from one of these:

  TUTTI_PREFIX    an installation (`cmake --install BUILD --component wheel`): libraries, headers,
                  the program, CMake and pkg-config files; and the backends of torch.distributed
                  that tools/compile_torch_backend has added
  TUTTI_LIBRARY   a libtutti.so of a build or an installation; with what lies beside it (libnccl.so.2,
                  plugins), the program of TUTTI_PROGRAM or of the same place, and headers
  neither         as TUTTI_LIBRARY, of what `make` built beside this folder

Without any, and with an empty TUTTI_LIBRARY, the wheel is Python alone, and looks for a library when
it is used. In the wheel the
folder tutti/ is laid out as a prefix: lib, include, bin. Nothing is left beside the sources.
"""

import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile

try:
    import tomllib
except ImportError:  # Python before 3.11
    import tomli as tomllib

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

from tutti import _wheel  # noqa: E402

PLUGINS = ("libtutti_openmpi.so", "libtutti_mpich.so", "libtutti_gloo.so", "libtutti_ccl.so")
START_UP = ("_tutti_switch.py", "_tutti_nccl.py", "tutti_nccl.pth", "tutti_nccl.conf")
OVERLAY = "lib/tutti/overlay/nvidia"


def _project():
    with open(os.path.join(HERE, "pyproject.toml"), "rb") as file:
        return tomllib.load(file)["project"]


def _metadata(project):
    lines = [("Summary", project["description"]), ("License", project["license"]["text"]),
             ("Requires-Python", project["requires-python"])]
    for extra, requirements in project["optional-dependencies"].items():
        lines.append(("Provides-Extra", extra))
        lines += [("Requires-Dist", f'{one}; extra == "{extra}"') for one in requirements]
    return lines


def _entry_points(project):
    groups = {"console_scripts": project["scripts"], **project["entry-points"]}
    return "\n".join(f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
                     for group, points in groups.items())


def _files_below(folder):
    """Returns (path from the folder on, path) of every file below it."""
    found = []
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(one for one in folders if one != "__pycache__")
        found += [(os.path.relpath(os.path.join(place, one), folder), os.path.join(place, one))
                  for one in sorted(files)]
    return found


def _named(variable):
    path = os.environ.get(variable)
    if path and not os.path.exists(path):
        raise SystemExit(f"build: {variable} is {path}, and there is no such file")
    return path


def _of_prefix(prefix):
    """Returns what a wheel takes of an installation, as source by path below tutti/."""
    contents = {}
    for part in ("bin", "include", "lib"):
        for name, source in _files_below(os.path.join(prefix, part)):
            if ".so" not in name or not os.path.islink(source):
                contents[f"{part}/{name}"] = source
    if "lib/libtutti.so.0" not in contents:
        raise SystemExit(f"build: {prefix} has no lib/libtutti.so.0")
    return contents


def _program_of(folder):
    named = _named("TUTTI_PROGRAM")
    places = [named] if named else [os.path.join(folder, *place) for place in
                                    (("..", "tools", "tutti"), ("..", "bin", "tutti"),
                                     ("..", "..", "bin", "tutti"))]
    return next((os.path.normpath(place) for place in places if os.path.isfile(place)), None)


def _headers_of(folder):
    """Returns (path from the folder of headers on, path) of the headers of a library in `folder`:
    of the library's installation, where lib may have a folder for the architecture, or else of this
    checkout."""
    for place in (os.path.join(folder, os.pardir), os.path.join(folder, os.pardir, os.pardir),
                  os.path.join(HERE, os.pardir)):
        headers = os.path.join(place, "include")
        if os.path.isfile(os.path.join(headers, "tutti", "tutti.h")):
            # An installation may have headers of others beside the library's.
            return [(name, source) for part in ("nccl_device", "tutti")
                    for name, source in ((os.path.join(part, one), path) for one, path in
                                         _files_below(os.path.join(headers, part)))] + [
                (name, os.path.join(headers, name)) for name in ("nccl.h", "nccl_device.h")]
    print("build: there is no tutti/tutti.h; the package will have no backend of PyTorch in C++")
    return []


def _of_library(library):
    """Returns the same of a library and what lies beside it."""
    folder = os.path.dirname(os.path.abspath(library))
    contents = {"lib/libtutti.so.0": library}
    for name in ("libnccl.so.2", *PLUGINS):
        if os.path.exists(os.path.join(folder, name)):
            contents[f"lib/{name}"] = os.path.join(folder, name)
    for name, source in _files_below(os.path.join(folder, "tutti")):
        if not os.path.islink(source):
            contents[f"lib/tutti/{name}"] = source
    for name, source in _files_below(os.path.join(HERE, "overlay", "nvidia")):
        contents[f"{OVERLAY}/{name}"] = source
    for name, source in _headers_of(folder):
        contents[f"include/{name}"] = source
        if name.startswith("nccl"):  # where programs look that compile for NVIDIA's package
            contents[f"{OVERLAY}/nccl/include/{name}"] = source
    program = _program_of(folder)
    if program:
        contents["bin/tutti"] = program
        client = os.path.join(os.path.dirname(program), "ncclras")
        if os.path.isfile(client):
            contents["bin/ncclras"] = client
    else:
        print("build: no tutti program was built; the package will look for one on PATH")
    return contents


def _compiled():
    """Returns the source of every compiled or copied file, by path below tutti/."""
    prefix = _named("TUTTI_PREFIX")
    library = _named("TUTTI_LIBRARY")
    if prefix:
        contents = _of_prefix(prefix)
    elif os.environ.get("TUTTI_LIBRARY") == "":
        return {}
    else:
        built = os.path.join(HERE, os.pardir, "build", "release", "src", "libtutti.so.0")
        library = library or (built if os.path.exists(built) else None)
        if library is None:
            print("build: no libtutti was built; the package will look for one when it is used")
            return {}
        contents = _of_library(library)
    return contents


def _without_debug_information(source, scratch):
    """Returns a copy of a compiled file that has none; the file itself where there is no strip."""
    if not shutil.which("strip"):
        return source
    target = tempfile.mkstemp(dir=scratch)[1]
    shutil.copyfile(source, target)
    shutil.copymode(source, target)
    subprocess.run(["strip", "--strip-debug", target], check=True)
    return target


def _is_compiled(name):
    return name.startswith("bin/") or ".so" in os.path.basename(name)


def _may_be_stripped(name):
    """Whether a compiled file may be changed: those that end with a seal are stripped already."""
    return not os.path.basename(name).startswith(_wheel.TORCH_BACKEND)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """PEP 517's: writes the wheel into the folder and returns its name."""
    project, contents = _project(), _compiled()
    tag, why = _wheel.platform_tag(source for name, source in contents.items() if _is_compiled(name))
    for sentence in why:
        print(f"build: {sentence}, so the wheel is one for this system only")
    with tempfile.TemporaryDirectory() as scratch, _wheel.WheelWriter(
            wheel_directory, project["name"], project["version"], tag, _metadata(project),
            _entry_points(project)) as wheel:
        for name, source in _files_below(os.path.join(HERE, "tutti")):
            wheel.add_file(f"tutti/{name}", source)
        for name in START_UP:
            wheel.add_file(name, os.path.join(HERE, name))
        for name, source in sorted(contents.items()):
            if _is_compiled(name) and _may_be_stripped(name):
                source = _without_debug_information(source, scratch)
            wheel.add_file(f"tutti/{name}", source)
        if "lib/libtutti.so.0" in contents:
            # Wheels hold no links, by which the linker finds a library; it reads such a file, too.
            wheel.add("tutti/lib/libtutti.so", b"INPUT(libtutti.so.0)\n")
        return wheel.filename


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    """PEP 660's: a wheel that has Python look into this folder."""
    project = _project()
    with _wheel.WheelWriter(wheel_directory, project["name"], project["version"], "any",
                            _metadata(project), _entry_points(project)) as wheel:
        wheel.add("tutti_editable.pth", f"{HERE}\n".encode())
        return wheel.filename


def build_sdist(sdist_directory, config_settings=None):
    """PEP 517's: this folder, packed; a wheel that is built of it has no library."""
    project = _project()
    name = f"{project['name'].replace('-', '_')}-{project['version']}"
    path = os.path.join(sdist_directory, name + ".tar.gz")
    lines = "".join(f"{key}: {value}\n" for key, value in
                    [("Metadata-Version", "2.1"), ("Name", project["name"]),
                     ("Version", project["version"]), *_metadata(project)])
    with tarfile.open(path, "w:gz") as archive:
        for file, source in _files_below(HERE):
            archive.add(source, f"{name}/{file}")
        entry = tarfile.TarInfo(f"{name}/PKG-INFO")
        entry.size = len(lines.encode())
        archive.addfile(entry, io.BytesIO(lines.encode()))
    return os.path.basename(path)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: build_backend.py FOLDER     writes the wheel into the folder")
    print(os.path.join(sys.argv[1], build_wheel(sys.argv[1])))
