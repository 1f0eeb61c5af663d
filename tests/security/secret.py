"""Attacks on the secret itself (F10): guesses about a proof that an attacker has caught."""

import os
import socket
import time

import formats
import rank as ranks
import stage as stages
from meeting import OWN_NUMBER, PATIENT, SOCKETS, horovod, outcome_of, start
from outcome import Outcome, attack

WORD = "sunshine7"  # of nine characters, as people choose them
# A public key of X25519 whose shared secret is the public key of the other end.
BASE_POINT = bytes([9]) + bytes(31)
WORDS = [f"{word}{number}" for word in ("dragon", "monkey", "summer", "sunshine") for number in range(10)]


def _pose_as_rank_0(talk, port):
    """An attacker's body: listens where rank 0 should, sends a challenge, and tells what rank 1 proves with."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        talk.send("listens")
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(2)
            challenge = formats.MAGIC_2 + os.urandom(formats.NONCE_BYTES) + BASE_POINT
            connection.sendall(challenge)
            proof = b""
            try:
                while len(proof) < formats.PROOF_2_BYTES and (data := connection.recv(4096)):
                    proof += data
            except OSError:
                pass
    talk.send((challenge, proof))


def _makes(master, challenge, proof):
    """Returns whether a master key of the job's secret makes the mac of the proof."""
    key = formats.with_secret(formats.key_from_text("tutti launch|horovod  |2"), master, b"launch")
    known, mac = challenge + proof[:-formats.MAC_BYTES], proof[-formats.MAC_BYTES:]
    return formats.derive(key, b"connector", known) == mac


@attack("F10", "catch the proof of a rank and guess its secret word")
def guess(stage):
    port = stages.free_port()
    attacker = stage.start(_pose_as_rank_0, port, user=stages.ATTACKER)
    assert attacker.hear() == "listens"
    victim = start(stage, horovod(1, TUTTI_ADDR=f"127.0.0.1:{port}", TUTTI_COMM_KEY=WORD, TUTTI_INIT_TIMEOUT_S="2"),
                   OWN_NUMBER)
    caught = attacker.hear()
    assert caught is not None and len(caught[1]) == formats.PROOF_2_BYTES, f"no proof came: {outcome_of(victim)}"
    begin = time.process_time()
    master = formats.stretch(WORD)
    seconds = time.process_time() - begin
    if master is None:
        raise stages.Skipped("there is no libsodium for Argon2id")
    hashed = any(_makes(formats.key_from_text(word), *caught) for word in WORDS)
    # The guess at the right word shows that the words above were tried by the right formula.
    assert hashed or _makes(master, *caught), "the right word makes no proof"
    cost = "a plain hash" if hashed else f"Argon2id, {1000 * seconds:.0f} ms a guess"
    return Outcome(hashed, f"the proof shows the right word at the price of {cost}")


def _derive(talk, library, secret):
    """Tells the processor time of the first key that the library derives from a secret, or a refusal."""
    os.environ["TUTTI_COMM_KEY"] = secret
    os.environ["NCCL_COMM_ID"] = f"127.0.0.1:{stages.free_port()}"
    one = ranks.Rank(library)
    try:
        begin = time.process_time()
        one.make_id()
        talk.send(time.process_time() - begin)
    except ranks.Refused as refusal:
        talk.send(str(refusal))


def derivation(stage, secret):
    return stage.start(_derive, stage.library, secret, environment={**SOCKETS, **PATIENT}).hear()


def least_seconds(stage, secret):
    """Returns the least time of several processes: other work of the call and of the machine only adds time."""
    return min(derivation(stage, secret) for _ in range(5))


@attack("F10", "guess words at the pace of a plain hash")
def pace(stage):
    """A guess costs an attacker with an equally good program what the derivation costs the library: the time for a word
    beyond the time for a secret that is too long for guesses."""
    seconds = least_seconds(stage, WORD) - least_seconds(stage, "0123456789abcdef" * 4)
    pace_text = f"{1 / seconds:.0f} guesses" if seconds > 1e-4 else "more than 10,000 guesses"
    cost = f"a guess costs {1000 * max(seconds, 0):.1f} ms of a core: {pace_text} a second and core"
    return Outcome(seconds < 0.01, cost)


@attack("F10", "use a secret of a few characters")
def short_secret(stage):
    answer = derivation(stage, "abc")
    if isinstance(answer, str):
        assert "TUTTI_COMM_KEY" in answer, answer
        return Outcome(False, f"refused: \"{answer}\"")
    return Outcome(True, "a secret of 3 characters is taken")
