"""The steps of a pipeline as values: names, topics, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.pipeline import BadPipeline, Pipeline, Poison, map_rows
from ottla.pipeline.queries import reason_of, source_options, trigger_of
from ottla.pipeline.steps import TopicPosition, check_steps, group_of, sort_steps, topics_of
from ottla.retry import RetryPolicy
from ottla.retry.policy import origin_of


def pipeline(name: str = "shop", **steps: dict[str, Any]) -> Pipeline:
    """Steps by name, each with its arguments."""
    found = Pipeline(name)
    for step, arguments in steps.items():
        found.step(**{"name": step, **arguments})(lambda frame: frame)
    return found


def step(**arguments: Any) -> Any:
    return pipeline(one={"source": "orders", "to": "priced", **arguments}).steps[0]


def test_a_step_with_retries_also_reads_its_retry_topics() -> None:
    found = step(retries=["30s", "5m"])
    assert found.places == {
        "orders": TopicPosition("orders", 0),
        "orders.shop.retry-1": TopicPosition("orders", 1),
        "orders.shop.retry-2": TopicPosition("orders", 2),
    }
    assert found.retry_topics == {"orders.shop.retry-1": 30_000, "orders.shop.retry-2": 300_000}
    assert found.dead_topics == ("orders.shop.dead",)
    assert step(retries=["30s"], dead="graves").dead_topics == ("graves",)
    assert step(dead="graves").places == {"orders": TopicPosition("orders", 0)}
    assert step().dead_topics == ()


@settings(max_examples=25)
@given(st.from_regex(r"[a-z.]{1,9}", fullmatch=True), st.integers(1, 9))
def test_the_retry_service_leaves_the_topics_of_pipelines_alone(source: str, delays: int) -> None:
    """It takes all that are named as its own, and what it handed back would be there twice."""
    for name in ("shop", source):
        (found,) = pipeline(name, one={"source": source, "to": "to", "retries": ["1s"] * delays}).steps
        assert len(found.retry_topics) == delays
        assert [origin_of(topic) for topic in found.retry_topics] == [None] * delays


def test_a_pipeline_called_as_its_source_has_short_names() -> None:
    (found,) = pipeline("orders", one={"source": "orders", "to": "priced", "retries": ["1s"]}).steps
    assert list(found.places) == ["orders", "orders.retry-1"]
    assert found.dead_topics == ("orders.dead",)


def test_the_source_of_a_step_waits_for_no_more_than_the_delays() -> None:
    options = source_options(step(retries=["30s"], start="latest"), "shop", {"bootstrap.servers": "b:1"})
    assert options["subscribe"] == "orders,orders.shop.retry-1"
    assert json.loads(options["topicDelays"]) == {"orders.shop.retry-1": "30000ms"}
    assert (options["kafka.bootstrap.servers"], options["kafka.group.id"]) == ("b:1", "shop")
    assert options["startingOffsets"] == "latest"
    assert source_options(step(options={"failOnDataLoss": "false"}), "shop", {})["failOnDataLoss"] == "false"
    assert "topicDelays" not in source_options(step(), "shop", {})


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"to": ""}, "name the topic"),
        ({"source": ()}, "name the topic"),
        ({"name": "a b"}, "must be 1 to 100 letters"),
        ({"to": "orders"}, "to=orders is read by this step: that is an endless loop"),
        ({"retries": ["1s"], "dead": "orders"}, "dead=orders is read by this step"),
        ({"retries": ["1s"], "to": "orders.shop.retry-1"}, "endless loop"),
        ({"dead": "priced"}, "results and dead letters both go to priced"),
        ({"retries": ["soon"]}, "'soon' is not a duration"),
        ({"retries": "30s"}, "delays are a list"),
        ({"retries": ["0s"]}, "fail again at once"),
        ({"retries": ["-1s"]}, "is not"),
        ({"retry_on": [ValueError]}, "have no effect without"),
        ({"retries": RetryPolicy.growing(5)}, "use RetryPolicy.fixed"),
        ({"retries": RetryPolicy.fixed(["1s"]), "dead": "x"}, "in the policy"),
        ({"required": ["headers"]}, "key and value, not headers"),
        ({"start": "middle"}, "start must be earliest, latest or group, not 'middle'"),
        ({"exactly_once": "yes"}, "exactly_once must be auto, "),
        ({"offsets_in_transaction": "yes"}, "offsets_in_transaction must be auto, true or false"),
        ({"batch_tasks": 0}, "batch_tasks must be "),
        ({"output_mode": "update"}, "append or complete"),
        ({"partitions": 0}, "at least 1"),
        ({"options": {"Subscribe": "x"}}, "the pipeline sets the option Subscribe itself"),
        ({"options": {"MaxRecordsOnDriver": "9"}}, "MaxRecordsOnDriver is not possible in a pipeline"),
        ({"options": {"kafka.acks": "1"}}, "for Kafka's settings Pipeline"),
        ({"source": ["a", "a.shop.retry-1"], "retries": ["1s"]}, "name of another's retry topic"),
    ],
)
def test_steps_that_cannot_work_are_refused(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(BadPipeline, match=text):
        step(**arguments)


def test_steps_that_cannot_work_together_are_refused() -> None:
    one = {"source": "orders", "to": "priced"}
    found = pipeline(a=one)
    with pytest.raises(BadPipeline, match="two steps are called a"):
        found.step("x", to="y", name="a")(lambda frame: frame)
    with pytest.raises(BadPipeline, match="both read orders, and both would get retries of one"):
        found.step("orders", to="y", name="b", retries=["1s"])(lambda frame: frame)
    assert len(found.steps) == 1
    with pytest.raises(BadPipeline, match="no step"):
        check_steps([])
    with pytest.raises(BadPipeline, match="pipeline's name"):
        Pipeline("a b")


def test_steps_that_read_the_same_topic_have_groups_of_their_own() -> None:
    steps = pipeline(a={"source": "x", "to": "y"}, b={"source": "x", "to": "z"}, c={"source": "y", "to": "w"}).steps
    assert [group_of("shop", one, steps) for one in steps] == ["shop.a", "shop.b", "shop"]


def test_a_step_is_called_as_its_function() -> None:
    found = Pipeline("shop")

    @found.step("orders", to="priced")
    @map_rows
    def price(record: Any) -> bytes:
        return b""

    assert [one.name for one in found.steps] == ["price"]
    assert not found.steps[0].is_frame_step
    assert price.function is not None


def test_steps_run_after_those_that_write_what_they_read() -> None:
    found = pipeline(
        last={"source": "c", "to": "d"}, first={"source": "a", "to": "b"}, middle={"source": "b", "to": "c"}
    )
    assert [one.name for one in sort_steps(found.steps)] == ["first", "middle", "last"]


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.sampled_from("vwxyzabc")), max_size=6))
def test_every_step_is_in_the_order_once_circles_or_not(edges: list[tuple[str, str]]) -> None:
    named = {f"s{n}": {"source": a, "to": b} for n, (a, b) in enumerate(edges) if a != b}
    steps = pipeline(**named).steps
    assert sorted(one.name for one in sort_steps(steps)) == sorted(named)


def test_the_topics_that_are_needed() -> None:
    found = pipeline(
        a={"source": "x", "to": "y", "retries": ["10d"], "max_record_bytes": 5_000_000}, b={"source": "y", "to": "z"}
    )
    wanted = {one.name: one for one in topics_of(found.steps)}
    assert {name: one.role for name, one in wanted.items()} == {
        "x": "source", "y": "output", "x.shop.retry-1": "retry", "x.shop.dead": "dead", "z": "output",
    }  # fmt: skip
    retry = wanted["x.shop.retry-1"]
    assert retry.like == ("x",)
    assert retry.configs["message.timestamp.type"] == "LogAppendTime"
    assert int(retry.configs["retention.ms"]) == 20 * 86_400_000, "nothing is deleted before it is due"
    assert int(retry.configs["max.message.bytes"]) > 5_000_000


def test_hopeless_errors_are_not_retried() -> None:
    policy = step(retries=["1s"], abort_on=[KeyError]).policy
    assert policy is not None
    for error in (Poison("x"), UnicodeDecodeError("utf-8", b"x", 0, 1, "x"), KeyError(1)):
        assert not policy.retries(error)
    assert policy.retries(OSError())


def test_triggers() -> None:
    assert trigger_of("available_now") == trigger_of("available-now") == {"availableNow": True}
    assert trigger_of("5s") == {"processingTime": "5000 milliseconds"}
    for text in ("continuous", "", "5 weeks"):
        with pytest.raises(BadPipeline, match="available_now or a duration"):
            trigger_of(text)


def test_the_reason_of_a_failure_is_the_last_error_of_ours() -> None:
    text = (
        "[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted\nTraceback (most recent call last):\n"
        "ValueError: inner\nottla.spark.errors.DataLoss: t-0 is gone. Set failOnDataLoss\n  at org.apache.spark"
    )
    assert reason_of(RuntimeError(text)) == "DataLoss: t-0 is gone. Set failOnDataLoss"
    assert reason_of(RuntimeError("x\nbuiltins.ValueError: odd\n")) == "ValueError: odd"
    assert reason_of(RuntimeError("first\nsecond")) == "first"
    java = "An error occurred while calling o34.load.\n: org.apache.spark.SparkException: [SOME] thing is wrong\n\tat x"
    assert reason_of(RuntimeError(java)) == "SparkException: [SOME] thing is wrong"
    java = "An error occurred while calling o34.load.\n: org.x.Y: [DATA_SOURCE_NOT_FOUND] Failed to find: ottla."
    assert "PYSPARK_PYTHON" in reason_of(RuntimeError(java))
    assert reason_of(RuntimeError("")) == "RuntimeError"
