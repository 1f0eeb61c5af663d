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
WORDS = [f"{word}{number}" for word in ("dragon", "monkey", "summer", "sunshine") for number in range(10)]


def _pose_as_rank_0(talk, port):
    """An attacker's body: listens where rank 0 should, sends a challenge, and tells what rank 1 proves with."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        talk.send("listens")
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(2)
            challenge = formats.MAGIC + os.urandom(formats.NONCE_BYTES)
            connection.sendall(challenge)
            proof = b""
            try:
                while len(proof) < formats.PROOF_BYTES and (data := connection.recv(4096)):
                    proof += data
            except OSError:
                pass
    talk.send((challenge[8:], proof))


def _first_match(port, nonce, proof):
    """Returns the word that makes the proof, in the first version of the handshake, and the number of guesses."""
    connector_nonce, hello, mac = proof[:32], proof[32:288], proof[288:320]
    for number, word in enumerate(WORDS):
        key = formats.key_from_text(f"tutti launch|horovod|2|{word}")
        if formats.mac(key, b"connector", nonce, connector_nonce, hello) == mac:
            return word, number + 1
    return None, len(WORDS)


@attack("F10", "catch the proof of a rank and guess its secret word")
def guess(stage):
    port = stages.free_port()
    attacker = stage.start(_pose_as_rank_0, port, user=stages.ATTACKER)
    assert attacker.hear() == "listens"
    victim = start(stage, horovod(1, TUTTI_ADDR=f"127.0.0.1:{port}", TUTTI_COMM_KEY=WORD, TUTTI_INIT_TIMEOUT_S="2"),
                   OWN_NUMBER)
    caught = attacker.hear()
    if caught is None or len(caught[1]) < formats.PROOF_BYTES:
        return Outcome(False, f"a false challenge gives no proof of the first version: {outcome_of(victim)}")
    begin = time.monotonic()
    word, number = _first_match(port, *caught)
    seconds = time.monotonic() - begin
    result = f"the word is {word}" if word else "no word makes the proof"
    return Outcome(word == WORD, f"{result} after {number} guesses, {number / seconds:.0f} guesses a second")


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
