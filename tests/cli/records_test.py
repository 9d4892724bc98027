"""`ottla produce` and `ottla consume` against a broker."""

from __future__ import annotations

import json

import pytest


def documents(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def consumed(ottla, topic: str, *words: str) -> list[dict]:
    result = ottla("consume", topic, "--from-beginning", "--exit-at-end", "-o", "jsonl", *words)
    assert result.exit_code == 0, result.stderr
    return documents(result.stdout)


def test_lines_go_in_and_come_out(ottla) -> None:
    written = ottla("produce", "lines", "-p", "0", "-o", "jsonl", stdin=b"one\n\ntwo\nlast without newline")
    assert documents(written.stdout) == [{"topic": "lines", "partition": 0, "base_offset": 0, "records": 4}]
    read = ottla("consume", "lines", "--from-beginning", "-e")
    assert read.stdout_bytes == b"one\n\ntwo\nlast without newline\n"
    assert [d["offset"] for d in consumed(ottla, "lines")] == [0, 1, 2, 3]


def test_keys_headers_and_timestamps(ottla) -> None:
    ottla(
        "produce",
        "keyed",
        "-K",
        ":",
        "-H",
        "h=1",
        "-H",
        "h=2",
        "-H",
        "none",
        "--timestamp",
        "1700000000000",
        stdin="a:1:x\nb:\n",
    )
    found = sorted(consumed(ottla, "keyed"), key=lambda d: d["key"])
    assert [(d["key"], d["value"], d["timestamp"]) for d in found] == [
        ("a", "1:x", 1_700_000_000_000),
        ("b", "", 1_700_000_000_000),
    ]
    assert found[0]["headers"] == [
        {"key": "h", "value": "1"},
        {"key": "h", "value": "2"},
        {"key": "none", "value": None},
    ]


def test_words_of_the_command_line_may_be_any_bytes(ottla) -> None:
    ottla("produce", "bytes", "-k", "\udcff", "-H", "h=\udcfe", stdin=b"\xfd\n")
    (found,) = consumed(ottla, "bytes")
    assert [found["key"], found["value"], found["headers"][0]["value"]] == [
        {"base64": "/w=="},
        {"base64": "/Q=="},
        {"base64": "/g=="},
    ]
    refused = ottla("consume", "\udcff", "-e")  # by the broker
    assert (refused.exit_code, "INVALID_TOPIC_EXCEPTION" in refused.stderr) == (1, True)


def test_one_key_for_all_keeps_their_order(ottla) -> None:
    ottla("produce", "onekey", "-k", "k", stdin="".join(f"{n}\n" for n in range(50)))
    assert [d["value"] for d in consumed(ottla, "onekey")] == [str(n) for n in range(50)]


def test_tombstones(ottla) -> None:
    ottla("produce", "tombs", "-k", "one", "--tombstone")
    ottla("produce", "tombs", "--tombstone", stdin="two\nthree\n")
    found = consumed(ottla, "tombs")
    assert sorted(d["key"] for d in found) == ["one", "three", "two"]
    assert {d["value"] for d in found} == {None}


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_json_lines_make_the_round_trip(ottla, codec: str) -> None:
    lines = [
        {"key": "k", "value": "v", "timestamp": 5, "partition": 1, "headers": [{"key": "h", "value": None}]},
        {"key": None, "value": {"base64": "/wA="}, "timestamp": 6, "partition": 2, "headers": []},
        {"key": {"base64": "/w=="}, "value": None, "timestamp": 7, "partition": 0, "headers": []},
    ]
    text = "".join(json.dumps({"topic": f"trip-{codec}", **line}) + "\n" for line in lines)
    assert ottla("produce", "--jsonl", "-z", codec, stdin=text).exit_code == 0
    first = consumed(ottla, f"trip-{codec}")
    assert sorted(({k: d[k] for k in lines[0]} for d in first), key=lambda d: d["timestamp"]) == lines
    again = "".join(json.dumps(d) + "\n" for d in first)
    assert ottla("produce", f"trip2-{codec}", "--jsonl", stdin=again).exit_code == 0
    second = consumed(ottla, f"trip2-{codec}")
    assert sorted(second, key=str) == sorted(({**d, "topic": f"trip2-{codec}"} for d in first), key=str)


def test_a_bad_line_is_named_and_what_came_before_is_kept(ottla) -> None:
    result = ottla("produce", "badline", "--jsonl", stdin=b'{"value": "good"}\n{"value": \n')
    assert result.exit_code == 1
    assert "line 2 of the input" in result.stderr
    assert [d["value"] for d in consumed(ottla, "badline")] == ["good"]
    assert "does not contain the key separator" in ottla("produce", "badline", "-K", "=", stdin="x\n").stderr
    assert ottla("produce", "--jsonl", stdin='{"value": "x"}\n').exit_code == 1, "no topic anywhere"


def test_acks_and_partitions(ottla) -> None:
    for acks in ("0", "1", "all"):
        assert ottla("produce", "acked", "--acks", acks, "-p", "2", stdin=f"{acks}\n").exit_code == 0
    # With acks=0 the record may still be in flight when the process ends; the others were written after it.
    assert {d["value"] for d in consumed(ottla, "acked")} >= {"1", "all"}
    missing = ottla("produce", "acked", "-p", "7", stdin="x\n")
    assert missing.exit_code == 3
    assert "it has partitions 0 to 2" in missing.stderr


@pytest.fixture
def ten(ottla) -> str:
    """A topic with values 0…9, a second apart, in partition 0."""
    if ottla("topic", "create", "ten", "-p", "1").exit_code == 0:
        lines = [{"value": str(n), "key": f"k{n % 2}", "timestamp": 1_700_000_000_000 + n * 1_000} for n in range(10)]
        ottla("produce", "ten", "--jsonl", "--acks", "all", stdin="".join(json.dumps(line) + "\n" for line in lines))
    return "ten"


@pytest.mark.parametrize(
    ("offsets", "values"),
    [
        ("start", "0123456789"),
        ("end", ""),
        ("7", "789"),
        ("+8", "89"),
        ("-3", "789"),
        ("2:5", "234"),
        (":2", "01"),
        ("-4:-2", "67"),
        ("@1700000007000", "789"),
        ("@1700000003:1700000005", "34"),
        ("@1800000000", ""),
        ("start:end", "0123456789"),
    ],
)
def test_offsets_of_the_grammar(ottla, ten: str, offsets: str, values: str) -> None:
    result = ottla("consume", ten, "--offset", offsets, "-e", "-f", "%s")
    assert (result.exit_code, result.stdout) == (0, values)


def test_an_upper_bound_is_an_end(ottla, ten: str) -> None:
    assert ottla("consume", ten, "--offset", "1:3", "-f", "%s").stdout == "12"
    assert ottla("consume", ten, "--offset", "0", "-n", "4", "-f", "%s").stdout == "0123"
    assert ottla("consume", ten, "--from-beginning", "-n", "0").stdout == ""


def test_an_offset_outside_of_the_log_is_moved_with_a_note(ottla, ten: str) -> None:
    result = ottla("consume", ten, "--offset", "100", "-e")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "offset 100 of ten-0 is outside of 0 to 10: using 10" in result.stderr
    assert ottla("consume", ten, "--offset", "100", "-e", "-q").stderr == ""


def test_filters(ottla, ten: str) -> None:
    assert ottla("consume", ten, "--from-beginning", "-e", "--key", "k1", "-f", "%s").stdout == "13579"
    assert ottla("consume", ten, "--from-beginning", "-e", "--value-regex", "^[2-4]$", "-f", "%s").stdout == "234"
    both = ottla(
        "consume", ten, "--from-beginning", "-e", "--key", "k1", "--value-regex", "[2-4]", "-n", "5", "-f", "%s"
    )
    assert both.stdout == "3"
    assert ottla("consume", ten, "--from-beginning", "-e", "--header", "h", "-f", "%s").stdout == ""


def test_forms(ottla, ten: str) -> None:
    assert ottla("consume", ten, "--offset", "3:4", "-o", "wide").stdout == "0\t3\t1700000003000\tk1\t3\n"
    pretty = ottla("consume", ten, "--offset", "3:4", "-o", "json").stdout
    assert json.loads(pretty)["value"] == "3"
    assert len(pretty.splitlines()) > 5


def test_nothing_for_long_is_a_timeout(ottla, ten: str) -> None:
    result = ottla("consume", ten, "--timeout", "0.05")
    assert result.exit_code == 5
    assert "no record came for 0.05 s" in result.stderr


def test_topics_and_partitions_that_do_not_exist(ottla, ten: str) -> None:
    missing = ottla("consume", "nowhere", "-e")
    assert missing.exit_code == 3
    assert "topic nowhere: UNKNOWN_TOPIC_OR_PARTITION" in missing.stderr
    assert ottla("consume", ten, "-p", "5", "-e").exit_code == 3


def test_words_that_do_not_go_together(ottla) -> None:
    for words in (
        ["consume"],
        ["consume", "t", "--offset", "x"],
        ["consume", "t", "--offset", "1", "--from-beginning"],
        ["consume", "t", "--follow", "-e"],
        ["consume", "t", "-f", "%q"],
        ["consume", "t", "--key-regex", "("],
        ["produce"],
        ["produce", "t", "-K", ""],
        ["produce", "t", "-K", ":", "-k", "x"],
        ["produce", "t", "--tombstone", "--jsonl"],
        ["produce", "t", "-H", "=x"],
        ["produce", "t", "-H", "\udcff=x"],
        ["produce", "t", "--timestamp", "yesterday"],
        ["produce", "t", "--acks", "2"],
        ["produce", "t", "-X", "acks=1", "-X", "enable.idempotence=true"],
    ):
        result = ottla(*words)
        assert result.exit_code == 2, words
        assert "Traceback" not in result.stderr


def test_a_record_too_large_is_refused_by_name(ottla) -> None:
    result = ottla("produce", "large", stdin=b"x" * 2_000_000)
    assert result.exit_code == 2
    assert "max.request.size" in result.stderr
    ottla("topic", "create", "small", "-c", "max.message.bytes=100")
    refused = ottla("produce", "small", stdin=b"x" * 1_000)
    assert refused.exit_code == 1
    assert "MESSAGE_TOO_LARGE" in refused.stderr
