"""kafka-delegation-tokens: options whose values may be left out, and lists where Kafka's tool has none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from testbench.ports import HOST, free_port

from ottla.kafka_tools.main import load_tool, run_tool
from ottla.server.embedded import EmbeddedBroker

TOOL: Final = load_tool("kafka-delegation-tokens")
_PLAIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SETTINGS: Final = {
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,LOGIN:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.login.plain.sasl.jaas.config": f'{_PLAIN} user_ann="ann";',
    "delegation.token.secret.key": "a secret of the brokers",
}


@pytest.fixture
def login(tmp_path: Path) -> Iterator[list[str]]:
    """The words about a broker and a user."""
    file = tmp_path / "client.properties"
    jaas = f'sasl.jaas.config={_PLAIN} username="ann" password="ann";\n'
    file.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n{jaas}")
    port = free_port()
    listeners = f"PLAINTEXT://{HOST}:0,LOGIN://{HOST}:{port}"
    with EmbeddedBroker(config=SETTINGS | {"listeners": listeners}):
        yield ["--bootstrap-server", f"{HOST}:{port}", "--command-config", str(file)]


def test_all_tokens_are_listed_without_owners(login: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        assert run_tool(TOOL, [*login, "--create", "--max-life-time-period", "-1"]) == 0
    capsys.readouterr()
    assert run_tool(TOOL, [*login, "--describe"]) == 0
    called, total, *lines = capsys.readouterr().out.splitlines()
    assert (called, total) == ("Calling describe token operation for current user.", "Total number of tokens : 2")
    rows = [line.split() for line in lines if line]
    assert rows[0] == ["TOKENID", "HMAC", "OWNER", "REQUESTER", "RENEWERS", "ISSUEDATE", "EXPIRYDATE", "MAXDATE"]
    assert [row[2:5] for row in rows[1:]] == [["User:ann", "User:ann", "[]"]] * 2
    assert [row[0] for row in rows[1:]] == sorted(row[0] for row in rows[1:])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--create --max-life-time-period", "Option max-life-time-period needs a number of milliseconds, or -1"),
        ("--create --max-life-time-period x", "Cannot parse argument 'x' of option max-life-time-period"),
        ("--create --max-life-time-period 9223372036854775808", "Cannot parse argument '9223372036854775808'"),
        ("--create --max-life-time-period --renewer-principal User:x", "Option max-life-time-period needs a number"),
        ("--renew --hmac --renew-time-period -1", "Option hmac needs the HMAC of a token"),
        ("--renew --hmac !! --renew-time-period -1", "The HMAC is not base64"),
        ("--expire --hmac abc --expiry-time-period -1", "The HMAC is not base64"),
        ("--describe --owner-principal ann", "expected a string in format principalType:principalName but got ann"),
    ],
)
def test_wrong_words(words: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "client.properties"
    file.touch()
    given = ["--bootstrap-server", "127.0.0.1:1", "--command-config", str(file), *words.split()]
    assert run_tool(TOOL, given) == 1
    assert capsys.readouterr().err.startswith(message)
