"""`ottla config`, against a broker."""

from __future__ import annotations

import csv
import io
import json
import logging

import pytest

from ottla.cli.entities import parse_changes, parse_entity
from ottla.cli.views.output import write_documents
from ottla.client import ConfigChange, ConfigOp, Resource, ResourceType


def documents(result) -> dict[str, dict]:
    """The settings in the output of `-o json`, by name."""
    return {each["name"]: each for each in json.loads(result.stdout)}


def test_settings_of_a_topic(ottla) -> None:
    assert ottla("topic", "create", "set", "-c", "segment.bytes=1048576").exit_code == 0
    done = ottla("config", "set", "topic/set", "retention.ms=1000", "cleanup.policy+=compact")
    assert done.stdout == "topic/set altered: retention.ms, cleanup.policy\n"
    found = documents(ottla("config", "list", "topic/set", "-o", "json"))
    assert {name: each["value"] for name, each in found.items()} == {
        "cleanup.policy": "delete,compact",
        "retention.ms": "1000",
        "segment.bytes": "1048576",
    }
    policy = found["cleanup.policy"]
    assert (policy["source"], policy["dynamic"], policy["sensitive"]) == ("DYNAMIC_TOPIC_CONFIG", True, False)
    assert [each["source"] for each in policy["synonyms"]] == ["DYNAMIC_TOPIC_CONFIG", "DEFAULT_CONFIG"]
    assert "DEFAULT_CONFIG:log.cleanup.policy=delete" in ottla("config", "list", "topic/set", "--synonyms").stdout
    assert "max.message.bytes" in documents(ottla("config", "list", "topic/set", "--all", "-o", "json"))
    assert ottla("config", "set", "topic/set", "cleanup.policy-=delete").exit_code == 0
    assert ottla("config", "get", "topic/set", "cleanup.policy", "retention.ms").stdout == "compact\n1000\n"
    assert ottla("config", "unset", "topics/set", "retention.ms", "cleanup.policy").exit_code == 0
    assert list(documents(ottla("config", "list", "topic/set", "-o", "json"))) == ["segment.bytes"]


def test_a_broker_and_the_default_of_all(ottla) -> None:
    key = "log.cleaner.backoff.ms"
    assert ottla("config", "set", "broker/1", f"{key}=7").exit_code == 0
    assert ottla("config", "set", "broker/default", f"{key}=8").exit_code == 0
    (entry,) = json.loads(ottla("config", "get", "broker/1", key, "-o", "json").stdout)
    assert (entry["value"], entry["source"]) == ("7", "DYNAMIC_BROKER_CONFIG")
    assert [each["value"] for each in entry["synonyms"]][:2] == ["7", "8"]
    assert ottla("config", "get", "broker/default", key).stdout == "8\n"
    ports = documents(ottla("config", "get", "broker/1", "listeners", "-o", "json"))
    assert ports["listeners"]["dynamic"] is False
    for entity in ("broker/1", "broker/default"):
        assert ottla("config", "unset", entity, key).exit_code == 0
    assert ottla("config", "unset", "broker/default", "log.cleaner.backof.ms").exit_code == 3
    assert documents(ottla("config", "get", "broker/1", key, "-o", "json"))[key]["source"] == "DEFAULT_CONFIG"


def test_levels_of_loggers_change_while_the_broker_runs(ottla) -> None:
    logger = logging.getLogger("ottla.broker.startup")
    assert "ottla.broker.startup" in documents(ottla("config", "list", "logger/1", "-o", "json"))
    assert ottla("config", "set", "logger/1", "ottla.broker.startup=DEBUG").exit_code == 0
    try:
        assert logger.level == logging.DEBUG
        assert ottla("config", "get", "broker-loggers/1", "ottla.broker.startup").stdout == "DEBUG\n"
    finally:
        assert ottla("config", "unset", "logger/1", "ottla.broker.startup").exit_code == 0
    assert logger.level == logging.NOTSET
    wrong = ottla("config", "set", "logger/1", "ottla.broker.startpu=DEBUG")
    assert (wrong.exit_code, "did you mean ottla.broker.startup?" in wrong.stderr) == (3, True)
    assert ottla("config", "set", "logger/1", "ottla.broker.startup=LOUD").exit_code == 1


def test_groups_and_the_list_of_what_has_settings(ottla) -> None:
    assert ottla("config", "set", "group/g/1", "consumer.session.timeout.ms=50000").exit_code == 0
    assert ottla("config", "get", "group/g/1", "consumer.session.timeout.ms").stdout == "50000\n"
    assert ottla("topic", "create", "listed").exit_code == 0
    words = ottla("config", "list").stdout.split()
    assert {"broker/default", "broker/1", "logger/1", "topic/listed", "group/g/1"} <= set(words)
    found = json.loads(ottla("config", "list", "-o", "json").stdout)
    assert {"entity": "topic/listed", "type": "TOPIC", "name": "listed"} in found


def test_a_dry_run_lets_the_broker_judge_and_changes_nothing(ottla) -> None:
    assert ottla("topic", "create", "set-dry", "-c", "retention.ms=9").exit_code == 0
    fine = ottla("config", "set", "topic/set-dry", "retention.ms=5", "--dry-run", "-o", "json")
    assert json.loads(fine.stdout) == {"entity": "topic/set-dry", "keys": ["retention.ms"], "dry_run": True}
    assert ottla("config", "unset", "topic/set-dry", "retention.ms", "--dry-run").exit_code == 0
    wrong = ottla("config", "set", "topic/set-dry", "retention.ms=soon", "--dry-run", "-o", "json")
    assert (wrong.exit_code, json.loads(wrong.stderr)["error"]["code"]) == (1, "INVALID_CONFIG")
    assert ottla("config", "get", "topic/set-dry", "retention.ms").stdout == "9\n"


def test_differences_have_an_exit_code(ottla) -> None:
    assert ottla("topic", "create", "left", "-c", "retention.ms=1").exit_code == 0
    assert ottla("topic", "create", "right", "-c", "retention.ms=1", "-c", "segment.bytes=1048576").exit_code == 0
    differ = ottla("config", "diff", "topic/left", "topic/right", "-o", "json")
    (row,) = json.loads(differ.stdout)
    assert (differ.exit_code, row["name"]) == (1, "segment.bytes")
    assert row["right"] == {"value": "1048576", "source": "DYNAMIC_TOPIC_CONFIG"}
    assert ottla("config", "set", "topic/left", "segment.bytes=1048576").exit_code == 0
    equal = ottla("config", "diff", "topic/left", "topic/right")
    assert (equal.exit_code, equal.stdout) == (0, "")
    assert ottla("config", "diff", "topic/left", "broker/1").exit_code == 2


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("get", "topic/wrong", "retention.mss"), 3, "did you mean retention.ms?"),
        (("unset", "topic/wrong", "retention.mss"), 3, "did you mean retention.ms?"),
        (("set", "topic/wrong", "retention.mss=1"), 1, "retention.mss"),
        (("get", "topic/nowhere", "retention.ms"), 3, "UNKNOWN_TOPIC_OR_PARTITION"),
        (("list", "broker/9"), 3, "there is no broker 9 in the cluster: it has 1"),
        (("set", "broker/1", "listeners=PLAINTEXT://:1"), 1, "listeners"),
        (("list", "wrong"), 2, "is not of the form KIND/NAME"),
        (("list", "broker/one"), 2, "named by its id"),
        (("list", "user/alice"), 2, "use ottla quota"),
        (("set", "topic/wrong", "retention.ms"), 2, "is not of the form KEY=VALUE"),
        (("set", "topic/wrong", "retention.ms=1", "retention.ms=2"), 2, "more than once"),
    ],
)
def test_wrong_words(ottla, words: tuple[str, ...], code: int, text: str) -> None:
    ottla("topic", "create", "wrong", "--if-not-exists")
    result = ottla("config", *words)
    assert (result.exit_code, text in result.stderr) == (code, True), result.stderr


def test_words_as_entities_and_changes() -> None:
    assert parse_entity("Topics/a") == Resource(ResourceType.TOPIC, "a")
    assert parse_entity("broker/007") == Resource(ResourceType.BROKER, "7")
    assert parse_entity("client-metrics/m") == Resource(ResourceType.CLIENT_METRICS, "m")
    assert parse_changes(["a=b=c", "l+=x,y", "l.2-=x", "empty="]) == [
        ConfigChange("a", "b=c"),
        ConfigChange("l", "x,y", ConfigOp.APPEND),
        ConfigChange("l.2", "x", ConfigOp.SUBTRACT),
        ConfigChange("empty", ""),
    ]


HARD = [
    {"name": "a,b", "list": [1, {"x": None}], "none": None, "flag": True},
    {"name": 'say "no"\n\u2028\x85😀', "more": {}, "list": [], "null": "no"},
]


def test_documents_as_csv(capsys) -> None:
    write_documents("csv", HARD)
    first, second = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert first == {"name": "a,b", "list": '[1,{"x":null}]', "none": "", "flag": "true", "more": "", "null": ""}
    assert (second["name"], second["list"], second["more"]) == ('say "no"\n\u2028\x85😀', "[]", "{}")
    write_documents("csv", [])
    assert capsys.readouterr().out == ""


def test_documents_as_yaml(capsys) -> None:
    write_documents("yaml", HARD)
    assert capsys.readouterr().out == (
        '- name: "a,b"\n  list:\n    - 1\n    - x: null\n  none: null\n  flag: true\n'
        '- name: "say \\"no\\"\\n\\u2028\\u0085😀"\n  more: {}\n  list: []\n  "null": "no"\n'
    )
    write_documents("yaml", [])
    assert capsys.readouterr().out == "[]\n"
