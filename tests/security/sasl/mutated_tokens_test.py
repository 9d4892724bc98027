"""Mutated tokens of every mechanism: a failure of the login is the only outcome, and nobody gets in.

Zone: pure.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from tests.security.sasl.oauthbearer_test import CLAIMS, NOW_MS, bearer, tokens_with, unsecured
from tests.security.sasl.passwords_test import PASSWORDS, SHA_256, SHA_512, USERS, Tokens, final_message

from ottla.security.sasl.mechanism import SaslExchange, SaslFailure
from ottla.security.sasl.oauthbearer import OauthBearerExchange
from ottla.security.sasl.plain import PlainExchange
from ottla.security.sasl.scram import ScramExchange

ROUNDS = 3_000
PIECES = (b"\0", b"\x01", b",", b"=", b"n,,", b"a=", b"c=", b"r=", b"p=", b"=2C", b"\xff", b"\xc3\xa9", b"ann", b"[[[[")


def mutate(rng: random.Random, token: bytes) -> bytes:
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(token) + 1)
        match rng.randrange(4):
            case 0:
                token = token[:at] + rng.choice(PIECES) + token[at:]
            case 1:
                token = token[:at] + token[at + rng.randrange(1, 9) :]
            case 2:
                token = token[:at] + bytes([rng.randrange(256)]) + token[at + 1 :]
            case _:
                token = token[:at] + token[rng.randrange(len(token) + 1) :]
    return token


def scram_after_first() -> tuple[SaslExchange, bytes]:
    exchange = ScramExchange(SHA_256, USERS, "server")
    return exchange, final_message(exchange, b"n,a=ann,n=ann,r=x,e=f", b"n,a=ann,")


CASES: list[Callable[[], tuple[SaslExchange, bytes]]] = [
    lambda: (PlainExchange(PASSWORDS), b"ann\0ann\0secret"),
    lambda: (ScramExchange(SHA_512, USERS, "server", Tokens()), b"n,a=ann,n=ann,r=x,tokenauth=true"),
    scram_after_first,
    lambda: (OauthBearerExchange(tokens_with()), bearer(unsecured(CLAIMS), "n,a=ann,")),
]


@pytest.mark.parametrize("case", CASES, ids=["plain", "scram first", "scram final", "oauthbearer"])
def test_mutated_tokens(case: Callable[[], tuple[SaslExchange, bytes]]) -> None:
    rng = random.Random(7)
    exchange, token = case()
    exchange.accept_token(token, NOW_MS)
    outcomes = set()
    for _ in range(ROUNDS // 10 if case is scram_after_first else ROUNDS):
        exchange, token = case()
        mutated = mutate(rng, token)
        try:
            exchange.accept_token(mutated, NOW_MS)
        except SaslFailure:
            outcomes.add("failure")
            assert exchange.identity is None
        if exchange.identity is not None:
            assert exchange.identity.user == "ann", mutated
    assert outcomes
