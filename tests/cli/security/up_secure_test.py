"""`ottla up --secure`: the files that it makes are all that a client needs, and nothing works without them.

Zone: real.
"""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient
from testbench.ports import free_port

from ottla.cli.main import cli


class Up(NamedTuple):
    process: subprocess.Popen[str]
    files: Path
    bootstrap: str

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(120) == 0
        assert self.process.stdout is not None
        self.process.stdout.close()


def start(data: Path, *words: str) -> Up:
    command = [sys.executable, "-m", "ottla", "up", "--secure", "--data", str(data), *words]
    with (data.parent / "log").open("a") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    # Several brokers have a line each, before that of all.
    line = next((line for line in process.stdout if line.startswith("ready bootstrap=")), "")
    assert line, (data.parent / "log").read_text()
    return Up(process, data.with_name(f"{data.name}-security"), line.strip().partition("=")[2])


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Up]:
    up = start(tmp_path / "data", "--port", str(free_port()))
    yield up
    if up.process.poll() is None:
        up.stop()


def run(*words: str) -> int:
    done = CliRunner().invoke(cli, [*words, "--timeout", "60"])
    print(done.output)  # shown if the test fails
    return done.exit_code


def librdkafka(up: Up) -> AdminClient:
    lines = (up.files / "librdkafka.properties").read_text().splitlines()
    return AdminClient(
        {**dict(line.split("=", 1) for line in lines), "bootstrap.servers": up.bootstrap, "log_level": 0}
    )


@pytest.mark.slow
@pytest.mark.interop
def test_the_files_are_all_that_a_client_needs(broker: Up, tmp_path: Path) -> None:
    settings = str(broker.files / "client.properties")
    assert run("topic", "create", "t", "--command-config", settings) == 0
    assert "t" in librdkafka(broker).list_topics(timeout=60).topics
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in broker.files.iterdir()}
    assert {name for name, mode in modes.items() if mode != 0o600} == {"ca.pem"}
    password = (broker.files / "users").read_text().strip().partition("=")[2]
    assert len(password) >= 32
    assert password not in (tmp_path / "log").read_text()


@pytest.mark.slow
def test_without_the_files_nothing_works(broker: Up, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.properties"
    text = (broker.files / "client.properties").read_text()
    password = (broker.files / "users").read_text().strip().partition("=")[2]
    for settings in (
        text.replace(password, "guess"),
        text.replace("SASL_SSL", "SSL"),
        text.replace("SASL_SSL", "SASL_PLAINTEXT"),
        f"bootstrap.servers={broker.bootstrap}\n",
        "\n".join(line for line in text.splitlines() if "truststore" not in line),
    ):
        wrong.write_text(settings)
        assert CliRunner().invoke(cli, ["topic", "list", "--command-config", str(wrong), "--timeout", "3"]).exit_code


@pytest.mark.slow
def test_a_user_may_do_what_its_acls_say(broker: Up, tmp_path: Path) -> None:
    admin = ["--command-config", str(broker.files / "client.properties")]
    secret = tmp_path / "ann.password"
    assert run("topic", "create", "t", *admin) == 0
    assert run("user", "create", "ann", "--generate", str(secret), *admin) == 0
    own = tmp_path / "ann.properties"
    lines = (broker.files / "client.properties").read_text().splitlines()
    login = [f"sasl.username=ann\nsasl.password={secret.read_text().strip()}"]
    own.write_text("\n".join([line for line in lines if "jaas" not in line] + login))
    as_ann = ["--command-config", str(own)]
    assert run("topic", "describe", "t", *as_ann) != 0
    assert run("acl", "add", "--allow", "ann", "--producer", "--topic", "t", *admin) == 0
    assert run("topic", "describe", "t", *as_ann) == 0
    assert run("topic", "delete", "t", "--yes", *as_ann) != 0


@pytest.mark.slow
def test_the_next_start_uses_the_same_files(broker: Up, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in broker.files.iterdir()}
    broker.stop()
    again = start(tmp_path / "data", "--port", broker.bootstrap.rpartition(":")[2])
    assert {path.name: path.read_bytes() for path in broker.files.iterdir()} == before
    assert run("cluster", "describe", "--command-config", str(broker.files / "client.properties")) == 0
    again.stop()
    os.unlink(broker.files / "users")
    words = ["up", "--secure", "--data", str(tmp_path / "data"), "--port", "0"]
    refused = CliRunner().invoke(cli, words)
    assert refused.exit_code == 2
    assert "not all files" in refused.stderr


@pytest.mark.slow
@pytest.mark.interop
def test_several_brokers(tmp_path: Path) -> None:
    up = start(tmp_path / "data", "--brokers", "2", "--port", str(free_port()))
    settings = str(up.files / "client.properties")
    assert run("topic", "create", "t", "-p", "4", "--replication-factor", "2", "--command-config", settings) == 0
    assert len(librdkafka(up).list_topics(timeout=60).brokers) == 2
    up.stop()
