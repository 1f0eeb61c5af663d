# SPDX-License-Identifier: Apache-2.0
"""The subcommands of `tutti` that are about finding the library; the others are the program's."""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shlex
import sys
from typing import Dict, List, Optional

# Whether this Python read the start-up file, which is so where pip or Debian installed the package.
_READ_AT_START = "_tutti_switch" in sys.modules

import _tutti_nccl  # noqa: E402
from _tutti_switch import SWITCH  # noqa: E402


class CommandError(Exception):
    """A sentence for whoever typed the command."""


def _library() -> str:
    path = _tutti_nccl.library()
    if path is None:
        place = _tutti_nccl.folder()
        raise CommandError((f"{place} has a libtutti.so.0, but no libnccl.so.2 in tutti/overlay" if place else
                            "this package has no libnccl.so.2, and no libtutti.so.0 was found in " +
                            ", ".join(_tutti_nccl.folders())) + "; install the wheel or Debian's packages")
    return path


def _check_library() -> None:
    """Raises where the library cannot be loaded, or is not Tutti's."""
    path = _library()
    try:
        is_tutti = hasattr(ctypes.CDLL(path), "tuttiGetVersion")
    except OSError as error:
        raise CommandError(f"Tutti's libnccl.so.2 cannot be loaded: {error}; install the package anew") from None
    if not is_tutti:
        raise CommandError(f"{path} is not Tutti's; install the package anew")


def _overlay() -> str:
    _library()
    return _tutti_nccl.overlay() or ""


def _audit() -> str:
    return os.path.join(os.path.dirname(_overlay()), "libtutti_audit.so")


def variables(audit: bool = False) -> Dict[str, str]:
    """Returns the environment in which programs find Tutti under NCCL's name; `audit` adds what
    programs that are not Python need."""
    library, overlay = _library(), _overlay()
    home = os.path.join(overlay, "nvidia", "nccl")
    paths = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]
    result = {
        "TUTTI_NCCL": "1",                    # the start-up file, and the audit library
        "VLLM_NCCL_SO_PATH": library,
        "SGLANG_NCCL_SO_PATH": library,
        "MSCCLPP_NCCL_LIB_PATH": library,
        "NCCL_HOME": home,                    # nccl4py and others that look for lib and include
        "EP_NCCL_ROOT_DIR": home,             # DeepEP
        "PYTHONPATH": os.pathsep.join([overlay, *(one for one in paths if one != overlay)]),
    }
    if audit:
        result["LD_AUDIT"] = _audit()
    return result


def _env(arguments: argparse.Namespace) -> None:
    for name, value in variables(arguments.audit).items():
        print(f"export {name}={shlex.quote(value)}")


def _say_overlay(_: argparse.Namespace) -> None:
    print(_overlay())


def _say_audit(_: argparse.Namespace) -> None:
    print(_audit())


def _prefix(arguments: argparse.Namespace) -> None:
    _library()  # or a sentence
    folder = _tutti_nccl.folder() or ""
    prefix = os.path.dirname(folder)
    if os.path.basename(prefix) == "lib":  # Debian's folder for this kind of machine lies in between.
        prefix = os.path.dirname(prefix)
    parts = {"lib": folder, "cmake": os.path.join(folder, "cmake"),
             "pkgconfig": os.path.join(folder, "pkgconfig"), "include": os.path.join(prefix, "include")}
    print(parts.get(arguments.part, prefix))


def _switch(on: bool) -> None:
    """Has every Python of this environment take Tutti for NCCL, or no longer."""
    if on:
        _check_library()
    if not _READ_AT_START:
        raise CommandError("this has no effect, for this Python did not read the start-up file "
                           "tutti_nccl.pth: the package is not among those that are installed for it")
    try:
        with open(SWITCH, "w", encoding="utf-8") as file:
            file.write("on\n" if on else "off\n")
    except OSError as error:
        raise CommandError(f"{SWITCH} cannot be written ({error.strerror}); set "
                           f"TUTTI_NCCL={int(on)} in the environment of your programs instead") from None
    print(f"{sys.prefix}: from now on, its Python programs "
          f"{'get Tutti for' if on else 'do not get Tutti for'} libnccl.so.2")


def _which(arguments: argparse.Namespace) -> int:
    from tutti import _which as which
    report = which.look(arguments.program, arguments.arguments)
    print(json.dumps(report, indent=2) if arguments.json else which.text(report))
    return 0 if "kind" in report else 1


def _wheel(arguments: argparse.Namespace) -> None:
    from tutti import _as_nccl
    if not arguments.as_nccl:
        raise CommandError("say --as-nccl; the wheel of the library itself is what `make wheel` builds")
    try:
        path = _as_nccl.build(arguments.output, arguments.cuda, arguments.nccl_version)
    except (ValueError, OSError) as error:
        raise CommandError(str(error)) from None
    print(path)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tutti")
    commands = parser.add_subparsers(dest="command", required=True)

    def add(name: str, function: object, text: str) -> argparse.ArgumentParser:
        one = commands.add_parser(name, help=text, description=text)
        one.set_defaults(function=function)
        return one

    for name, on in (("enable", True), ("disable", False)):
        one = add(name, lambda _, on=on: _switch(on),
                  "let Python programs of this environment " + ("take Tutti for NCCL" if on else
                                                               "have the NCCL that they had"))
        one.add_argument("what", choices=["nccl"])
    one = add("env", _env, 'variables for a shell: eval "$(tutti env)"')
    one.add_argument("--audit", action="store_true",
                     help="also for programs that are not Python (LD_AUDIT)")
    add("overlay", _say_overlay, 'the folder for PYTHONPATH="$(tutti overlay)"')
    add("audit", _say_audit, 'the library for LD_AUDIT="$(tutti audit)" PROGRAM')
    one = add("prefix", _prefix, "where this installation has lib, include and the like")
    one.add_argument("part", nargs="?", choices=["lib", "include", "cmake", "pkgconfig"])
    one = add("which", _which, "say which libnccl.so.2 a program would load, and why")
    one.add_argument("--json", action="store_true")
    one.add_argument("program", nargs="?", default=sys.executable,
                     help="a Python, a script of Python, or a program (default: this Python)")
    one.add_argument("arguments", nargs=argparse.REMAINDER,
                     help="options of the Python, such as -S")
    one = add("wheel", _wheel, "build a wheel of the installed library")
    one.add_argument("--as-nccl", action="store_true",
                     help="under the name of NVIDIA's package, for an index of your own")
    one.add_argument("--cuda", type=int, help="the 13 of nvidia-nccl-cu13 (default: what PyTorch needs)")
    one.add_argument("--nccl-version", help="the version it stands for (default: what PyTorch needs)")
    one.add_argument("--output", default=".", help="the folder for the wheel (default: this one)")
    return parser


def main(arguments: Optional[List[str]] = None) -> int:
    """Runs a subcommand and returns the exit status."""
    try:
        parsed = _parser().parse_args(arguments)
        return parsed.function(parsed) or 0
    except CommandError as error:
        print(f"tutti: {error}", file=sys.stderr)
        return 1
