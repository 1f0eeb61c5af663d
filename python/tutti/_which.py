# SPDX-License-Identifier: Apache-2.0
"""Finds out which libnccl.so.2 a program would load, and why, by having the loader say so: nothing
here repeats the loader's rules. Programs are not run; a Python is, with a few lines that load the
library and look."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from typing import Any, Dict, List, Optional

import _tutti_nccl
from tutti import _elf

NAME = "libnccl.so.2"

# What the other Python runs: it may be of another version, and need not have this package.
_PROBE = r"""
import ctypes, importlib.util, json, os, sys
def loaded():
    with open("/proc/self/maps", errors="replace") as maps:
        return sorted({line.rstrip("\n").split(None, 5)[-1] for line in maps if "/libnccl.so" in line})
class Link(ctypes.Structure):
    _fields_ = [("address", ctypes.c_void_p), ("name", ctypes.c_char_p)]
report = {"executable": sys.executable, "start_up_files": not sys.flags.no_site, "at_start": loaded(),
          "switched_off": "_tutti_switch" in sys.modules and "_tutti_nccl" not in sys.modules}
try:
    library = ctypes.CDLL("libnccl.so.2")
    link = ctypes.cast(ctypes.c_void_p(library._handle), ctypes.POINTER(Link))
    report["by_name"] = os.fsdecode(link.contents.name)
    code, own = ctypes.c_int(), ctypes.c_char_p()
    library.ncclGetVersion(ctypes.byref(code))
    if hasattr(library, "tuttiGetVersion"):
        library.tuttiGetVersion(ctypes.byref(own))
    report["nccl"], report["tutti"] = code.value, own.value.decode() if own.value else None
except OSError as error:
    report["error"] = str(error)
def place(name):
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    return list(spec.submodule_search_locations or [])[:1] if spec else None
report["package"] = (place("nvidia.nccl") or [None])[0]
report["torch"] = (place("torch") or [None])[0]
print(json.dumps(report))
"""

# With PyTorch in the process; seconds, so only for a PyTorch that needs the library at all.
_TORCH_PROBE = r"""
import json, sys
import torch
with open("/proc/self/maps", errors="replace") as maps:
    found = sorted({line.rstrip("\n").split(None, 5)[-1] for line in maps if "/libnccl.so" in line})
version = torch.cuda.nccl.version() if torch.backends.cuda.is_built() else None
print(json.dumps({"version": torch.__version__, "loaded": found, "nccl": version}))
"""


class _Traced:
    """A command's output, and how the loader came by libraries meanwhile."""

    def __init__(self, command: List[str], environment: Optional[Dict[str, str]] = None) -> None:
        with tempfile.TemporaryDirectory() as folder:
            ran = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
                env=dict(os.environ, LD_DEBUG="libs", LD_DEBUG_OUTPUT=os.path.join(folder, "log"),
                         **(environment or {})))
            self.out = ran.stdout.decode(errors="replace")
            self.error = ran.stderr.decode(errors="replace").strip()
            self.status = ran.returncode
            self._log: List[str] = []
            for name in sorted(os.listdir(folder)):
                with open(os.path.join(folder, name), errors="replace") as log:
                    self._log += log.read().splitlines()

    def reason(self, path: str) -> Optional[str]:
        """Returns how the search for the library ended at `path`, in the loader's words, or None
        where there was no search."""
        searching, rule = False, None
        for line in self._log:
            line = line.split(":", 1)[-1].strip()
            if line.startswith("find library="):
                searching = line.startswith(f"find library={NAME} ")
            elif searching and line.startswith(("search path=", "search cache=")):
                named = re.search(r"\(([^()]*)\)$", line)
                rule = named[1] if named else line.replace("search cache=", "the loader's cache, ")
            elif searching and line == f"trying file={path}":
                return rule
        return None


def _early_reason(path: str) -> str:
    """Returns who loads a library before a Python's own code runs."""
    for name in os.environ.get("LD_PRELOAD", "").replace(":", " ").split():
        if os.path.exists(name) and os.path.samefile(name, path):
            return "LD_PRELOAD"
    if os.environ.get("TUTTI_NCCL") not in (None, "", "0"):
        return "the start-up file tutti_nccl.pth, by TUTTI_NCCL"
    return "the start-up file tutti_nccl.pth, by `tutti enable nccl`"


def _without_search(path: str) -> str:
    audit = os.environ.get("LD_AUDIT", "")
    return f"LD_AUDIT={audit}" if audit else f"it was loaded as {path}"


def _look_at_python(command: List[str]) -> Dict[str, Any]:
    traced = _Traced([*command, "-c", _PROBE])
    try:
        seen = json.loads(traced.out.splitlines()[-1])
    except (IndexError, ValueError):
        return {"program": command[0], "error": f"it is no Python that runs: {traced.error[-500:]}"}
    report: Dict[str, Any] = {"program": seen["executable"], "kind": "Python", "notes": []}
    path = seen.get("by_name")
    if path is None:
        report["error"] = f"there is no {NAME} that programs would find by name ({seen['error']})"
        if seen["switched_off"]:
            report["notes"].append("TUTTI_NCCL=1, or `tutti enable nccl`, would have it find Tutti's")
    else:
        path = os.path.realpath(path)
        early = any(os.path.realpath(one) == path for one in seen["at_start"])
        report.update(library=path, nccl=seen["nccl"], tutti=seen["tutti"],
                      why=_early_reason(path) if early else
                      traced.reason(seen["by_name"]) or _without_search(seen["by_name"]))
    if traced.error:
        report["notes"].append(traced.error)
    if not seen["start_up_files"]:
        report["notes"].append("this Python runs no start-up files (-S), so TUTTI_NCCL has no effect; "
                               'use LD_PRELOAD, or eval "$(tutti env)" for vLLM and SGLang')
    _add_package(report, seen)
    _add_torch(report, seen, command)
    return report


def _add_package(report: Dict[str, Any], seen: Dict[str, Any]) -> None:
    """Adds what is taken by programs that look for the package nvidia.nccl: JAX, cuda-pathfinder."""
    if seen["package"]:
        path = os.path.realpath(os.path.join(seen["package"], "lib", NAME))
        report["package"] = path if os.path.exists(path) else None


def _add_torch(report: Dict[str, Any], seen: Dict[str, Any], command: List[str]) -> None:
    if not seen["torch"]:
        return
    user = os.path.join(seen["torch"], "lib", "libtorch_cuda.so")
    elf = _elf.read(user) if os.path.exists(user) else None
    if elf is None or NAME not in elf.needed:
        report["torch"] = {"why": "this PyTorch is built without NCCL and loads none"}
        return
    traced = _Traced([*command, "-c", _TORCH_PROBE])
    try:
        found = json.loads(traced.out.splitlines()[-1])
    except (IndexError, ValueError):
        report["torch"] = {"why": f"it cannot be imported: {traced.error[-500:]}"}
        return
    used = next((path for path in found["loaded"] if path == report.get("library")),
                found["loaded"][0] if found["loaded"] else None)
    why = "it is loaded before PyTorch" if used and used in seen["at_start"] else \
        traced.reason(used or "") or "PyTorch loads it by its path"
    report["torch"] = {"version": found["version"], "library": used, "why": why}
    if len(found["loaded"]) > 1:
        report["torch"]["also"] = [path for path in found["loaded"] if path != used]


def _listed(listing: str) -> Optional[str]:
    """Returns what the loader, asked to list a program's libraries, says where NAME lies."""
    for line in listing.splitlines():
        parts = re.match(r"\s*(\S+)(?: => (.*?))?(?: \(0x[0-9a-f]+\))?$", line)
        if parts and os.path.basename(parts[1]) == NAME:
            return parts[2] or parts[1]
    return None


def _no_answer(elf: _elf.Elf) -> Optional[str]:
    """Returns why a file cannot be asked for its libraries, or None where it can: only glibc's loader
    lists them instead of running the program."""
    if elf.interpreter:
        if os.path.basename(elf.interpreter).startswith("ld-linux"):
            return None
        return f"its loader, {elf.interpreter}, is not that of glibc, and cannot be asked"
    if elf.needed or elf.soname:
        return "it is a library; ask about the program that loads it"
    return f"it is linked statically, and loads no {NAME} at its start"


def _look_at_program(path: str) -> Dict[str, Any]:
    report: Dict[str, Any] = {"program": path, "kind": "program", "notes": []}
    traced = _Traced([path], {"LD_TRACE_LOADED_OBJECTS": "1"})
    found = _listed(traced.out)
    if found is None:
        report["error"] = (f"it asks for no {NAME} at its start; if it loads one by name later, it gets "
                           "what `tutti which` says of Python under \"by name\", but for start-up files")
    elif found == "not found":
        folder = os.path.dirname(_tutti_nccl.library() or "/path/of/tutti/lib/")
        report["error"] = (f"it needs {NAME}, and the loader finds none; LD_LIBRARY_PATH={folder} "
                           "would give it Tutti's")
    else:
        report["library"] = os.path.realpath(found)
        report["why"] = traced.reason(found) or _without_search(found)
    return report


def _interpreter(path: str) -> Optional[List[str]]:
    """Returns the command in a script's first line, or None where it is none."""
    with open(path, "rb") as file:
        first, second = file.readline(4096), file.readline(4096)
    if not first.startswith(b"#!"):
        return None
    if second.startswith(b"'''exec' "):  # Of pip, for a Python whose path no first line can hold.
        return shlex.split(os.fsdecode(second))[1:2] or None
    words = os.fsdecode(first[2:]).split()
    if words and os.path.basename(words[0]) == "env":
        words = [word for word in words[1:] if not word.startswith("-")]
        words[:1] = [shutil.which(words[0]) or words[0]] if words else []
    return words or None


def _look(path: str, arguments: List[str]) -> Dict[str, Any]:
    script = _interpreter(path)
    if script and "python" in os.path.basename(script[0]):
        return _look_at_python([*script, *arguments])
    if script:
        return {"program": path, "error": f"it is a script of {script[0]}; ask about what it starts"}
    if re.fullmatch(r"(python|pypy)[0-9.]*[a-z]*", os.path.basename(os.path.realpath(path))) or \
            path == sys.executable:
        return _look_at_python([path, *arguments])
    elf = _elf.read(path)
    if elf is None:
        return {"program": path, "error": "it is neither a program nor a script of Python"}
    wrong = _no_answer(elf)
    return {"program": path, "error": wrong} if wrong else _look_at_program(path)


def look(program: str, arguments: List[str]) -> Dict[str, Any]:
    """Returns what is found out about a program (a name on PATH, or a path). For a Python, or a
    script of Python, `arguments` are options of the Python.

    The keys: program, kind (none where the program cannot be asked); library, why, nccl and tutti
    (versions), or error; package, torch and notes for a Python."""
    path = shutil.which(program)
    if path is None:
        wrong = "there is no such program"
        if os.path.isfile(program):
            wrong = "it is not executable; ask about what runs it, such as `tutti which python3`"
        return {"program": program, "error": wrong}
    try:
        return _look(path, arguments)
    except (OSError, ValueError) as error:  # ValueError: a script's quotes without an end.
        return {"program": path, "error": f"it cannot be read or started: {error}"}


def _version(report: Dict[str, Any]) -> str:
    code = report.get("nccl")
    if not code:
        return "Tutti's" if _tutti_nccl.is_tutti(report["library"]) else "not Tutti's"
    text = f"NCCL {code // 10000}.{code // 100 % 100}.{code % 100}"
    return f"Tutti {report['tutti']} ({text})" if report.get("tutti") else text


def text(report: Dict[str, Any]) -> str:
    """Returns the report in words, a line for each way in which a library is asked for."""
    lines = [f"{report['program']}"]
    if "library" in report:
        lines += [f"  by name   {report['library']}, {_version(report)}", f"            because of: {report['why']}"]
    else:
        lines.append(f"  by name   {report['error']}" if report.get("kind") == "Python"
                     else f"  {report['error']}")
    if report.get("package"):
        whose = "Tutti's" if _tutti_nccl.is_tutti(report["package"]) else "not Tutti's"
        lines += [f"  package   nvidia.nccl is {report['package']}, {whose}",
                  "            for programs that load it by path (JAX) unless one is loaded already"]
    torch = report.get("torch")
    if torch and torch.get("library"):
        whose = "Tutti's" if _tutti_nccl.is_tutti(torch["library"]) else "not Tutti's"
        lines += [f"  PyTorch   {torch['version']} uses {torch['library']}, {whose}",
                  f"            because of: {torch['why']}"]
        lines += [f"            {path} is loaded as well" for path in torch.get("also", [])]
    elif torch:
        lines.append(f"  PyTorch   {torch['why']}")
    lines += [f"  note      {note}" for note in report.get("notes", [])]
    return "\n".join(lines)
