"""The recipes of examples/stateful.py: with Spark's own tester, and one of them from topic to topic."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections import Counter
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.streaming.tws_tester import TwsTester

_FILE = Path(__file__).resolve().parents[2] / "examples" / "stateful.py"
_SPEC = importlib.util.spec_from_file_location("stateful", _FILE)
assert _SPEC is not None
assert _SPEC.loader is not None
recipes = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(recipes)


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(1_000_000 + seconds, UTC)


def ms(seconds: float) -> int:
    return round((1_000_000 + seconds) * 1000)


def by_event_time(processor: Any) -> TwsTester:
    return TwsTester(processor, timeMode="EventTime", eventTimeExtractor=lambda row: recipes.milliseconds(row.time))


def test_the_first_row_of_an_id_is_kept_until_its_time_is_over() -> None:
    tester = by_event_time(recipes.FirstOfId(60_000))
    rows = [Row(time=at(5), value="late"), Row(time=at(3), value="first")]
    assert tester.test("a", rows) == [Row(id="a", time=at(3), value="first")]
    assert tester.test("a", [Row(time=at(4), value="again")]) == []
    assert tester.test("b", [Row(time=at(4), value="other")]) == [Row(id="b", time=at(4), value="other")]
    assert tester.peekValueState("seen", "a") == (ms(3),)
    tester.setWatermark(ms(63))
    assert tester.peekValueState("seen", "a") is None
    assert tester.test("a", [Row(time=at(60), value="too late")]) == []
    assert tester.test("a", [Row(time=at(70), value="new")]) == [Row(id="a", time=at(70), value="new")]


def test_sessions_end_when_the_watermark_is_past_their_gap() -> None:
    tester = by_event_time(recipes.Sessions(10_000))
    assert tester.test("a", [Row(time=at(0)), Row(time=at(15))]) == []
    assert tester.test("a", [Row(time=at(8))]) == []  # joins both
    assert tester.test("a", [Row(time=at(40))]) == []
    assert tester.setWatermark(ms(24)) == []
    assert tester.setWatermark(ms(25)) == [Row(key="a", start=at(0), end=at(15), rows=3)]
    assert tester.peekListState("open", "a") == [(ms(40), ms(40), 1)]
    assert tester.setWatermark(ms(50)) == [Row(key="a", start=at(40), end=at(40), rows=1)]
    assert tester.peekListState("open", "a") == []


@given(st.lists(st.lists(st.integers(0, 100), max_size=6), max_size=6))
def test_sessions_do_not_depend_on_the_order_of_rows(batches: list[list[int]]) -> None:
    gap, found = 10, []
    for batch in batches:
        found = recipes.merge_sessions([*found, *(recipes.Session(time, time, 1) for time in batch)], gap)
    times = sorted(time for batch in batches for time in batch)
    starts = [time for n, time in enumerate(times) if n == 0 or time - times[n - 1] >= gap]
    assert [each.start for each in found] == starts
    assert sum(each.rows for each in found) == len(times)
    assert all(each.end + gap <= after.start for each, after in pairwise(found))


def test_an_order_waits_for_its_payment_and_a_payment_for_its_order() -> None:
    tester = by_event_time(recipes.OrdersWithPayments(60_000))
    assert tester.test("1", [Row(time=at(0), kind="order", cents=5)]) == []
    assert tester.test("1", [Row(time=at(1), kind="order", cents=5)]) == []
    assert tester.test("1", [Row(time=at(9), kind="payment", cents=4)]) == [Row(id="1", ordered=5, paid=4)]
    both = [Row(time=at(2), kind="payment", cents=7), Row(time=at(1), kind="order", cents=7)]
    assert tester.test("2", both) == [Row(id="2", ordered=7, paid=7)]
    assert tester.test("3", [Row(time=at(5), kind="order", cents=8)]) == []
    assert tester.test("4", [Row(time=at(6), kind="payment", cents=9)]) == []
    left = tester.setWatermark(ms(66))
    assert left == [Row(id="3", ordered=8, paid=None), Row(id="4", ordered=None, paid=9)]
    assert tester.peekMapState("half", "3") == {}


def test_silence_is_reported_once_and_a_row_puts_it_off() -> None:
    tester = TwsTester(recipes.Silence(60_000), timeMode="ProcessingTime")
    tester.setProcessingTime(ms(0))
    tester.test("a", [Row(value=1)])
    tester.test("b", [Row(value=1)])
    assert tester.setProcessingTime(ms(30)) == []
    tester.test("a", [Row(value=2)])
    assert tester.setProcessingTime(ms(60)) == [Row(key="b", silent_since=at(0))]
    assert tester.setProcessingTime(ms(90)) == [Row(key="a", silent_since=at(30))]
    assert tester.setProcessingTime(ms(900)) == []


@pytest.mark.spark
@pytest.mark.slow
def test_sessions_from_topic_to_topic_over_two_runs(
    spark: Any, topics: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark import cloudpickle
    from testbench.spark_chaos.committed import committed

    monkeypatch.setitem(sys.modules, "stateful", recipes)
    cloudpickle.register_pickle_by_value(recipes)
    source, target = topics.make(2), topics.make(1)
    provider = "spark.sql.streaming.stateStore.providerClass"
    spark.conf.set(provider, "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider")

    def run(*clicks: tuple[str, float]) -> list[Any]:
        for user, seconds in clicks:
            topics.put(source, len(user) % 2, [json.dumps({"user": user, "time": ms(seconds) / 1000}).encode()])
        read = spark.readStream.format("ottla").options(**topics.options, subscribe=source, startingOffsets="earliest")
        click = "from_json(CAST(value AS STRING), 'user STRING, time DOUBLE')"
        rows = read.load().selectExpr(f"{click}.user AS user", f"CAST({click}.time AS TIMESTAMP) AS time")
        sessions = rows.withWatermark("time", "0 seconds").groupBy("user").transformWithState(
            recipes.Sessions(10_000), recipes.Sessions.OUT, "Append", "EventTime"
        )  # fmt: skip
        out = sessions.selectExpr("key", "CAST(rows AS STRING) AS value").writeStream.format("ottla")
        query = out.options(**topics.options, topic=target).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query.trigger(availableNow=True).start().awaitTermination()
        return sorted(Counter(committed(topics.bootstrap, target)).elements())

    try:
        assert run(("a", 0), ("bb", 1), ("a", 5)) == []
        assert run(("a", 9), ("a", 100)) == ["1", "3"]  # bb, and the three of a: the next is far away
    finally:
        spark.conf.unset(provider)
