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


def diagnose_plain_peer(head: bytes, listener: str) -> str:
    """The reason for which a peer is refused whose first bytes, `head`, are not those of a TLS handshake."""
    if head[:4] in _HTTP:
        return f"the peer sent an HTTP request without TLS, but listener {listener} speaks the Kafka protocol over TLS"
    if head[:1] == b"\0":
        return (
            f"the peer sent a request without TLS, but listener {listener} speaks TLS: "
            "set security.protocol=SSL or SASL_SSL in the client, or use a plain listener"
        )
    return f"the peer did not begin a TLS handshake, but listener {listener} speaks TLS"


_REFUSED_BY_PEER: Final = {
    "TLSV1_ALERT_UNKNOWN_CA": "it does not trust the authority that issued this broker's certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "it does not accept this broker's certificate: authority, host name or dates",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it does not accept this broker's certificate: authority, host name or dates",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "this broker's certificate has expired",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "it found no cipher suite that both have",
    "TLSV1_ALERT_PROTOCOL_VERSION": "it accepts none of this listener's versions of TLS (ssl.enabled.protocols)",
}
_REFUSED_HERE: Final = {
    "UNSUPPORTED_PROTOCOL": "it offers none of this listener's versions of TLS (ssl.enabled.protocols)",
    "NO_SHARED_CIPHER": "it offers none of this listener's cipher suites (ssl.cipher.suites)",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it has no certificate, which ssl.client.auth=required demands",
}


def diagnose_handshake(reason: str, detail: str, listener: str) -> str:
    """The reason for which a handshake failed. `reason`: OpenSSL's name; `detail`: its text about a certificate."""
    if reason == "CERTIFICATE_VERIFY_FAILED":
        why = f"its certificate is not accepted: {detail}"
    elif reason in _REFUSED_BY_PEER:
        why = _REFUSED_BY_PEER[reason]
    else:
        why = _REFUSED_HERE.get(reason, reason.lower().replace("_", " ") or "no reason is known")
    return f"no TLS session at listener {listener}: {why}"
