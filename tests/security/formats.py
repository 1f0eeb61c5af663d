"""What an attacker knows of the handshake's versions and of the records (docs/bootstrap.md; docs/security.md, F2 and
F10)."""

import ctypes
import ctypes.util
import hashlib
import struct

MAGIC, MAGIC_2 = b"TUTTIHS1", b"TUTTIHS2"
CONTEXT = b"tutti comm key 1"
CHALLENGE_BYTES, PROOF_BYTES, MAC_BYTES, NONCE_BYTES = 40, 320, 32, 32
CHALLENGE_2_BYTES, PROOF_2_BYTES = 72, 368
RECORD_HEADER_BYTES = 24
ARGON2ID13 = 2


def key_from_text(text):
    """Returns one hash of a text, without salt."""
    return hashlib.blake2b(text.encode(), digest_size=32, key=CONTEXT).digest()


def stretch(secret):
    """Returns the master key of a short secret: Argon2id with 2 passes and 32 MiB. None without libsodium."""
    sodium = ctypes.util.find_library("sodium")
    if sodium is None:
        return None
    key, text = ctypes.create_string_buffer(32), secret.encode()
    status = ctypes.CDLL(sodium).crypto_pwhash(
        key, ctypes.c_ulonglong(len(key)), text, ctypes.c_ulonglong(len(text)), b"tutti job secret",
        ctypes.c_ulonglong(2), ctypes.c_size_t(32 << 20), ARGON2ID13)
    assert status == 0, "Argon2id failed"
    return key.raw


def with_secret(key, master, purpose):
    return hashlib.blake2b(key + purpose, digest_size=32, key=master).digest()


def derive(key, name, data):
    """Returns D(name, data) of the second version."""
    return hashlib.blake2b(data, digest_size=32, key=key, person=name.ljust(16, b"\0")).digest()


def mac(key, role, acceptor_nonce, connector_nonce, hello):
    return hashlib.blake2b(role + acceptor_nonce + connector_nonce + hello, digest_size=32, key=key).digest()


def _rotate(word, bits):
    return (word << bits | word >> (32 - bits)) & 0xffffffff


def _chacha20_block(key, counter, nonce):
    state = [0x61707865, 0x3320646e, 0x79622d32, 0x6b206574, *struct.unpack("<8I", key), counter,
             *struct.unpack("<3I", nonce)]
    words = list(state)

    def quarter(a, b, c, d):
        for first, second, third, bits in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            words[first] = (words[first] + words[second]) & 0xffffffff
            words[third] = _rotate(words[third] ^ words[first], bits)

    for _ in range(10):
        for column in range(4):
            quarter(column, column + 4, column + 8, column + 12)
        for a, b, c, d in ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)):
            quarter(a, b, c, d)
    return struct.pack("<16I", *((one + other) & 0xffffffff for one, other in zip(words, state)))


def chacha20(key, number, data):
    """Decrypts the record `number`, whose bytes begin at the second block of the stream (RFC 8439)."""
    nonce = bytes(4) + struct.pack("<Q", number)
    stream = b"".join(_chacha20_block(key, 1 + block, nonce) for block in range((len(data) + 63) // 64))
    return bytes(one ^ other for one, other in zip(data, stream))


def _keys_and_streams(key, connector, acceptor):
    """Yields the key and the records of either direction, for who has the job's key and has only read. An X25519 secret
    counts as zero, as in handshakes without ephemeral keys."""
    if acceptor.startswith(MAGIC) and len(connector) >= PROOF_BYTES:
        nonces_and_hello = (acceptor[8:CHALLENGE_BYTES], connector[:NONCE_BYTES], connector[NONCE_BYTES:288])
        yield mac(key, b"key to acceptor", *nonces_and_hello), connector[PROOF_BYTES:]
        yield mac(key, b"key to connector", *nonces_and_hello), acceptor[CHALLENGE_BYTES + MAC_BYTES:]
    if acceptor.startswith(MAGIC_2) and len(connector) >= PROOF_2_BYTES:
        known = bytes(32) + acceptor[:CHALLENGE_2_BYTES] + connector[:PROOF_2_BYTES - MAC_BYTES]
        yield derive(key, b"to acceptor", known), connector[PROOF_2_BYTES:]
        yield derive(key, b"to connector", known), acceptor[CHALLENGE_2_BYTES + MAC_BYTES:]


def open_connection(key, connector, acceptor):
    """Returns what the records of both directions of a connection are by a key: plain bytes for the job's key where
    nothing but the key protects the connection, and nonsense otherwise."""
    plain = b""
    for secret, stream in _keys_and_streams(key, connector, acceptor):
        number = 0
        while len(stream) > RECORD_HEADER_BYTES:
            length = struct.unpack_from("<I", stream)[0]
            if length > 65536:
                break  # a plain stream
            plain += chacha20(secret, number, stream[RECORD_HEADER_BYTES:RECORD_HEADER_BYTES + length])
            stream, number = stream[RECORD_HEADER_BYTES + length:], number + 1
    return plain
