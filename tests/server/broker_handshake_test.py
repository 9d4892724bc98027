"""The exchange between brokers over a real connection, and the file with their secret.

Zone: real.
"""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from ottla.seams import Failure
from ottla.server.connections.broker_handshake import SECRET_MAX, NotABroker, new_secret, prove_to_broker, read_secret
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


def prove(bootstrap: str, secret: bytes) -> None:
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
    with EmbeddedBroker() as broker, pytest.raises(NotABroker, match="closed the connection"):
        prove(broker.bootstrap, SECRET)
