"""`ottla topic` against a broker."""

from __future__ import annotations

import json

from ottla.types import uuid_from_text


def test_a_setting_that_the_topic_does_not_know_cannot_be_deleted(ottla) -> None:
    assert ottla("topic", "create", "known", "-c", "retention.ms=5").exit_code == 0
    words = ("topic", "alter", "known", "--delete-config", "retention.sm", "--delete-config", "retention.ms")
    refused = ottla(*words)
    assert refused.exit_code == 2
    assert "topic known has no setting 'retention.sm'. Did you mean 'retention.ms'?" in refused.stderr
    shown = ottla("topic", "describe", "known", "-o", "json").stdout
    assert '"value": "5"' in shown, "nothing of it was done"
    assert ottla(*words[:3], *words[5:]).exit_code == 0


def test_create_list_describe_alter_delete(ottla) -> None:
    made = ottla("topic", "create", "life", "-p", "2", "-c", "retention.ms=5000", "-o", "json")
    assert made.exit_code == 0
    (document,) = json.loads(made.stdout)
    assert (document["name"], document["partitions"], document["replication_factor"]) == ("life", 2, 1)
    assert len(uuid_from_text(document["id"])) == 16

    assert "life" in ottla("topic", "list", "-o", "name").stdout.splitlines()
    (listed,) = [
        d for d in map(json.loads, ottla("topic", "list", "-o", "jsonl").stdout.splitlines()) if d["name"] == "life"
    ]
    assert listed == {"name": "life", "id": document["id"], "internal": False, "partitions": 2, "replication_factor": 1}

    assert (
        ottla("topic", "alter", "life", "-p", "3", "-c", "segment.ms=70", "--delete-config", "retention.ms").exit_code
        == 0
    )
    (described,) = json.loads(ottla("topic", "describe", "life", "-o", "json").stdout)
    assert [part["partition"] for part in described["partitions"]] == [0, 1, 2]
    assert described["partitions"][0]["end_offset"] == 0
    assert described["configs"]["segment.ms"] == {"value": "70", "source": "DYNAMIC_TOPIC_CONFIG"}
    assert described["configs"]["retention.ms"]["source"] == "DEFAULT_CONFIG"

    gone = ottla("topic", "delete", "life", "--yes", "-o", "name")
    assert (gone.exit_code, gone.stdout) == (0, "life\n")
    assert ottla("topic", "describe", "life").exit_code == 3


def test_tables_are_for_people(ottla) -> None:
    ottla("topic", "create", "table", "-p", "2", "-c", "cleanup.policy=compact")
    described = ottla("topic", "describe", "table").stdout.splitlines()
    assert described[0] == "Topic:    table"
    assert [line.split() for line in described if line.strip().startswith(("PARTITION", "0", "1"))] == [
        ["PARTITION", "LEADER", "EPOCH", "REPLICAS", "ISR", "OFFLINE", "START", "END"],
        ["0", "1", "0", "1", "1", "-", "0", "0"],
        ["1", "1", "0", "1", "1", "-", "0", "0"],
    ]
    assert described[-1].split() == ["cleanup.policy", "compact", "DYNAMIC_TOPIC_CONFIG"]
    assert len(ottla("topic", "describe", "table", "-o", "wide").stdout.splitlines()) > len(described)
    assert "ID" in ottla("topic", "list", "-o", "wide").stdout.splitlines()[0]


def test_topics_that_are_there_or_not(ottla) -> None:
    assert ottla("topic", "create", "twice").exit_code == 0
    again = ottla("topic", "create", "twice", "other")
    assert again.exit_code == 1
    assert again.stdout == "other created\n", "the rest is done"
    assert "twice: TOPIC_ALREADY_EXISTS" in again.stderr
    assert ottla("topic", "create", "twice", "--if-not-exists").exit_code == 0
    assert ottla("topic", "delete", "-y", "nope").exit_code == 3
    assert ottla("topic", "delete", "-y", "nope", "--if-exists").exit_code == 0


def test_a_dry_run_changes_nothing(ottla) -> None:
    assert ottla("topic", "create", "dry", "--dry-run").stdout == "dry would be created\n"
    assert ottla("topic", "describe", "dry").exit_code == 3
    assert ottla("topic", "create", "dry", "-r", "9", "--dry-run").exit_code == 1


def test_deleting_asks_or_wants_a_yes(ottla) -> None:
    ottla("topic", "create", "kept")
    refused = ottla("topic", "delete", "kept")
    assert refused.exit_code == 2
    assert "--yes" in refused.stderr
    assert ottla("topic", "describe", "kept").exit_code == 0


def test_bad_words_are_usage_errors(ottla) -> None:
    for words in (
        ["topic", "create"],
        ["topic", "create", "x", "-p", "0"],
        ["topic", "create", "x", "-c", "novalue"],
        ["topic", "alter", "x"],
        ["topic", "list", "-o", "yaml"],
        ["topic", "list", "-X", "bootstrap.server=x"],
        ["topic", "list", "-X", "novalue"],
        ["topic", "list", "-b", ":"],
        ["topic", "list", "--timeout", "0"],
        ["nope"],
    ):
        result = ottla(*words)
        assert result.exit_code == 2, words
        assert result.stdout == ""
        assert "Traceback" not in result.stderr


def test_names_and_settings_that_the_broker_refuses(ottla) -> None:
    bad = ottla("topic", "create", "a/b")
    assert bad.exit_code == 1
    assert "INVALID_TOPIC_EXCEPTION" in bad.stderr
    unknown = ottla("topic", "create", "ok", "-c", "no.such.key=1")
    assert unknown.exit_code == 1
    assert "INVALID_CONFIG" in unknown.stderr
    near = ottla("topic", "create", "ok", "-c", "retention.mss=1")
    assert "did you mean 'retention.ms'?" in near.stderr


def test_a_list_of_topics_whose_names_match(ottla) -> None:
    for name in ("match-orders", "match-orders-2", "rematch-orders"):
        assert ottla("topic", "create", name).exit_code == 0
    assert ottla("topic", "list", "--include", "match-.*s", "-o", "name").stdout == "match-orders\n"
    assert ottla("topic", "list", "--include", "matc", "-o", "name").stdout == ""
    assert ottla("topic", "list", "--include", "__consumer.*", "--internal").exit_code == 0
    wrong = ottla("topic", "list", "--include", "(")
    assert (wrong.exit_code, "is not a regular expression" in wrong.stderr) == (2, True)
