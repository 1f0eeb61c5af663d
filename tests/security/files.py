"""Attacks on files of a user by another user, who owns a folder on their path (F18, F19)."""

import os
import pathlib
import sys

import stage as stages
from meeting import OWN_NUMBER, expect_sum, start
from outcome import Outcome, attack

# A process of another user may not reach the modules of Python any more, so they are read here.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
from tutti import _torch_cache, _torch_compile  # noqa: E402

PRECIOUS = "what the victim must not lose"


def attackers_folder(stage):
    """Makes a folder of the attacker's in which every user may make files. The kernel protects links and files only in
    sticky folders, and the folder is not sticky."""
    folder = pathlib.Path(stage.folder.name, "shared")
    folder.mkdir()
    os.chown(folder, stages.ATTACKER, stages.ATTACKER)
    folder.chmod(0o777)
    return folder


def log_to(stage, path):
    """Has a rank of the victim's write its log to a path, and returns what lies there then."""
    victim = start(stage, {"TUTTI_BACKEND": "host", "NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": str(path)}, OWN_NUMBER)
    expect_sum(victim, OWN_NUMBER)
    return path.read_text() if path.exists() else ""


@attack("F19", "have a rank write its log over a file of its user, by a link at the path of the log")
def log_over_link(stage):
    folder = attackers_folder(stage)
    assert log_to(stage, folder / "own"), "a rank writes no log"
    precious = pathlib.Path(stage.home_of(stages.VICTIM), "precious")
    precious.write_text(PRECIOUS)
    os.chown(precious, stages.VICTIM, stages.VICTIM)
    os.symlink(precious, folder / "log")
    os.lchown(folder / "log", stages.ATTACKER, stages.ATTACKER)
    left = log_to(stage, folder / "log")
    return Outcome(left != PRECIOUS, f"the file has \"{left[:60]}\"")


@attack("F19", "read the log of a rank in a file that is at the path before the rank starts")
def log_into_file(stage):
    folder = attackers_folder(stage)
    assert log_to(stage, folder / "own"), "a rank writes no log"
    (folder / "log").touch()
    os.chown(folder / "log", stages.ATTACKER, stages.ATTACKER)
    (folder / "log").chmod(0o666)
    got = log_to(stage, folder / "log")
    return Outcome(got != "", f"the attacker's file has {len(got)} bytes of the log")


def _choose_cache(talk):
    """A victim's body: tells the folder that the package chooses for compiled code, or why there is none."""
    try:
        talk.send((_torch_cache.cache(), None))
    except _torch_compile.Unavailable as refusal:
        talk.send((None, str(refusal)))
    talk.recv()


@attack("F18", "put a library into the place of a folder of compiled code that a process has checked")
def replace_cache(stage):
    cache = attackers_folder(stage) / "cache"
    own = stage.start(_choose_cache, environment={"TUTTI_CACHE_DIR": f"{stage.home_of(stages.VICTIM)}/cache"})
    heard = own.hear()
    assert heard and heard[0], f"a folder of the user's own is refused: {heard} {own.log()}"
    folder, refusal = stage.start(_choose_cache, environment={"TUTTI_CACHE_DIR": str(cache)}).hear()
    if folder is None:
        return Outcome(False, f"the process refuses the folder: \"{refusal}\"")

    def replace(talk):
        cache.rename(cache.with_name("aside"))
        cache.mkdir()
        (cache / "planted.so").touch()
        talk.send("replaced")
    attacker = stage.start(replace, user=stages.ATTACKER)
    replaced = attacker.hear() == "replaced" and os.path.exists(f"{folder}/planted.so")
    return Outcome(replaced, "the process takes a folder that the attacker has put in place of the checked folder")
