"""What an attacker knows of the first version of the handshake and of the records, for the attacks that succeeded on it
(docs/security.md, F2 and F10). Attacks on later versions run the library itself."""

import hashlib
import struct

MAGIC = b"TUTTIHS1"
CONTEXT = b"tutti comm key 1"
CHALLENGE_BYTES, PROOF_BYTES, MAC_BYTES, NONCE_BYTES = 40, 320, 32, 32
RECORD_HEADER_BYTES = 24


def key_from_text(text):
    """Returns the key of a text as the first version makes it: one hash, without salt."""
    return hashlib.blake2b(text.encode(), digest_size=32, key=CONTEXT).digest()


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


def open_connection(key, connector, acceptor):
    """Returns the plain bytes of both directions of an encrypted connection of the first version, for whoever has the
    job's key; nothing where the connection is another's."""
    if not acceptor.startswith(MAGIC) or len(connector) < PROOF_BYTES:
        return b""
    nonces_and_hello = (acceptor[8:CHALLENGE_BYTES], connector[:NONCE_BYTES], connector[NONCE_BYTES:288])
    plain = b""
    for role, stream in ((b"key to acceptor", connector[PROOF_BYTES:]),
                         (b"key to connector", acceptor[CHALLENGE_BYTES + MAC_BYTES:])):
        secret, number = mac(key, role, *nonces_and_hello), 0
        while len(stream) > RECORD_HEADER_BYTES:
            length = struct.unpack_from("<I", stream)[0]
            if length > 65536:
                break  # a plain stream
            plain += chacha20(secret, number, stream[RECORD_HEADER_BYTES:RECORD_HEADER_BYTES + length])
            stream, number = stream[RECORD_HEADER_BYTES + length:], number + 1
    return plain
