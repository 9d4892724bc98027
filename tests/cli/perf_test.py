"""`ottla perf` against a broker, and what it counts with."""

from __future__ import annotations

import json
import random

import pytest

from ottla.cli.perf_stats import Latencies, due_in_s


def test_quantiles_are_less_than_a_hundredth_above_the_truth() -> None:
    draw = random.Random(4)
    true = sorted(int(draw.lognormvariate(7, 2)) for _ in range(20_000))
    seen = Latencies()
    for each in true:
        seen.add_latency(each)
    for share in (0.01, 0.5, 0.9, 0.99, 0.999, 1.0):
        exact = true[max(1, -int(-share * len(true) // 1)) - 1] / 1_000
        assert exact <= seen.quantile_ms(share) <= exact * 1.01
    assert seen.largest_us == true[-1]
    assert seen.mean_ms() == pytest.approx(sum(true) / len(true) / 1_000)


def test_the_histogram_holds_every_duration_once() -> None:
    seen = Latencies()
    for us in (0, 1, 3, 900, 1_000, 1_100, 5_000):
        seen.add_latency(us)
    rows = seen.histogram_rows()
    assert rows[0] == (0.001, 1)
    assert sum(count for _, count in rows) == 7
    assert [bound for bound, _ in rows] == sorted({bound for bound, _ in rows})
    assert (1.024, 2) in rows
    assert [line.split()[2] for line in seen.chart_lines()] == [str(count) for _, count in rows]
    assert Latencies().histogram_rows() == [] == Latencies().chart_lines()
    assert Latencies().quantile_ms(0.5) == 0.0


def test_a_record_is_due_when_the_rate_allows_it() -> None:
    assert due_in_s(100, 100, 0.25) == 0.75
    assert due_in_s(100, 100, 2.0) == 0.0
    assert due_in_s(100, -1, 0.0) == 0.0


def test_producing_prints_kafkas_line_and_a_histogram(ottla) -> None:
    props = ["-X", "allow.auto.create.topics=true", "--producer-props", "acks=1 linger.ms=0"]
    result = ottla(
        "perf", "produce", "--topic", "perf-text", "-n", "300", "--record-size", "10", "--print-metrics", *props
    )
    assert result.exit_code == 0, result.stderr
    first, *rest = result.stdout.splitlines()
    assert first.startswith("300 records sent, ")
    assert first.endswith(" ms 99.9th.")
    assert " records/sec (" in first
    assert sum(int(line.split()[2]) for line in rest if "\t" not in line) == 300
    assert "record-send-total\t300.000" in rest


def test_what_was_sent_is_read_as_records_and_as_a_table(ottla) -> None:
    ottla("topic", "create", "perf-round", "-p", "2")
    sent = ottla("perf", "produce", "perf-round", "-n", "500", "--record-size", "20", "--warmup-records", "100",
                 "-o", "json")  # fmt: skip
    found = json.loads(sent.stdout)
    assert (found["records"], found["failed"], found["bytes"]) == (400, 0, 8_000)
    assert sum(row["count"] for row in found["latency_ms"]["histogram"]) == 400
    assert found["latency_ms"]["p50"] <= found["latency_ms"]["p99.9"] <= found["latency_ms"]["max"] * 1.01
    for words in ([], ["--table"]):
        read = ottla("perf", "consume", "perf-round", "--messages", "500", "-o", "json", *words)
        assert read.exit_code == 0, read.stderr
        assert (json.loads(read.stdout)["records"], json.loads(read.stdout)["bytes"]) == (500, 10_000)
    header, line = ottla("perf", "consume", "-t", "perf-round", "-n", "500").stdout.splitlines()
    assert header.startswith("start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg")
    assert line.split(", ")[4] == "500"
    assert len(line.split(", ")) == len(header.split(", "))


def test_reading_ends_when_nothing_more_comes(ottla) -> None:
    ottla("produce", "perf-few", stdin="a\nb\n")
    result = ottla("perf", "consume", "perf-few", "-n", "3", "--hide-header", "--timeout", "0.5")
    assert result.exit_code == 5
    assert " of 3 were read" in result.stderr
    assert len(result.stdout.splitlines()) == 1


def test_payloads_from_a_file_and_in_transactions(ottla, tmp_path) -> None:
    file = tmp_path / "values"
    file.write_text("one;two;;")
    ottla("topic", "create", "perf-file", "-p", "1")
    words = ["--payload-file", str(file), "--payload-delimiter", ";", "--transaction-duration-ms", "20"]
    result = ottla("perf", "produce", "perf-file", "-n", "30", "--throughput", "300", "-q", *words)
    assert result.exit_code == 0, result.stderr
    assert len(result.stdout.splitlines()) == 1
    read = ottla("consume", "perf-file", "--from-beginning", "-e", "--isolation", "read_committed").stdout.split()
    assert len(read) == 30
    assert set(read) == {"one", "two"}
    end = ottla("offsets", "perf-file").stdout
    assert int(end.rpartition(":")[2]) >= 32, "markers of several transactions lie between the records"


def test_end_to_end(ottla) -> None:
    ottla("topic", "create", "perf-e2e", "-p", "2")
    result = ottla("perf", "e2e", "perf-e2e", "-n", "20", "--warmup-records", "2", "-o", "json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["records"] == 20
    assert found["latency_ms"]["p50"] > 0
    text = ottla("perf", "e2e", "perf-e2e", "-n", "3", "--producer-acks", "1", "-q").stdout.splitlines()
    assert [line.split(":")[0] for line in text] == ["Avg latency", "Percentiles"]


def test_words_that_make_no_test(ottla, tmp_path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    for words in (
        ["produce", "t"],
        ["produce", "-n", "1"],
        ["produce", "t", "-n", "1", "--record-size", "1", "--payload-monotonic"],
        ["produce", "t", "-n", "1", "--payload-file", str(empty)],
        ["produce", "t", "-n", "1", "--warmup-records", "1"],
        ["produce", "t", "-n", "1", "--producer-props", "acks"],
        ["produce", "t", "-n", "1", "--producer-props", "group.id=g"],
        ["consume", "t"],
        ["e2e", "t", "-n", "0"],
    ):
        result = ottla("perf", *words)
        assert result.exit_code == 2, (words, result.stderr)
        assert "Traceback" not in result.stderr
    assert ottla("perf", "produce", "perf-nowhere", "-n", "1", "--timeout", "0.3").exit_code == 3
