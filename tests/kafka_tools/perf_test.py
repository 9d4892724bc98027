"""The tools that measure: statistics, pauses, payloads, Java's numbers and dates, and whole runs with a broker."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta, timezone
from itertools import count
from pathlib import Path

import pytest

from ottla.client import Producer
from ottla.client.consumer.record import ConsumerRecord
from ottla.kafka_tools.main import load_tool, run_tool
from ottla.kafka_tools.options import ToolError
from ottla.kafka_tools.tools.perf import e2e_latency
from ottla.kafka_tools.tools.perf.e2e_records import RecordSizes, TimedRecord, check_read, make_record
from ottla.kafka_tools.tools.perf.java_text import date_text, decimal_text, metric_text, quotient
from ottla.kafka_tools.tools.perf.payloads import split_payloads
from ottla.kafka_tools.tools.perf.send_statistics import SendStatistics
from ottla.kafka_tools.tools.perf.throttler import Throttler
from ottla.server.embedded import EmbeddedBroker


@pytest.mark.parametrize(
    ("number", "digits", "text"),
    [
        (0.125, 2, "0.13"),
        (2.5, 0, "3"),
        (1e21, 1, "1000000000000000000000.0"),
        (quotient(1, 0), 4, "Infinity"),
        (quotient(-1, 0), 4, "-Infinity"),
        (quotient(0, 0), 4, "NaN"),
        (quotient(1, 3), 4, "0.3333"),
    ],
)
def test_decimals(number: float, digits: int, text: str) -> None:
    assert decimal_text(number, digits) == text


def test_dates() -> None:
    time = datetime(2026, 3, 7, 15, 4, 5, 67_000, timezone(timedelta(hours=-2), "XYZ"))
    assert date_text("yyyy-MM-dd HH:mm:ss:SSS", time) == "2026-03-07 15:04:05:067"
    assert date_text("yy M d h K k a ''", time.replace(hour=0)) == "26 3 7 12 0 24 AM '"
    assert date_text("'o''clock' mm", time) == "o'clock 04"
    assert (
        date_text("D u E EEEE MMM MMMM z Z X XX XXX", time) == "66 6 Sat Saturday Mar March XYZ -0200 -02 -0200 -02:00"
    )
    assert date_text("XXX", time.astimezone(UTC)) == "Z"
    with pytest.raises(ValueError, match="Illegal pattern character 'Q'"):
        date_text("QQ", time)
    with pytest.raises(ValueError, match="Unterminated quote"):
        date_text("HH'x", time)


def test_metrics() -> None:
    assert metric_text({"b:c:{}": math.nan, "a:long-name:{}": 2}) == (
        "\nMetric Name      Value\na:long-name:{} : 2.000\nb:c:{}         : NaN"
    )


def test_statistics() -> None:
    stats = SendStatistics(4, 1000, 0)
    assert stats.add_record(10, 1 << 20, 500) == []
    assert stats.add_record(21, 1 << 20, 1000) == [
        "2 records sent, 2.0 records/sec (2.00 MB/sec), 15.5 ms avg latency, 21.0 ms max latency."
    ]
    assert stats.add_record(5, 1 << 20, 1500) == []
    assert stats.total_line(2000) == (
        "3 records sent, 1.500000 records/sec (1.50 MB/sec), 12.00 ms avg latency, 21.00 ms max latency, "
        "10 ms 50th, 21 ms 95th, 21 ms 99th, 21 ms 99.9th."
    )


def test_steady_state() -> None:
    stats = SendStatistics(4, 1000, 0, steady=True)
    assert stats.add_record(10, 1, 1000)[0] == "In steady state."
    stats.silent = True
    assert stats.add_record(10, 1, 2000) == []
    assert stats.total_line(2000).startswith("2 steady state records sent, 1.000000 records/sec")
    assert "NaN ms avg latency, 0.00 ms max latency, 0 ms 50th" in SendStatistics(4, 1000, 0).total_line(0)


def test_the_number_of_kept_latencies_is_bounded() -> None:
    stats = SendStatistics(1_500_000, 1000, 0)
    for _ in range(30):
        stats.add_record(1, 1, 0)
    assert len(stats._latencies) == 10


def test_throttler() -> None:
    throttler = Throttler(1000, 0.0)
    assert throttler.pause_after(5, 0.01) == 0  # 500 per second
    assert throttler.pause_after(11, 0.01) == 0  # 1 ms is owed, too short to sleep
    assert throttler.pause_after(12, 0.01) == pytest.approx(0.002)
    assert throttler.pause_after(13, 0.01) == 0
    assert Throttler(-1, 0.0).pause_after(10**9, 1.0) == 0


@pytest.mark.parametrize(
    ("text", "delimiter", "parts"),
    [
        ("a\nb\n\nc", "\\n", ["a", "b", "", "c"]),
        ("a\nb\n", "\\n", ["a", "b"]),
        ("axbyc", "[xy]", ["a", "b", "c"]),
        ("\n", "\\n", []),
        ("a(x)b", "(\\(x\\))", ["a", "b"]),
    ],
)
def test_payloads(text: str, delimiter: str, parts: list[str]) -> None:
    assert split_payloads(text, delimiter) == [part.encode() for part in parts]


def test_a_wrong_delimiter() -> None:
    with pytest.raises(ToolError, match=r"java\.util\.regex\.PatternSyntaxException"):
        split_payloads("a", "[")


def test_wrong_words(capsys: pytest.CaptureFixture[str]) -> None:
    """Those that Apache Kafka's tool does not know or refuse; tests/interop compares the others."""
    tool = load_tool("kafka-producer-perf-test")
    words = ["--topic", "a", "--num-records", "1", "--bootstrap-server", "x:1", "--payload-monotonic", "--throughput"]
    for rate in ("0", "nan"):
        assert run_tool(tool, [*words, rate]) == 1
        assert "error: --throughput 0 would send one record and wait without end." in capsys.readouterr().err
    consumer = load_tool("kafka-consumer-perf-test")
    assert run_tool(consumer, ["--socket-buffer-size", "1"]) == 1
    assert "the system chooses the size of receive buffers" in capsys.readouterr().err


@pytest.mark.slow
def test_records_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    payloads = tmp_path / "payloads"
    payloads.write_text("é\nbb")
    with EmbeddedBroker() as broker:
        at = ("--bootstrap-server", broker.bootstrap, "--topic", "a")
        producer, consumer = load_tool("kafka-producer-perf-test"), load_tool("kafka-consumer-perf-test")
        count = ("--num-records", "30", "--throughput", "-1")
        assert run_tool(producer, [*at, *count, "--payload-file", str(payloads)]) == 0
        assert run_tool(producer, [*at, *count, "--payload-monotonic", "--transaction-duration-ms", "1"]) == 0
        assert (
            run_tool(producer, [*at, *count, "--record-size", "9", "--command-property", "acks=1", "linger.ms=1"]) == 0
        )
        shown = capsys.readouterr()
        assert shown.out.count("\n30 records sent, ") + shown.out.startswith("30 records sent, ") == 3
        assert run_tool(consumer, [*at, "--num-records", "90", "--hide-header", "--print-metrics"]) == 0
        shown = capsys.readouterr()
        assert re.match(r"[\d-]+ [\d:]+, [\d-]+ [\d:]+, 0\.000\d, [\d.]+, 90, ", shown.out)
        assert re.search(r"records-consumed-total:\{client-id=perf-consumer-client\} +: 90\.000", shown.out)
        assert re.search(r"assigned-partitions:\{client-id=perf-consumer-client\} +: 1\.000", shown.out)
        too_large = [*at, *count, "--record-size", "50", "--command-property", "max.request.size=20"]
        assert run_tool(producer, too_large) == 0
        shown = capsys.readouterr()
        assert shown.err.count("larger than max.request.size") == 30
        assert shown.out.startswith("0 records sent, ")


def read_record(key: bytes | None, value: bytes, headers: tuple[tuple[str, bytes | None], ...] = ()) -> ConsumerRecord:
    return ConsumerRecord("t", 0, 0, 0, 0, key, value, headers, 0)


def test_records_of_e2e_latency() -> None:
    letters = (bytes((letter,)) for letter in count(65))
    record = make_record(RecordSizes(3, 2, 2, 4, -1), letters.__next__)
    assert record == TimedRecord(b"AA", b"BBB", (("CCCC", None), ("DDDD", None)))
    assert make_record(RecordSizes(0, 0, 1, 0, 2), letters.__next__).headers == (("", b"GG"),)
    assert make_record(RecordSizes(0, 0, 0, 4, 4), letters.__next__) == TimedRecord(None, b"", ())


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (
            [read_record(b"k", b"w", (("h", b"x"),))],
            "The message value read [w] did not match the message value sent [v]",
        ),
        ([read_record(None, b"v", (("h", b"x"),))], "Expected message key but received null"),
        ([read_record(b"j", b"v", (("h", b"x"),))], "The message key read [j] did not match the message key sent [k]"),
        ([read_record(b"k", b"v")], "Expected message headers but received none"),
        ([read_record(b"k", b"v", (("h", b"x"),) * 2)], "Header count mismatch between sent and received messages"),
        (
            [read_record(b"k", b"v", (("h", None),))],
            "The message header read [h:null] did not match the message header sent [h:x]",
        ),
        ([read_record(b"k", b"v", (("h", b"x"),))] * 2, "Only one result was expected during this test. We found [2]"),
    ],
)
def test_another_record_than_the_sent_one(read: list[ConsumerRecord], message: str) -> None:
    with pytest.raises(ToolError, match=re.escape(message)):
        check_read(TimedRecord(b"k", b"v", (("h", b"x"),)), read)


def test_a_key_that_was_not_sent() -> None:
    check_read(TimedRecord(None, b"v", ()), [read_record(None, b"v")])
    with pytest.raises(ToolError, match=r"Expected null message key but received \[k\]"):
        check_read(TimedRecord(None, b"v", ()), [read_record(b"k", b"v")])


LATENCY = load_tool("kafka-e2e-latency")


def test_words_of_e2e_latency(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--bootstrap-server", "x:y", "--topic", "t", "--num-records", "1", "--producer-acks", "1", "--record-size"]
    for words, message in (
        (["a", "b"], "Invalid number of arguments. Expected 5 or 6 positional arguments, but got 2. Usage: bootstrap-"),
        (given[:2], 'Missing required argument "[topic]"'),
        ([*given, "-1"], "Value for --record-size must be a non-negative integer."),
        ([*given, "1", "--record-header-size", "-2"], "must be a non-negative integer or -1 for null header value."),
        ([*given, str(2**31)], f"Cannot parse argument '{2**31}' of option record-size\njoptsimple."),
        ([*given, "1"], "Failed to construct kafka consumer: 'x:y' is not an address"),
        (["x:y", "t", "1", "0", "9"], "Invalid value for --producer-acks. Latency testing requires synchronous acknow"),
    ):
        assert run_tool(LATENCY, words) == 1
        shown = capsys.readouterr()
        assert message in shown.err
        assert shown.out.startswith("WARNING: Positional argument usage is deprecated") or not shown.out


@pytest.mark.slow
def test_latencies_of_a_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "client.properties"
    # Settings of both clients; the tool's own override them, and it leaves no group.
    settings.write_text("linger.ms=60000\nacks=0\nfetch.max.wait.ms=60000\ngroup.id=g\nbatch.size=100\n")
    with EmbeddedBroker() as broker:
        run = [broker.bootstrap, "t", "1001", "all", "8", str(settings)]
        assert run_tool(LATENCY, run) == 0
        warning, created, *lines = capsys.readouterr().out.splitlines()
        assert warning.startswith("WARNING: Positional argument usage is deprecated")
        assert created == 'Topic "t" does not exist. Will create topic with 1 partition(s) and replication factor = 1'
        form = (
            r"0\t\d+\.\d+ 1000\t\d+\.\d+ Avg latency: \d+\.\d{4} ms Percentiles: 50th = \d+, 99th = \d+, 99.9th = \d+"
        )
        assert re.fullmatch(form, " ".join(lines))
        assert run_tool(load_tool("kafka-consumer-groups"), ["--bootstrap-server", broker.bootstrap, "--list"]) == 0
        assert capsys.readouterr().out.strip() == ""
        # A record that is not read, because an open transaction hides it.
        settings.write_text("isolation.level=read_committed\n")
        monkeypatch.setattr(e2e_latency, "_POLL_MS", 50)
        with Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "open"}) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("t", b"").result()
            assert run_tool(LATENCY, run) == 1
        message = "poll() timed out before finding a result (timeout:[50ms])"
        assert capsys.readouterr().err == f"{message}\njava.lang.RuntimeException: {message}\n"
        # A topic that cannot be created, and a record that cannot be sent.
        named = ["--bootstrap-server", broker.bootstrap, "--num-records", "1", "--producer-acks", "1", "--record-size"]
        assert run_tool(LATENCY, [*named, "1", "--topic", "a/b"]) == 1
        shown = capsys.readouterr()
        assert shown.out.endswith("\nCreation of topic a/b failed\n")
        assert (
            "java.lang.RuntimeException: java.util.concurrent.ExecutionException: org.apache.kafka.common." in shown.err
        )
        assert run_tool(LATENCY, [*named, "2000000", "--topic", "t"]) == 1
        assert (
            "java.util.concurrent.ExecutionException: org.apache.kafka.common.KafkaException: "
            in capsys.readouterr().err
        )
