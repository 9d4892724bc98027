"""The exchange between brokers over a real connection, and the file with their secret.

Zone: real.
"""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from ottla.seams import Failure
from ottla.server.connections.broker_handshake import (
    SECRET_MAX,
    BrokerCredential,
    NotABroker,
    new_secret,
    prove_to_broker,
    read_secret,
)
from ottla.server.embedded import EmbeddedBroker

SECRET = b"sixteen bytes and more"


def file_with(tmp_path: Path, content: bytes, mode: int = 0o600) -> str:
    path = tmp_path / "secret"
    path.write_bytes(content)
    path.chmod(mode)
    return str(path)


def test_a_secret_is_what_the_file_holds_without_white_space(tmp_path, caplog) -> None:
    assert read_secret(file_with(tmp_path, b"  " + SECRET + b"\n")) == SECRET
    assert not caplog.records
    assert len({new_secret(), new_secret()}) == 2


def test_a_secret_that_others_may_read_is_complained_of(tmp_path, caplog) -> None:
    read_secret(file_with(tmp_path, SECRET, 0o644))
    assert "chmod 600" in caplog.text


@pytest.mark.parametrize("content", [b"", b"short", b" " * 100, b"x" * (SECRET_MAX + 1)])
def test_a_file_with_no_usable_secret_is_refused(tmp_path, content: bytes) -> None:
    with pytest.raises(Failure, match="a secret has 16 to 4096"):
        read_secret(file_with(tmp_path, content))


def test_a_broker_whose_secret_cannot_be_read_does_not_start(tmp_path) -> None:
    config = {"ottla.inter.broker.secret.file": str(tmp_path / "missing")}
    with pytest.raises(Failure, match="missing"):
        EmbeddedBroker(config=config).start()


def prove(bootstrap: str, secret: bytes | BrokerCredential) -> None:
    async def run() -> None:
        host, _, port = bootstrap.rpartition(":")
        with socket.create_connection((host, int(port)), 10) as sock:
            sock.setblocking(False)
            async with asyncio.timeout(30):
                await prove_to_broker(asyncio.get_running_loop(), sock, secret)

    asyncio.run(run())


@pytest.mark.slow
def test_both_sides_have_to_know_the_secret(tmp_path, caplog) -> None:
    with EmbeddedBroker(config={"ottla.inter.broker.secret.file": file_with(tmp_path, SECRET)}) as broker:
        prove(broker.bootstrap, SECRET)
        with pytest.raises(NotABroker, match="does not know this cluster's secret"):
            prove(broker.bootstrap, b"another secret of some length")
    assert SECRET.decode() not in caplog.text


@pytest.mark.slow
def test_a_broker_without_a_secret_does_not_pass_for_one() -> None:
    with EmbeddedBroker() as broker, pytest.raises(NotABroker, match="does not offer the mechanism"):
        prove(broker.bootstrap, SECRET)


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory):
    users = tmp_path_factory.mktemp("users") / "users.properties"
    users.write_text("broker=broker-word\n")
    users.chmod(0o600)
    config = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "ottla.sasl.users.file": str(users),
        "connection.failed.authentication.delay.ms": "1",
    }
    with EmbeddedBroker(config=config) as broker:
        yield broker


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_broker_logs_in_by_sasl(secure, mechanism: str, caplog) -> None:
    prove(secure.bootstrap, BrokerCredential(mechanism, "broker", "broker-word"))
    wrong = BrokerCredential(mechanism, "broker", "broker-guess")
    with pytest.raises(NotABroker, match="did not accept the user 'broker': Authentication failed"):
        prove(secure.bootstrap, wrong)
    assert "broker-guess" not in caplog.text + repr(wrong)


def test_a_broker_that_does_not_offer_the_mechanism() -> None:
    with EmbeddedBroker() as broker, pytest.raises(NotABroker, match="does not offer the mechanism PLAIN"):
        prove(broker.bootstrap, BrokerCredential("PLAIN", "broker", "broker-word"))
