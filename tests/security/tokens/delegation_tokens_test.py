"""Delegation tokens: who may have which, logins with them, their times, and what a restart or another broker knows.

Zone: real.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ottla.client import AuthenticationError, ClientConfig, Cluster, RefusedError
from ottla.client.admin import TokenAdmin
from ottla.client.admin.tokens import DelegationToken
from ottla.config.broker_authorizer import AUTHORIZERS
from ottla.errors import ErrorCode
from ottla.server.embedded import EmbeddedBroker

SECRET = "the-key-of-all-brokers"
DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    users = tmp_path_factory.mktemp("users") / "users"
    users.write_text("ann=secret\nbob=secret\nboss=secret\n")
    users.chmod(0o600)
    return {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "ottla.sasl.users.file": str(users),
        "delegation.token.secret.key": SECRET,
        "connection.failed.authentication.delay.ms": "1",
        "authorizer.class.name": AUTHORIZERS[0],
        "super.users": "User:boss",
    }


@pytest.fixture(scope="module")
def broker(config: dict[str, str]) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(config=config) as running:
        yield running


def address_of(broker: EmbeddedBroker, listener: str) -> str:
    return next(f"{each.host}:{each.port}" for each in broker.endpoints if each.listener == listener)


def connect(broker: EmbeddedBroker, user: str = "ann", password: str = "secret", **more: str) -> Cluster:
    settings = {
        "bootstrap.servers": address_of(broker, "SASL_PLAINTEXT"),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": password,
        **{name.replace("_", "."): value for name, value in more.items()},
    }
    return Cluster(ClientConfig.from_mapping(settings))


def connect_by(broker: EmbeddedBroker, token: DelegationToken, mechanism: str = "SCRAM-SHA-256") -> Cluster:
    login = "org.apache.kafka.common.security.scram.ScramLoginModule required"
    settings = {
        "bootstrap.servers": address_of(broker, "SASL_PLAINTEXT"),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f'{login} username="{token.token_id}" password="{token.password}" tokenauth="true";',
    }
    return Cluster(ClientConfig.from_mapping(settings))


def create(broker: EmbeddedBroker, user: str = "ann", **more: object) -> DelegationToken:
    with connect(broker, user) as cluster:
        return TokenAdmin(cluster).create_delegation_token(**more)  # type: ignore[arg-type]


def refused(broker: EmbeddedBroker, user: str = "ann", **more: object) -> ErrorCode:
    with pytest.raises(RefusedError) as caught:
        create(broker, user, **more)
    return caught.value.code


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_login_with_a_token_has_the_rights_of_its_owner(broker: EmbeddedBroker, mechanism: str) -> None:
    token = create(broker)
    assert (token.owner, token.requester) == ("User:ann", "User:ann")
    assert token.expires_ms - token.issued_ms == DAY_MS
    assert token.max_ms - token.issued_ms == 7 * DAY_MS
    with connect_by(broker, token, mechanism) as cluster:
        cluster.refresh()
        found = TokenAdmin(cluster)
        with pytest.raises(RefusedError) as caught:
            found.create_delegation_token()
        assert caught.value.code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, "a token makes no tokens"


def test_a_wrong_password_of_a_token_is_refused(broker: EmbeddedBroker) -> None:
    token, other = create(broker), create(broker)
    for each in (replace(token, hmac=other.hmac), replace(token, token_id="unknown")):
        with pytest.raises(AuthenticationError), connect_by(broker, each) as cluster:
            cluster.refresh()
    # Without tokenauth=true it is the name of a user.
    as_user = connect(broker, token.token_id, token.password, sasl_mechanism="SCRAM-SHA-256")
    with pytest.raises(AuthenticationError), as_user as cluster:
        cluster.refresh()


def test_owners_and_renewers_change_a_token(broker: EmbeddedBroker) -> None:
    token = create(broker, renewers=["User:bob"], max_lifetime_ms=2 * DAY_MS)
    assert token.max_ms - token.issued_ms == 2 * DAY_MS
    for user in ("ann", "bob"):
        with connect(broker, user) as cluster:
            assert TokenAdmin(cluster).renew_delegation_token(token.hmac, period_ms=9 * DAY_MS) == token.max_ms
    with connect(broker, "boss") as cluster, pytest.raises(RefusedError) as caught:
        TokenAdmin(cluster).renew_delegation_token(token.hmac)
    assert caught.value.code == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    with connect(broker, "bob") as cluster:
        TokenAdmin(cluster).expire_delegation_token(token.hmac)
        with pytest.raises(RefusedError) as caught:
            TokenAdmin(cluster).renew_delegation_token(token.hmac)
    assert caught.value.code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    with pytest.raises(AuthenticationError), connect_by(broker, token) as cluster:
        cluster.refresh()


def test_an_expired_token_lets_no_one_in(broker: EmbeddedBroker) -> None:
    token = create(broker)
    with connect(broker) as cluster:
        expires_ms = TokenAdmin(cluster).expire_delegation_token(token.hmac, period_ms=1)
        while time.time() * 1000 <= expires_ms + 1:
            time.sleep(0.001)
        with pytest.raises(RefusedError) as caught:
            TokenAdmin(cluster).renew_delegation_token(token.hmac)
    assert caught.value.code == ErrorCode.DELEGATION_TOKEN_EXPIRED
    with pytest.raises(AuthenticationError), connect_by(broker, token) as cluster:
        cluster.refresh()


def test_tokens_for_others_need_a_permission(broker: EmbeddedBroker) -> None:
    assert refused(broker, owner="User:bob") == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    assert refused(broker, renewers=["Group:x"]) == ErrorCode.INVALID_PRINCIPAL_TYPE
    token = create(broker, "boss", owner="User:bob")
    assert (token.owner, token.requester) == ("User:bob", "User:boss")


def test_everyone_sees_the_own_tokens(broker: EmbeddedBroker) -> None:
    token = create(broker, "bob", renewers=["User:ann"])
    mine = create(broker, "bob")
    seen = {}
    for user in ("ann", "bob", "boss"):
        with connect(broker, user) as cluster:
            seen[user] = {each.token_id: each for each in TokenAdmin(cluster).describe_delegation_tokens()}
    assert token.token_id in seen["ann"]
    assert mine.token_id not in seen["ann"]
    assert {token.token_id, mine.token_id} <= seen["bob"].keys() & seen["boss"].keys()
    assert seen["bob"][token.token_id] == token
    with connect(broker, "boss") as cluster:
        of_bob = TokenAdmin(cluster).describe_delegation_tokens(["User:bob"])
    assert {each.owner for each in of_bob} == {"User:bob"}


def test_a_listener_without_logins_has_no_tokens(broker: EmbeddedBroker) -> None:
    with (
        Cluster(ClientConfig(bootstrap_servers=address_of(broker, "PLAINTEXT"))) as cluster,
        pytest.raises(RefusedError) as caught,
    ):
        TokenAdmin(cluster).create_delegation_token()
    assert caught.value.code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


def test_without_a_key_there_are_no_tokens(config: dict[str, str]) -> None:
    without = {key: value for key, value in config.items() if not key.startswith("delegation")}
    with EmbeddedBroker(config=without) as broker:
        assert refused(broker) == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED


def test_tokens_outlive_a_restart(config: dict[str, str], tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path, config=config) as broker:
        token, gone = create(broker), create(broker)
        with connect(broker) as cluster:
            TokenAdmin(cluster).expire_delegation_token(gone.hmac)
    with EmbeddedBroker(tmp_path, config=config) as broker:
        with connect_by(broker, token) as cluster:
            cluster.refresh()
        with pytest.raises(AuthenticationError), connect_by(broker, gone) as cluster:
            cluster.refresh()
    with (
        EmbeddedBroker(tmp_path, config={**config, "delegation.token.secret.key": "another"}) as broker,
        pytest.raises(AuthenticationError),
        connect_by(broker, token) as cluster,
    ):
        cluster.refresh()


def test_expired_tokens_are_removed(config: dict[str, str]) -> None:
    often = {**config, "delegation.token.expiry.check.interval.ms": "10"}
    with EmbeddedBroker(config=often) as broker, connect(broker) as cluster:
        admin = TokenAdmin(cluster)
        kept, token = admin.create_delegation_token(), admin.create_delegation_token()
        admin.expire_delegation_token(token.hmac, period_ms=1)
        end = time.monotonic() + 60
        while len(admin.describe_delegation_tokens()) > 1:
            assert time.monotonic() < end
            time.sleep(0.01)
        assert [each.token_id for each in admin.describe_delegation_tokens()] == [kept.token_id]
