"""The tools that measure: statistics, pauses, payloads, Java's numbers and dates, and whole runs with a broker."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from ottla.kafka_tools.main import load_tool, run_tool
from ottla.kafka_tools.options import ToolError
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
