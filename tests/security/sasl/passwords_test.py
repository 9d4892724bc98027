"""PLAIN and SCRAM: right logins, and every wrong message.

Zone: pure.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Any

import pytest

from ottla.client.security.login import scram_exchange
from ottla.errors import ErrorCode
from ottla.security.sasl.mechanism import Identity, SaslFailure
from ottla.security.sasl.plain import PlainExchange, StaticPasswords
from ottla.security.sasl.scram import ScramExchange, TokenCredential
from ottla.security.sasl.scram_credentials import (
    ITERATIONS_MIN,
    CredentialTable,
    ScramCredential,
    ScramMechanism,
    credential_from_password,
    credential_from_salted,
    decode_credential,
    encode_credential,
    fault_of_alteration,
    salt_from_random,
)

SHA_256, SHA_512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512
NOW_MS = 1_700_000_000_000


# -- PLAIN -------------------------------------------------------------------------------------------------------------

PASSWORDS = StaticPasswords({"ann": "secret", "bob": "pässword"})


@pytest.mark.parametrize(
    ("token", "user"),
    [
        (b"\0ann\0secret", "ann"),
        (b"ann\0ann\0secret", "ann"),
        ("\0bob\0pässword".encode(), "bob"),
    ],
)
def test_plain(token: bytes, user: str) -> None:
    exchange = PlainExchange(PASSWORDS)
    assert exchange.accept_token(token, NOW_MS) == b""
    assert exchange.identity == Identity(user)
    assert exchange.identity.principal == f"User:{user}"


WRONG = "Authentication failed: Invalid username or password"


@pytest.mark.parametrize(
    ("token", "text"),
    [
        (b"", "Invalid SASL/PLAIN response: expected 3 tokens, got 1"),
        (b"ann", "Invalid SASL/PLAIN response: expected 3 tokens, got 1"),
        (b"ann\0secret", "Invalid SASL/PLAIN response: expected 3 tokens, got 2"),
        (b"\0ann\0secret\0", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (b"\0" * 10, "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (b"\0" * 60_000, "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (b"\0\0secret", "Authentication failed: username not specified"),
        (b"\0ann\0", "Authentication failed: password not specified"),
        (b"\0ann\0Secret", WRONG),
        (b"\0ann\0secret ", WRONG),
        (b"\0eve\0secret", WRONG),
        (b"\0ann\0\xff", WRONG),
        (b"\0" + b"x" * 60_000 + b"\0secret", WRONG),
        (
            b"bob\0ann\0secret",
            "Authentication failed: Client requested an authorization id that is different from username",
        ),
    ],
)
def test_plain_that_fails(token: bytes, text: str) -> None:
    exchange = PlainExchange(PASSWORDS)
    with pytest.raises(SaslFailure) as failure:
        exchange.accept_token(token, NOW_MS)
    assert (str(failure.value), failure.value.for_client) == (text, True)
    assert exchange.identity is None


# -- SCRAM -------------------------------------------------------------------------------------------------------------


class Tokens:
    """Delegation tokens, as the store will have them."""

    def find_token(self, mechanism: ScramMechanism, token_id: str) -> TokenCredential | None:
        if token_id != "token-1":
            return None
        return TokenCredential(credential_from_password(mechanism, b"salt", "hmac"), "ann", NOW_MS + 10)


def users_with(**passwords: str) -> CredentialTable:
    users = CredentialTable(b"key")
    for user, password in passwords.items():
        users.replace_user(
            user, {mechanism: credential_from_password(mechanism, b"s4lt", password) for mechanism in ScramMechanism}
        )
    return users


USERS = users_with(ann="secret")


def log_in(exchange: ScramExchange, client: Any, now_ms: int = NOW_MS) -> None:
    """Run the product's own client against the exchange; returns when the client has checked the broker's proof."""
    message = next(client)
    while True:
        try:
            message = client.send(exchange.accept_token(message, now_ms))
        except StopIteration:
            return


@pytest.mark.parametrize("mechanism", list(ScramMechanism))
def test_scram_with_our_client(mechanism: ScramMechanism) -> None:
    exchange = ScramExchange(mechanism, USERS, "server")
    log_in(exchange, scram_exchange(mechanism.algorithm, "ann", "secret", "client"))
    assert exchange.identity == Identity("ann")


@pytest.mark.parametrize("user", ["a,b=c", "=2C", "CN=x,O=y", "é"])
def test_scram_names_with_commas_and_equal_signs(user: str) -> None:
    exchange = ScramExchange(SHA_256, users_with(**{user: "secret"}), "server")
    log_in(exchange, scram_exchange("sha256", user, "secret", "client"))
    assert exchange.identity == Identity(user)


def test_scram_of_rfc_7677() -> None:
    users = CredentialTable(b"key")
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    users.replace_user("user", {SHA_256: credential_from_password(SHA_256, salt, "pencil")})
    exchange = ScramExchange(SHA_256, users, "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    assert exchange.accept_token(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO", 0) == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    final = (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert exchange.accept_token(final, 0) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert exchange.identity == Identity("user")
    with pytest.raises(SaslFailure, match="after the final"):
        exchange.accept_token(final, 0)
    # The same final message, replayed to a broker with another nonce.
    other = ScramExchange(SHA_256, users, "other")
    other.accept_token(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO", 0)
    with pytest.raises(SaslFailure, match="nonce"):
        other.accept_token(final, 0)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n",
        b"n,",
        b"n,,",
        b"n,,n=ann",
        b"n,,r=x,n=ann",
        b"n,,n=,r=x",
        b"n,,n=ann,r=",
        b"n,,n=ann,r= ",
        b"n,,n=ann,r=\xc3\xa9",
        b"n,,n=an=n,r=x",
        b"n,,n=an=2c,r=x",
        b"n,,n=a\0n,r=x",
        b"n,,m=ext,n=ann,r=x",
        b"n,,n=ann,r=x,junk",
        b"n,,n=ann,r=x,1=2",
        b"n,,n=ann,r=x" + b",a=b" * 20,
        b"n,x=ann,n=ann,r=x",
        b"n,a=,n=ann,r=x",
        b"y,,n=ann,r=x",
        b"p=tls-unique,,n=ann,r=x",
        b"p=tls-exporter,a=ann,n=ann,r=x",
        b"N,,n=ann,r=x",
        b"\xff\xfe",
        b"n,," + b"n=" * 30_000,
        b"c=biws,r=x,p=AAAA",
    ],
)
def test_scram_first_messages_that_are_refused(message: bytes) -> None:
    exchange = ScramExchange(SHA_256, USERS, "server")
    with pytest.raises(SaslFailure) as failure:
        exchange.accept_token(message, NOW_MS)
    assert not failure.value.for_client
    assert exchange.identity is None


@pytest.mark.parametrize("name", ["ann", "eve"])
def test_scram_for_another_user_is_refused_whether_or_not_the_user_exists(name: str) -> None:
    exchange = ScramExchange(SHA_256, USERS, "server")
    with pytest.raises(SaslFailure, match="authorization id") as failure:
        exchange.accept_token(f"n,a=boss,n={name},r=x".encode(), NOW_MS)
    assert failure.value.for_client


def final_message(
    exchange: ScramExchange, first: bytes, header: bytes, password: str = "secret", nonce: str = ""
) -> bytes:
    """A final message with the right proof for a first one, written without the product's client."""
    answer = exchange.accept_token(first, NOW_MS).decode()
    nonce, salt = nonce or answer.split(",")[0][2:], base64.b64decode(answer.split(",")[1][2:])
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, int(answer.rpartition("=")[2]))
    key = hmac.digest(salted, b"Client Key", "sha256")
    without_proof = f"c={base64.b64encode(header).decode()},r={nonce}"
    signed = f"{first[first.index(b'n=') :].decode()},{answer},{without_proof}".encode()
    signature = hmac.digest(hashlib.sha256(key).digest(), signed, "sha256")
    proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
    return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()


@pytest.mark.parametrize("header", [b"n,,", b"n,a=ann,"])
def test_scram_by_hand(header: bytes) -> None:
    exchange = ScramExchange(SHA_256, USERS, "server")
    exchange.accept_token(final_message(exchange, header + b"n=ann,r=x", header), NOW_MS)
    assert exchange.identity == Identity("ann")


@pytest.mark.parametrize("nonce", ["server", "x", "yserver", "xxserver", "xserver2", "xother"])
def test_scram_with_another_nonce_is_refused_even_if_the_proof_is_right(nonce: str) -> None:
    exchange = ScramExchange(SHA_256, USERS, "server")
    with pytest.raises(SaslFailure, match="nonce"):
        exchange.accept_token(final_message(exchange, b"n,,n=ann,r=x", b"n,,", nonce=nonce), NOW_MS)


@pytest.mark.parametrize("header", [b"y,,", b"n,a=ann,", b"p=tls-unique,,", b""])
def test_scram_with_another_header_is_refused_even_if_the_proof_is_right(header: bytes) -> None:
    exchange = ScramExchange(SHA_256, USERS, "server")
    with pytest.raises(SaslFailure, match="channel binding"):
        exchange.accept_token(final_message(exchange, b"n,,n=ann,r=x", header), NOW_MS)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"c=biws", b"c=eSws"),
        (b"c=biws", b"c="),
        (b"c=biws,", b""),
        (b"c=biws", b"c=bi ws"),
        (b"r=xserver", b"r=x"),
        (b"r=xserver", b"r=server"),
        (b"r=xserver", b"r=xxserver"),
        (b"r=xserver", b"r=yserver"),
        (b"r=xserver", b"r=xserver "),
        (b",p=", b",q="),
        (b",p=", b",p=AAAA"),
        (b",p=", b",,p="),
        (b",p=", b",x=y,p="),
        (b"c=biws", b"\xff"),
    ],
)
def test_scram_final_messages_that_are_refused(old: bytes, new: bytes) -> None:
    exchange = ScramExchange(SHA_256, USERS, "server")
    final = final_message(exchange, b"n,,n=ann,r=x", b"n,,")
    assert final.count(old) >= 1
    with pytest.raises(SaslFailure) as failure:
        exchange.accept_token(final.replace(old, new, 1), NOW_MS)
    assert not failure.value.for_client
    assert exchange.identity is None


@pytest.mark.parametrize("user", ["ann", "eve"])
def test_a_wrong_password_and_an_unknown_user_look_the_same(user: str) -> None:
    answers, failures = set(), set()
    for _ in range(2):
        exchange = ScramExchange(SHA_256, USERS, "server")
        final = final_message(exchange, f"n,,n={user},r=x".encode(), b"n,,", "guess")
        answers.add(exchange._answer)
        with pytest.raises(SaslFailure) as failure:
            exchange.accept_token(final, NOW_MS)
        failures.add((str(failure.value), failure.value.for_client))
    assert len(answers) == 1, "the salt of an unknown user is the same each time"
    assert answers.pop().endswith(f",i={ITERATIONS_MIN}")
    assert failures == {("Invalid client credentials", False)}


def test_decoys_resemble_the_users_of_the_cluster() -> None:
    users = CredentialTable(b"key")
    salt = salt_from_random(bytes(range(32)))
    assert len(salt) == 26
    assert salt.isalnum()
    for number in range(3):
        user = {SHA_256: credential_from_password(SHA_256, salt, "x", 4097)}
        users.replace_user(f"u{number}", user)
    for number in range(9):
        users.replace_user(f"old{number}", {SHA_256: ScramCredential(salt, b"", b"", 5000)})
        users.replace_user(f"old{number}", {})
    found = users.find_credential(SHA_256, "eve")
    assert not found.is_real
    assert found.credential.iterations == 4097
    assert len(found.credential.salt) == len(salt)
    assert users.find_credential(SHA_512, "eve").credential.salt != found.credential.salt
    assert users.find_credential(SHA_512, "u1").is_real is False
    assert users.find_credential(SHA_256, "u1").is_real
    assert CredentialTable(b"other").find_credential(SHA_256, "eve").credential.salt != found.credential.salt


def test_a_stored_credential_with_few_iterations_is_not_used() -> None:
    users = CredentialTable(b"key")
    weak = credential_from_password(SHA_256, b"salt", "secret", 1000)
    users.replace_user("ann", {SHA_256: weak})
    assert not users.find_credential(SHA_256, "ann").is_real
    assert users.credential_of(SHA_256, "ann") == weak


def test_delegation_tokens() -> None:
    def exchange_of(now_ms: int, password: str = "hmac", token: str = "token-1") -> ScramExchange:
        exchange = ScramExchange(SHA_256, USERS, "server", Tokens())
        first = f"n,,n={token},r=x,tokenauth=true".encode()
        exchange.accept_token(final_message(exchange, first, b"n,,", password), now_ms)
        return exchange

    assert exchange_of(NOW_MS).identity == Identity("ann", NOW_MS + 10, by_token=True)
    with pytest.raises(SaslFailure, match="expired"):
        exchange_of(NOW_MS + 10)
    with pytest.raises(SaslFailure, match="Invalid client credentials"):
        exchange_of(NOW_MS, "forged")
    with pytest.raises(SaslFailure, match="Invalid client credentials"):
        exchange_of(NOW_MS, token="token-2")
    # A user's name is not a token, and a token is not a user's name.
    with pytest.raises(SaslFailure, match="Invalid client credentials"):
        exchange_of(NOW_MS, "secret", "ann")
    plain = ScramExchange(SHA_256, USERS, "server", Tokens())
    with pytest.raises(SaslFailure, match="Invalid client credentials"):
        plain.accept_token(final_message(plain, b"n,,n=token-1,r=x", b"n,,", "hmac"), NOW_MS)


# -- credentials -------------------------------------------------------------------------------------------------------


def test_credentials_have_kafkas_form() -> None:
    credential = credential_from_password(SHA_256, base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="), "pencil")
    text = encode_credential(credential)
    assert text == (
        "salt=W22ZaJ0SNY7soEsUEjb6gQ==,stored_key=WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=,"
        "server_key=wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=,iterations=4096"
    )
    assert decode_credential(SHA_256, text) == credential
    assert decode_credential(SHA_256, ",".join(reversed(text.split(",")))) == credential


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("salt=", "salz="),
        (",iterations=4096", ""),
        ("iterations=4096", "iterations=x"),
        ("iterations=4096", "iterations=-1"),
        ("iterations=4096", "iterations=99999999999"),
        ("salt=c2FsdA==", "salt="),
        ("salt=c2FsdA==", "salt=ä"),
        ("salt=c2FsdA==", "salt=c2FsdA"),
        ("stored_key=", "stored_key=AAAA"),
        ("server_key=", "other=1,server_key="),
    ],
)
def test_credentials_that_cannot_be_read(old: str, new: str) -> None:
    text = encode_credential(credential_from_password(SHA_256, b"salt", "secret"))
    assert old in text
    with pytest.raises(ValueError, match="a credential for SCRAM-SHA-256") as refused:
        decode_credential(SHA_256, text.replace(old, new))
    assert "c2FsdA" not in str(refused.value)
    with pytest.raises(ValueError, match="another size"):
        decode_credential(SHA_512, text)


def test_a_salted_password_is_enough() -> None:
    salted = hashlib.pbkdf2_hmac("sha512", b"secret", b"salt", 4096)
    assert credential_from_salted(SHA_512, b"salt", salted, 4096) == credential_from_password(
        SHA_512, b"salt", "secret"
    )


@pytest.mark.parametrize(
    ("user", "mechanism", "iterations", "code"),
    [
        ("ann", 1, 4096, None),
        ("ann", 2, 16384, None),
        ("ann", 2, None, None),
        ("", 1, 4096, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ("ann", 0, 4096, ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ("ann", 3, None, ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ("ann", 1, 4095, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ("ann", 1, 16385, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ("ann", 1, -1, ErrorCode.UNACCEPTABLE_CREDENTIAL),
    ],
)
def test_alterations(user: str, mechanism: int, iterations: int | None, code: ErrorCode | None) -> None:
    fault = fault_of_alteration(user, mechanism, iterations)
    assert (None if fault is None else fault[0]) == code
