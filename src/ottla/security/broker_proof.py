"""The proofs by which two brokers of a cluster show each other that they know the same secret.

Zone: pure. Names and proofs; `broker_login` handles the requests, and `ottla.server.connections.broker_handshake` sends
them.

The exchange, in SaslHandshake 1 and SaslAuthenticate 2 under a mechanism of Ottla's own:

1. The connecting broker sends NONCE random bytes.
2. The accepting broker responds with NONCE random bytes of its own, followed by its proof over both.
3. The connecting broker checks that proof, and sends its own proof, which is made with another label.
4. The accepting broker checks it. From then on the connection counts as a broker's.

A proof is an HMAC-SHA256 with the secret as key. So the secret never leaves either process, a recorded exchange is
useless later, and a process that took over a broker's port learns nothing.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

MECHANISM: Final = "OTTLA-BROKER"
NONCE: Final = 32
"""Random bytes from each side."""
PROOF: Final = hashlib.sha256().digest_size
BROKER_PRINCIPAL: Final = "Broker:cluster"
"""Principal of a connection whose other end has proved that it is a broker of this cluster. No client gets this one."""
SECRET_MIN: Final = 16
"""Least number of bytes of a secret."""


def proof_of_accepting(secret: bytes, theirs: bytes, ours: bytes) -> bytes:
    """The accepting broker's proof. `theirs`, `ours`: nonces of the connecting and of the accepting broker."""
    # Each side has a label of its own. With one label, a process without the secret could open a second connection in
    # the other direction, and send back the proof that it receives there.
    return hmac.digest(secret, b"accepting broker" + theirs + ours, "sha256")


def proof_of_connecting(secret: bytes, ours: bytes, theirs: bytes) -> bytes:
    """The connecting broker's proof. `ours`, `theirs`: nonces of the connecting and of the accepting broker."""
    return hmac.digest(secret, b"connecting broker" + ours + theirs, "sha256")


def matches_proof(proof: bytes, expected: bytes) -> bool:
    """Compare two proofs in constant time."""
    return hmac.compare_digest(proof, expected)
