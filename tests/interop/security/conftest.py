"""Ottla and Apache Kafka 4.4.0 with the same listeners, users and ACLs, and Kafka's tools at both of them.

Zone: real.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from testbench.apache_kafka.packages import BenchError
from testbench.apache_kafka.tool_shell import ToolShell
from testbench.logins.brokers import WAIT_S, LoginBroker, login_broker
from testbench.logins.certificates import Certificates

LOGIN = "org.apache.kafka.common.security.scram.ScramLoginModule required"
VARIABLE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d\S*|[A-Za-z0-9+/]{86}==|(?<![\w-])[\w-]{22}(?![\w-])|\d{13}")
"""What two brokers never have in common: dates, ids and keys of tokens, times in milliseconds."""


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def ottla(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[LoginBroker]:
    with login_broker("ottla", tmp_path_factory.mktemp("secured"), certificates) as broker:
        yield broker


@pytest.fixture(scope="session")
def apache(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[LoginBroker]:
    try:
        with login_broker("kafka", tmp_path_factory.mktemp("secured"), certificates) as broker:
            yield broker
    except BenchError as error:
        pytest.fail(f"{error} (testbench/setup does it)")


def login_file(directory: Path, broker: LoginBroker, protocol: str, user: str, password: str, more: str = "") -> str:
    """The file for --command-config of a user of SCRAM; `more` goes into the line of the login."""
    path = directory / f"{broker.name}-{user}.properties"
    trust = f"ssl.truststore.type=PEM\nssl.truststore.location={broker.certificates.authority}\n"
    path.write_text(
        f"security.protocol={protocol}\nsasl.mechanism=SCRAM-SHA-512\n{trust if protocol == 'SASL_SSL' else ''}"
        f'sasl.jaas.config={LOGIN} username="{user}" password="{password}"{more};\n'
    )
    return str(path)


class BothBrokers:
    """Kafka's tools of one version, as the user admin at both brokers."""

    def __init__(self, shell: ToolShell, brokers: tuple[LoginBroker, LoginBroker], directory: Path) -> None:
        self.version = shell.version
        self.brokers = brokers
        self.directory = directory
        self.protocol = "SASL_SSL" if shell.version.startswith("4.") else "SASL_PLAINTEXT"
        self._shell = shell

    def run(self, broker: LoginBroker, name: str, *words: str, login: str = "") -> tuple[int, str]:
        """The exit code and the output of a tool at one broker."""
        login = login or login_file(self.directory, broker, self.protocol, "admin", "admin-secret")
        server = ("--bootstrap-server", broker.addresses[self.protocol], "--command-config", login)
        return self._shell.run(name, *words, *server)

    def change(self, name: str, *words: str, fails: bool = False) -> str:
        """What a tool prints that changes something: the same at both brokers."""
        mine, theirs = (self.run(each, name, *words) for each in self.brokers)
        assert _comparable(mine) == _comparable(theirs), f"{words}\n{mine}\n{theirs}"
        assert fails or mine[0] == 0, mine
        return mine[1]

    def show(self, name: str, *words: str) -> str:
        """What a tool prints that changes nothing: the same at both, once Apache Kafka has applied all changes."""
        end = time.monotonic() + WAIT_S
        while True:
            mine, theirs = (self.run(each, name, *words) for each in self.brokers)
            if _comparable(mine) == _comparable(theirs):
                return mine[1]
            assert time.monotonic() < end, f"{words}\n{mine}\n{theirs}"


def _comparable(said: tuple[int, str]) -> tuple[int, list[str]]:
    """What must be the same: the words of each line, and the lines, in any order; of a failure the classes of errors.

    Apache Kafka lists the mechanisms of a user in another order in each of its processes, and sets
    `min.insync.replicas` by itself. What follows "Current ACLs" may be older than the change.
    """
    if said[0]:
        return said[0], sorted(set(re.findall(r"org\.apache\.kafka\.common\.errors\.(\w+)", said[1])))
    text = said[1].partition("Current ACLs")[0]
    lines = (" ".join(sorted(re.split(r"[, ]+", VARIABLE.sub("?", line).strip()))) for line in text.splitlines())
    return 0, sorted(line for line in lines if line and "min.insync.replicas=" not in line)


@pytest.fixture(scope="module", params=["4.4.0", "3.9.1"])
def both(
    request: pytest.FixtureRequest, ottla: LoginBroker, apache: LoginBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BothBrokers]:
    try:
        with ToolShell(request.param) as shell:
            yield BothBrokers(shell, (ottla, apache), tmp_path_factory.mktemp("tools"))
    except BenchError as error:
        pytest.fail(f"{error} (testbench/setup does it)")
