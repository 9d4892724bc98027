"""SCRAM (RFC 5802) with SHA-256 or SHA-512, the connecting side, without channel binding.

Zone: pure. A generator of messages; the nonce is an argument. Clients use it, and brokers that log in to others.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Generator
from typing import Final

from ottla.security.sasl.mechanism import SaslFailure

Exchange = Generator[bytes, bytes, None]
"""Yields the client's messages, receives the broker's; it ends after the last message of the broker."""

ITERATIONS_MAX: Final = 1_000_000
"""More iterations would let a false broker waste this machine's CPU; Kafka's tools set 4,096 to 16,384."""


def scram_messages(algorithm: str, user: str, password: str, nonce: str, *, with_token: bool = False) -> Exchange:
    """One login. algorithm: sha256 or sha512; nonce: printable ASCII without commas, never used before.

    with_token: user and password are the id and the HMAC of a delegation token (KIP-48).

    Raises SaslFailure if the broker refuses, breaks the protocol, or cannot prove that it knows the password;
    for_client: the broker refuses.
    """
    # The equals sign first, else those of `=2C` would be escaped as well.
    name = user.replace("=", "=3D").replace(",", "=2C")
    first = f"n={name},r={nonce}{',tokenauth=true' if with_token else ''}"
    server_first = (yield f"n,,{first}".encode()).decode("utf-8", "replace")
    said = _parse_attributes(server_first)
    salt, rounds = _salt_of(said), _iterations_of(said)
    # The broker must extend our nonce: otherwise an old answer could be replayed.
    if not said.get("r", "").startswith(nonce) or said["r"] == nonce:
        raise SaslFailure("the broker answered SCRAM with a wrong nonce")
    salted = hashlib.pbkdf2_hmac(algorithm, password.encode(), salt, rounds)
    # `biws` is `n,,` in base64: the header of the first message, repeated.
    final = f"c=biws,r={said['r']}"
    signed = f"{first},{server_first},{final}".encode()
    key = hmac.digest(salted, b"Client Key", algorithm)
    signature = hmac.digest(hashlib.new(algorithm, key).digest(), signed, algorithm)
    proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
    server_final = _parse_attributes(
        (yield f"{final},p={base64.b64encode(proof).decode()}".encode()).decode("utf-8", "replace")
    )
    # The broker proves that it knows the password; without this check any server would be accepted.
    expected = hmac.digest(hmac.digest(salted, b"Server Key", algorithm), signed, algorithm)
    if not hmac.compare_digest(_decode_base64(server_final.get("v", "")), expected):
        raise SaslFailure("the broker cannot prove that it knows this password")


def _parse_attributes(message: str) -> dict[str, str]:
    found = dict(part.split("=", 1) for part in message.split(",") if "=" in part)
    if "e" in found:
        raise SaslFailure(f"the broker refuses the login: {found['e'][:100]}", for_client=True)
    return found


def _salt_of(said: dict[str, str]) -> bytes:
    salt = _decode_base64(said.get("s", ""))
    if not salt:
        raise SaslFailure("the broker sent SCRAM without a salt")
    return salt


def _iterations_of(said: dict[str, str]) -> int:
    text = said.get("i", "")
    rounds = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    if not 0 < rounds <= ITERATIONS_MAX:
        raise SaslFailure(f"the broker asks for {text[:20] or 'no'} iterations of SCRAM")
    return rounds


def _decode_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""
