"""Guesses why a peer does not speak the protocol.

Zone: pure. One sentence per kind of peer, with the next step.
"""

from __future__ import annotations

from typing import Final

_HTTP: Final = (b"GET ", b"POST", b"PUT ", b"HEAD", b"OPTI", b"PRI ")


def diagnose_peer(head: bytes, size: int, largest: int, listener: str, *, logs_in: bool = False) -> str:
    """The reason for which a frame with this length prefix is refused.

    head: its first bytes, with the prefix. logs_in: the peer has to log in before it may send larger ones.
    """
    if head[:2] == b"\x16\x03":
        return (
            f"the peer began a TLS handshake, but listener {listener} speaks plain text: "
            "set security.protocol=PLAINTEXT in the client or use a TLS listener"
        )
    if head[:4] in _HTTP:
        return f"the peer sent an HTTP request, but listener {listener} speaks the Kafka protocol"
    if size > largest and logs_in:
        return f"a request of {size} bytes is larger than {largest}, the limit before the login is complete"
    if size > largest:
        return f"a request of {size} bytes is larger than socket.request.max.bytes={largest}"
    return f"a request cannot be {size} bytes long: the peer does not speak the Kafka protocol"
