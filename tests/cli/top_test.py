"""`ottla top`: rates from samples, and samples from a broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest
from tests.cli.conftest import Ottla

from ottla.cli.main import cli
from ottla.cli.views import samples
from ottla.cli.views.rates import (
    GroupRate,
    Sample,
    amount_text,
    duration_text,
    group_rates,
    parse_counters,
    top_rows,
    topic_rates,
)
from ottla.cli.views.samples import Sampler
from ottla.client import Consumer, Producer
from ottla.types import TopicPartition as Tp

PAGE = """# TYPE kafka_server_brokertopicmetrics_bytesin_total counter
kafka_server_brokertopicmetrics_bytesin_total 7
kafka_server_brokertopicmetrics_bytesin_total{topic="a"} 100.5
kafka_server_brokertopicmetrics_bytesin_total{topic="b",x="y"} 1e3
kafka_server_brokertopicmetrics_bytesoutpersec_count{topic="a"} 5 1700000000000
kafka_server_brokertopicmetrics_messagesin_total{topic="a"} 3
kafka_server_brokertopicmetrics_bytesout_total{topic="a"} NaN
"""


def sample(
    time_s: float, ends: dict[Tp, int], groups: dict[str, dict[Tp, int]] | None = None, **more: object
) -> Sample:
    return Sample(time_s, ends, more.get("sizes", {}), groups or {}, more.get("counters", {}))  # type: ignore[arg-type]


def test_rates_of_topics() -> None:
    before = sample(10, {Tp("a", 0): 100, Tp("a", 1): 0, Tp("a", 2): 5, Tp("b", 0): 9}, sizes={Tp("a", 0): 1_000})
    after = sample(
        12, {Tp("a", 0): 180, Tp("a", 1): 20, Tp("a", 2): 0, Tp("b", 0): 9, Tp("new", 0): 5}, sizes={Tp("a", 0): 3_000}
    )
    a, b = topic_rates(before, after)
    assert a.rate_document() == {
        "topic": "a", "partitions": 3, "records_in_per_s": 50.0, "bytes_in_per_s": 1000.0, "bytes_out_per_s": None,
        "hottest": {"partition": 0, "share": 0.8, "is_hot": True},
    }  # fmt: skip
    assert (b.topic, b.records_in, b.bytes_in, b.hottest) == ("b", 0, None, None)
    assert top_rows([a, b], [])[0] == [("a", 3, "50", "1k", None, "0 (80%)"), ("b", 1, "0", None, None, None)]


def test_bytes_come_from_the_metrics_where_there_are_some() -> None:
    ends = {Tp("a", 0): 1, Tp("quiet", 0): 1}
    counters = [{("bytesin", "a"): at, ("bytesout", "a"): 2 * at} for at in (100.0, 300.0)]
    a, quiet = topic_rates(sample(0, ends, counters=counters[0]), sample(2, ends, counters=counters[1]))
    assert (a.bytes_in, a.bytes_out, quiet.bytes_in, quiet.bytes_out) == (100.0, 200.0, 0.0, 0.0)
    restarted = topic_rates(sample(0, ends, counters=counters[1]), sample(2, ends, counters=counters[0]))
    assert restarted[0].bytes_in == 0.0


@pytest.mark.parametrize(
    ("read", "written", "expected"),
    [(50, 10, GroupRate("g", "a", 60, 25.0, 3.0)), (10, 50, GroupRate("g", "a", 140, 5.0, None)),
     (100, 0, GroupRate("g", "a", 0, 50.0, 0.0)), (0, 0, GroupRate("g", "a", 100, 0.0, None))],
)  # fmt: skip
def test_the_time_to_catch_up(read: int, written: int, expected: GroupRate) -> None:
    # A partition of which the group has no position does not count.
    before = sample(0, {Tp("a", 0): 200, Tp("a", 1): 999}, {"g": {Tp("a", 0): 100}})
    after = sample(2, {Tp("a", 0): 200 + written, Tp("a", 1): 9_999}, {"g": {Tp("a", 0): 100 + read}})
    assert group_rates(before, after) == [expected]


def test_the_metrics_of_a_broker() -> None:
    assert parse_counters(PAGE) == {("bytesin", "a"): 100.5, ("bytesin", "b"): 1000.0, ("bytesout", "a"): 5.0}
    assert parse_counters('kafka_server_brokertopicmetrics_bytesin_total{topic="' + "x" * 100_000) == {}


def test_numbers_for_people() -> None:
    assert [amount_text(each) for each in (None, 0, 999, 1_000, 1_234_567, 5e9, 999_900)] == [
        None, "0", "999", "1k", "1.23M", "5G", "1000k",
    ]  # fmt: skip
    assert [duration_text(each) for each in (None, 0, 59, 90, 7_200, 200_000)] == [
        "never",
        "0s",
        "59s",
        "1.5m",
        "2.0h",
        "2.3d",
    ]


@pytest.fixture
def page() -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(PAGE.encode())

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/metrics"
        server.shutdown()
        thread.join()


@pytest.mark.slow
def test_samples_of_a_broker(ottla: Ottla, brokers: str, page: str) -> None:
    from ottla.client.cluster import Cluster
    from ottla.client.settings import ClientConfig

    ottla("topic", "create", "sampled", "-p", "2")
    with (
        Cluster(ClientConfig.from_mapping({"bootstrap.servers": brokers})) as cluster,
        Producer({"bootstrap.servers": brokers}) as producer,
        Consumer({"bootstrap.servers": brokers, "group.id": "sampled"}) as consumer,
        cli.make_context("ottla", ["--quiet", "top"]),
    ):
        sampler = Sampler(cluster, ["sampled"], ["sampled"], [])
        consumer.commit({Tp("sampled", 0): 0})
        before = sampler.take_sample()
        for _ in range(10):
            producer.send("sampled", b"x" * 100, partition=0)
        producer.flush()
        consumer.commit({Tp("sampled", 0): 4})
        after = sampler.take_sample()._replace(time_s=before.time_s + 2)
        (topic,), (group,) = topic_rates(before, after), group_rates(before, after)
        assert (topic.topic, topic.records_in, topic.hottest, topic.share) == ("sampled", 5, 0, 1)
        assert topic.bytes_in is not None
        assert topic.bytes_in > 400
        assert group == GroupRate("sampled", "sampled", 6, 2.0, None)
        assert Sampler(cluster, ["sampled"], [], [page, page]).take_sample().counters[("bytesin", "a")] == 201.0
        away = Sampler(cluster, ["sampled"], [], [page, "http://127.0.0.1:1/metrics"]).take_sample()
        assert (away.counters, len(away.sizes)) == ({}, 2)


@pytest.mark.slow
def test_the_command(ottla: Ottla) -> None:
    ottla("topic", "create", "topped", "-p", "2")
    words = ("top", "topped", "--once", "--interval", "0.1")
    found = json.loads(ottla(*words, "-o", "json").stdout)
    assert found["topics"] == [
        {"topic": "topped", "partitions": 2, "records_in_per_s": 0.0, "bytes_in_per_s": 0.0, "bytes_out_per_s": None,
         "hottest": None}
    ]  # fmt: skip
    assert ottla(*words).stdout.splitlines()[0].startswith("TOPIC")
    assert ottla("top", "topless", "--once").exit_code == 3
    assert ottla(*words, "--metrics", "file:///etc/passwd").exit_code == 2


def test_a_page_without_an_end(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_counters(samples.read_page(page))
    monkeypatch.setattr(samples, "_METRICS_BYTES", len(PAGE) - 1)
    with pytest.raises(OSError, match="longer than"):
        samples.read_page(page)
    monkeypatch.undo()
    monkeypatch.setattr(samples, "_PAGE_S", -1.0)
    with pytest.raises(TimeoutError, match="did not end"):
        samples.read_page(page)
