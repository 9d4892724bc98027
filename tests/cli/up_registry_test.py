"""`ottla up --schema-registry-port`: the registry runs as long as the brokers, and comes back when it is killed.

Zone: real.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from testbench.ports import HOST, free_port

pytestmark = [pytest.mark.slow, pytest.mark.interop]

WAIT_S = 120.0


class Up:
    """`ottla up` with a registry."""

    def __init__(self, directory: Path, *words: str) -> None:
        self.log, self.port = directory / "log", free_port()
        command = [sys.executable, "-m", "ottla", "up", "--data", str(directory / "data"), "--port", str(free_port())]
        with self.log.open("w") as log:
            command += ["--schema-registry-port", str(self.port), *words]
            self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)
        self.await_starts(1)

    def await_starts(self, count: int) -> None:
        """Wait until the registry was ready so many times."""
        self.await_true(lambda: len(re.findall("schema registry ready at", self.log.read_text())) >= count)

    def await_true(self, is_true: Callable[[], bool]) -> None:
        until = time.monotonic() + WAIT_S
        while not is_true():
            assert time.monotonic() < until, self.log.read_text()
            time.sleep(0.02)

    @property
    def registry_pid(self) -> int:
        return int(re.findall(r"started the schema registry \(pid (\d+)\)", self.log.read_text())[-1])

    def answers(self) -> bool:
        """Whether the registry's port is open."""
        with socket.socket() as tried:
            return tried.connect_ex((HOST, self.port)) == 0

    def end(self, number: signal.Signals) -> None:
        self.process.send_signal(number)
        assert self.process.wait(WAIT_S) == (-number if number == signal.SIGKILL else 0)


@contextmanager
def running(directory: Path, *words: str) -> Iterator[Up]:
    up = Up(directory, *words)
    try:
        yield up
    finally:
        if up.process.poll() is None:
            up.end(signal.SIGTERM)


@contextmanager
def client_of(url: str, **settings: str) -> Iterator[SchemaRegistryClient]:
    """Confluent's client, whose connections are closed afterwards."""
    made = SchemaRegistryClient({"url": url, **settings})
    try:
        yield made
    finally:
        made._rest_client.session.close()


def test_a_registry_that_is_killed_comes_back_and_ends_with_the_broker(tmp_path: Path) -> None:
    with running(tmp_path) as up:
        with client_of(f"http://{HOST}:{up.port}") as client:
            number = client.register_schema("orders-value", Schema('"long"', "AVRO"))
        os.kill(up.registry_pid, signal.SIGKILL)
        up.await_starts(2)
        with client_of(f"http://{HOST}:{up.port}") as client:
            assert client.get_latest_version("orders-value").schema_id == number
        assert "the schema registry ended: exit status -9; starting it again" in up.log.read_text()
        up.end(signal.SIGINT)
        assert not up.answers()
        assert "did not stop" not in up.log.read_text()


def test_a_registry_ends_with_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    with running(tmp_path, "--brokers", "1") as up:
        assert up.answers()
        up.end(signal.SIGKILL)
        up.await_true(lambda: not up.answers())


def test_a_secure_registry_has_tls_and_the_users_of_the_brokers(tmp_path: Path) -> None:
    with running(tmp_path, "--secure") as up:
        files = tmp_path / "data-security"
        assert (files / "registry-users").stat().st_mode & 0o777 == 0o600
        user = (files / "registry-users").read_text().strip()
        trusted = {"ssl.ca.location": str(files / "ca.pem")}
        with client_of(f"https://localhost:{up.port}", **trusted, **{"basic.auth.user.info": user}) as client:
            assert client.register_schema("orders-value", Schema('"long"', "AVRO")) == 1
        with pytest.raises(Exception, match="401"), client_of(f"https://localhost:{up.port}", **trusted) as client:
            client.get_subjects()
