# SPDX-License-Identifier: Apache-2.0
"""Finds Tutti's libnccl.so.2 and makes it the one of this process.

Whatever asks for a library of that name later, by name or because it was linked with it, gets the one
that is loaded: that is how the loader works. _tutti_switch.py calls start() where Tutti is asked
for, before any code of the program runs. This is no part of the package `tutti`, because importing
that takes longer.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def folders():
    """Returns the folders in which libtutti.so.0 may lie, best first: beside TUTTI_LIBRARY, in the
    package, and the system's folders of libraries."""
    named = os.environ.get("TUTTI_LIBRARY")
    found = [os.path.dirname(os.path.abspath(named))] if named else []
    found.append(os.path.join(_HERE, "tutti", "lib"))
    machine = getattr(sys.implementation, "_multiarch", "")
    return found + [os.path.join(root, *part) for root in ("/usr/local/lib", "/usr/lib")
                    for part in ((machine,), ())] + ["/usr/local/lib64", "/usr/lib64"]


def folder():
    """Returns the first of the folders with libtutti.so.0, or None."""
    for place in folders():
        if os.path.exists(os.path.join(place, "libtutti.so.0")):
            return place
    return None


def overlay():
    """Returns the folder that has Tutti as nvidia/nccl, or None."""
    place = folder()
    path = os.path.join(place, "tutti", "overlay") if place else ""
    return path if os.path.isdir(path) else None


def library():
    """Returns the path of Tutti's libnccl.so.2, or None."""
    place = overlay()
    path = os.path.join(place, "nvidia", "nccl", "lib", "libnccl.so.2") if place else ""
    return path if os.path.exists(path) else None


def loaded(process="self"):
    """Returns the paths of all libnccl.so that a process has loaded, in no order."""
    found = set()
    with open("/proc/%s/maps" % process, encoding="utf-8", errors="replace") as maps:
        for line in maps:
            if "/libnccl.so" in line:
                found.add(line.rstrip("\n").split(None, 5)[-1])
    return sorted(found)


def is_tutti(path):
    """Returns whether a libnccl.so is Tutti's, which lies beside a libtutti.so.0 or in its
    overlay."""
    here = os.path.dirname(os.path.realpath(path))
    return any(os.path.exists(os.path.join(here, up, "libtutti.so.0"))
               for up in (".", "../../../../.."))


def _start():
    """Loads the library; returns the error as a sentence, or None."""
    path = library()
    if path is None:
        return ("TUTTI_NCCL is set, but there is no libnccl.so.2 of Tutti in %s; install the wheel "
                "tutti-collectives anew, or unset it" % (folder() or os.path.join(_HERE, "tutti")))
    others = [one for one in loaded() if not is_tutti(one)]
    if others:
        return ("%s is loaded already, so Tutti does not take its place; see LD_PRELOAD and "
                "LD_AUDIT, or set TUTTI_NCCL=0" % others[0])
    import ctypes
    ctypes.CDLL(path)
    return None


def start():
    """Loads the library. Never raises, because a start-up file that raises would show up in every
    Python; an error is one line on standard error."""
    try:
        wrong = _start() if sys.platform == "linux" else None
    except Exception as error:
        wrong = "Tutti does not take NCCL's place: %s" % error
    if wrong:
        try:
            sys.stderr.write("tutti: %s\n" % wrong)
        except Exception:
            pass
