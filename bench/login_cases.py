"""What bench/fuzz_logins.py sends: the steps of logins, and every kind of wrong message after each of them."""

from __future__ import annotations

import base64
import json
import random
import secrets
import ssl
import struct
import time
from collections.abc import Iterator
from typing import NamedTuple

from joserfc import jwt
from joserfc.jwk import RSAKey

from bench.logins import frame_of
from ottla.security.sasl.scram_client import Exchange, scram_messages
from ottla.wire import messages as m

USER, PASSWORD = "good", "the-password-of-the-good-client"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
HUGE = 600_000
"""More than sasl.server.max.receive.size."""
STEPS = 5
"""Steps of a login: nothing, versions, mechanism, first token, last token."""


class Keys:
    """The key of an issuer of tokens, and a stranger's."""

    def __init__(self) -> None:
        self.own = RSAKey.generate_key(2048, {"kid": "own"})
        self._other = RSAKey.generate_key(2048, {"kid": "other"})
        self.jwks = json.dumps({"keys": [self.own.as_dict(private=False)]})
        now = int(time.time())
        claims = {"sub": USER, "iat": now - 100, "exp": now + 10**6}
        self.good = self._sign(self.own, claims)
        self.bad = [
            self._sign(self._other, claims),
            self._sign(self._other, claims, kid="own"),
            self._sign(self.own, {**claims, "exp": now - 10**6, "iat": now - 2 * 10**6}),
            self._sign(self.own, {**claims, "sub": ""}),
            self._sign(self.own, {**claims, "exp": "never"}),
            self._sign(self.own, {"x": ["y"] * 1000}),
            f"{_part({'alg': 'none'})}.{_part(claims)}.",
            f"{_part({'alg': 'HS256', 'kid': 'own'})}.{_part(claims)}.{_part('signature')}",
            f"{_part({'alg': 'RS256', 'kid': ['own']})}.{_part(claims)}.AAAA",
            f"{_part({'alg': 'RS256', 'kid': 'own', 'x': 'y' * 50_000})}.{_part(claims)}.AAAA",
            "..", "a.b.c", "A" * 200_000, f"{'[' * 10_000}", f"{_part([[]])}.{'W1tb' * 5_000}.",
        ]  # fmt: skip

    @staticmethod
    def _sign(key: RSAKey, claims: dict[str, object], kid: str = "") -> str:
        return jwt.encode({"alg": "RS256", "kid": kid or key.kid}, claims, key, ["RS256"])


def _part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def bearer(token: str) -> bytes:
    """The message of OAUTHBEARER with a token."""
    return f"n,,\x01auth=Bearer {token}\x01\x01".encode()


# -- frames ------------------------------------------------------------------------------------------------------------


def framed(content: bytes) -> bytes:
    """Add the length prefix."""
    return struct.pack(">i", len(content)) + content


def handshake(mechanism: str, version: int) -> bytes:
    """SaslHandshake."""
    return frame_of(m.SaslHandshakeRequest(mechanism=mechanism), version)


def with_token(token: bytes, version: int) -> bytes:
    """A token, as the version of the handshake demands: a frame without a header, or SaslAuthenticate."""
    return framed(token) if version == 0 else frame_of(m.SaslAuthenticateRequest(auth_bytes=token), 2)


class Login(NamedTuple):
    """A login that has begun: what a wrong message can be made of."""

    mechanism: str
    version: int
    exchange: Exchange | None
    """SCRAM's messages."""
    first: bytes
    """The first token, which is right."""


def begin(rng: random.Random, keys: Keys) -> Login:
    """A login of any mechanism."""
    mechanism, version = rng.choice(MECHANISMS), rng.randrange(2)
    if mechanism == "PLAIN":
        return Login(mechanism, version, None, f"\0{USER}\0{PASSWORD}".encode())
    if mechanism == "OAUTHBEARER":
        return Login(mechanism, version, None, bearer(keys.good))
    exchange = scram_messages(mechanism[6:].replace("-", "").lower(), USER, PASSWORD, secrets.token_hex(12))
    return Login(mechanism, version, exchange, next(exchange))


# -- wrong messages ----------------------------------------------------------------------------------------------------


def wrong_tokens(rng: random.Random, keys: Keys, old_final: bytes) -> Iterator[bytes]:
    """Tokens that no login accepts. `old_final`: the last message of an earlier login."""
    name, nonce = f"n={USER}", secrets.token_hex(8)
    yield from (b"", b"\0", b"\0\0\0\0", f"{USER}\0".encode() * 3, b"\0" * 1000)
    yield from (f"\0{USER}\0{PASSWORD}x".encode(), f"x\0{USER}\0{PASSWORD}".encode())
    yield from (f"\0{USER}\0{PASSWORD}\0".encode(), f"\0{USER}\0{PASSWORD}"[:-1].encode())
    yield from (f"\0\0{USER}\0{PASSWORD}".encode(), b"\0\xff\xfe\0\xc3", b"\0" + b"u" * 60_000 + b"\0p")
    for flag in ("y", "p=tls-unique", "p=tls-server-end-point", "q", ""):
        yield f"{flag},,{name},r={nonce}".encode()
    yield f"n,a=admin,{name},r={nonce}".encode()
    yield f"n,,m=x,{name},r={nonce}".encode()
    yield f"n,,{name},r=".encode()
    yield f"n,,n=a=b,r={nonce}".encode()
    yield f"n,,{name},r={nonce},tokenauth=true,{'x=y,' * 50}".encode()
    yield f"n,,{name},r={nonce * 2000}".encode()
    yield f"c=biws,r={nonce},p={'A' * 88}".encode()
    yield f"c=eSws,r={nonce},p=AAAA".encode()
    yield old_final
    yield old_final.replace(b"r=", b"r=0")
    yield from map(bearer, keys.bad)
    yield bearer(keys.good).replace(b"n,,", b"p=x,,")
    yield rng.randbytes(rng.randrange(300))


def wrong_message(rng: random.Random, keys: Keys, old_final: bytes, login: Login) -> bytes:
    """Bytes that are wrong in any state before the end of a login."""
    if rng.random() < 0.6:
        token = rng.choice(list(wrong_tokens(rng, keys, old_final)))
        return with_token(token, login.version if rng.random() < 0.8 else 1 - login.version)
    return rng.choice(list(wrong_frames(rng, login)))


def wrong_frames(rng: random.Random, login: Login) -> Iterator[bytes]:
    """Requests in the wrong state, impossible lengths, and bytes that are not a request."""
    yield handshake(rng.choice(("", "GSSAPI", "x" * 30_000, "plain", *MECHANISMS)), rng.randrange(2)) * 2
    yield frame_of(m.MetadataRequest(topics=None), 1)
    yield frame_of(m.ApiVersionsRequest(), 0) * 3
    yield from (struct.pack(">i", size) + bytes(64) for size in (-1, 0, 1, 7, HUGE, 2**31 - 1, -(2**31)))
    yield with_token(bytes(60_000), login.version)
    yield framed(struct.pack(">hhih", 36, 99, 1, -1))
    yield framed(struct.pack(">hhih", 17, -1, 1, 20_000))
    yield framed(struct.pack(">hhi", rng.randrange(-5, 120), rng.randrange(-1, 20), 1) + rng.randbytes(40))
    yield frame_of(m.SaslAuthenticateRequest(auth_bytes=login.first), 2)[: rng.randrange(4, 30)]
    yield b"GET / HTTP/1.1\r\n\r\n"
    yield rng.randbytes(rng.randrange(1, 200))


# -- TLS ---------------------------------------------------------------------------------------------------------------


def client_hello(context: ssl.SSLContext) -> bytes:
    """The first bytes of a handshake."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    try:
        session.do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()
    raise AssertionError("no answer was needed")


def wrong_hellos(rng: random.Random, hello: bytes) -> Iterator[bytes]:
    """Bytes in place of a handshake, or after its beginning."""
    at = rng.randrange(len(hello))
    yield hello[:at]
    yield hello[:at] + bytes([rng.randrange(256)]) + hello[at + 1 :]
    yield hello + rng.randbytes(rng.randrange(1, 300))
    yield hello * 2
    yield hello + b"\x14\x03\x03\x00\x01\x01" * rng.randrange(1, 3000)
    yield hello + b"\x15\x03\x03\x00\x02" + bytes([rng.choice((1, 2)), rng.randrange(256)])
    yield b"\x16\x03\x01\x40\x00" + rng.randbytes(16_384)
    yield b"\x16\x03\x01\x00\x00" * rng.randrange(1, 2000)
    yield b"\x17\x03\x03\x00\x20" + bytes(32)
    yield framed(struct.pack(">hhih", 18, 0, 1, -1))
    yield rng.randbytes(rng.randrange(1, 2000))
