"""kafka-groups with groups that no broker of the tests has, and with brokers that fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.client.conftest import ScriptedBroker

from ottla.errors import ErrorCode
from ottla.kafka_tools.main import load_tool, run_tool
from ottla.wire.apis import ApiKey
from ottla.wire.messages import ListGroupsResponse

GROUPS = (
    ("a", "consumer", "classic"),
    ("b", "", "classic"),
    ("c", "connect", "classic"),
    ("d", "consumer", "consumer"),
    ("e", "share", "share"),
    ("a-group-whose-name-is-long", "streams", "streams"),
)
"""Names, protocols and types."""


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    scripted = ScriptedBroker()
    yield scripted
    scripted.close()


def answer_lists(broker: ScriptedBroker, code: ErrorCode = ErrorCode.NONE) -> None:
    group = ListGroupsResponse.ListedGroup
    rows = [group(group_id=name, protocol_type=protocol, group_type=kind) for name, protocol, kind in GROUPS]
    answer = ListGroupsResponse(error_code=int(code), groups=rows)
    broker.on[ApiKey.LIST_GROUPS] = lambda request: request.reply(answer)


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("", "abcde-"),
        ("--consumer", "abd"),
        ("--share", "e"),
        ("--streams", "-"),
        ("--group-type CLASSIC", "abc"),
        ("--group-type classic --protocol connect", "c"),
        ("--protocol consumer", "ad"),
        ("--group-type streams --protocol consumer", ""),
    ],
)
def test_filters(broker: ScriptedBroker, capsys: pytest.CaptureFixture[str], words: str, names: str) -> None:
    answer_lists(broker)
    at = ("--bootstrap-server", broker.bootstrap, "--list")
    assert run_tool(load_tool("kafka-groups"), [*at, *words.split()]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["GROUP", "TYPE", "PROTOCOL"]
    shown = {"-" if row.startswith("a-group") else row[0] for row in rows}
    assert (len(rows), shown) == (len(names), set(names))
    assert {len(row) for row in rows} <= {len(head) + 1}


def test_a_broker_that_refuses(broker: ScriptedBroker, capsys: pytest.CaptureFixture[str]) -> None:
    answer_lists(broker, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    assert run_tool(load_tool("kafka-groups"), ["--bootstrap-server", broker.bootstrap, "--list"]) == 1
    refusal = "Cluster authorization failed."
    assert capsys.readouterr() == (
        f"Error while executing groups command : {refusal}\n",
        f"org.apache.kafka.common.errors.ClusterAuthorizationException: {refusal}\n",
    )


def test_an_address_without_a_broker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = tmp_path / "settings"
    settings.write_text("default.api.timeout.ms=50\nrequest.timeout.ms=20\n")
    words = ["--bootstrap-server", "127.0.0.1:1", "--list", "--command-config", str(settings)]
    assert run_tool(load_tool("kafka-groups"), words) == 1
    shown = capsys.readouterr()
    failed = "Failed to find brokers to send ListGroups. "
    assert shown.out.startswith(f"Error while executing groups command : {failed}")
    assert shown.err.startswith(f"org.apache.kafka.common.KafkaException: {failed}")


def test_an_option_that_is_given_twice(broker: ScriptedBroker, capsys: pytest.CaptureFixture[str]) -> None:
    broker.on[ApiKey.LIST_GROUPS] = lambda request: request.reply(ListGroupsResponse())
    words = ["--bootstrap-server", broker.bootstrap, "--list", "--protocol", "a", "--protocol", "b"]
    assert run_tool(load_tool("kafka-groups"), words) == 1
    start = "Error while executing groups command : Found multiple arguments for option protocol"
    assert capsys.readouterr().out.startswith(start)
