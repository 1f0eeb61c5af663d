# SPDX-License-Identifier: Apache-2.0
"""The folder in which a user keeps compiled code: TUTTI_CACHE_DIR, else tutti/ of XDG_CACHE_HOME or
~/.cache. Nobody else may write there."""

from __future__ import annotations

import grp
import os
import pathlib
import pwd
import stat
from typing import Callable

from tutti._torch_compile import Unavailable


def _is_own_group(gid: int) -> bool:
    """Returns whether a group has the name of this user, as groups of a single user have."""
    try:
        return grp.getgrgid(gid).gr_name == pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return False


def _check_parent(folder: str) -> None:
    """Refuses a folder in which another user may put something else in the place of a folder of
    this user. In a sticky folder, such as /tmp, nobody may."""
    status = os.lstat(folder)
    others = status.st_mode & stat.S_IWOTH or (
        status.st_mode & stat.S_IWGRP and not _is_own_group(status.st_gid))
    if (not stat.S_ISDIR(status.st_mode) or status.st_uid not in (0, os.geteuid())
            or (others and not status.st_mode & stat.S_ISVTX)):
        raise Unavailable(f"others may write to {folder}")


def check_own(path: str, flags: int, is_kind: Callable[[int], bool]) -> None:
    """Refuses a file or folder that another user owns or may write to. The path is opened, and no
    link at its end is followed, so that what is checked is what lies there."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | flags)
    try:
        status = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    if (not is_kind(status.st_mode) or status.st_uid != os.geteuid()
            or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
        raise Unavailable(f"others may write to {path}")


def cache() -> str:
    """Returns the folder for what was compiled, which it makes, without symbolic links. Nobody else
    may write there, nor put another folder in its place: folders are checked from the root down, so
    that nobody can change what has been checked."""
    folder = os.environ.get("TUTTI_CACHE_DIR") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "tutti")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    folder = os.path.realpath(folder)
    for parent in reversed(pathlib.PurePath(folder).parents):
        _check_parent(str(parent))
    check_own(folder, os.O_DIRECTORY, stat.S_ISDIR)
    return folder
