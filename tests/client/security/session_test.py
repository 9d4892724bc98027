"""Sessions that expire (KIP-368), with a scripted broker: no request is sent on a connection after its session.

Zone: real.
"""

from __future__ import annotations

import time

from tests.client.conftest import Request, ScriptedBroker

from ottla.client import ClientConfig, Cluster
from ottla.wire.apis import ApiKey
from ottla.wire.messages import SaslAuthenticateResponse, SaslHandshakeResponse

LIFETIME_MS = 20


def test_an_expired_session_is_replaced_before_the_next_request(broker: ScriptedBroker) -> None:
    logins: list[bytes] = []

    def log_in(request: Request) -> bytes:
        logins.append(bytes(request.message().auth_bytes))  # type: ignore[attr-defined]
        return request.reply(SaslAuthenticateResponse(session_lifetime_ms=LIFETIME_MS))

    broker.on[ApiKey.SASL_HANDSHAKE] = lambda request: request.reply(SaslHandshakeResponse(mechanisms=["PLAIN"]))
    broker.on[ApiKey.SASL_AUTHENTICATE] = log_in
    settings = {
        "bootstrap.servers": broker.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "alice",
        "sasl.password": "secret",
    }
    with Cluster(ClientConfig.from_mapping(settings)) as cluster:
        for _ in range(3):
            cluster.refresh(())
            time.sleep(2 * LIFETIME_MS / 1000)  # the session's lifetime
    assert logins == [b"\0alice\0secret"] * len(logins)
    assert len(logins) == broker.connections >= 3
