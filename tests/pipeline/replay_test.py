"""A replay of a pipeline: the steps of the second one, and the counts of both outputs. Spark is not needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ottla.client import Producer
from ottla.pipeline import BadPipeline, Pipeline
from ottla.pipeline.queries import source_options
from ottla.pipeline.replay import OutputCount, count_outputs, replay_pipeline
from ottla.pipeline.steps import topics_of
from ottla.testing.spark import EmbeddedTopics, Input


def same(frame: Any) -> Any:
    return frame


def make_shop(bootstrap: str = "nowhere:1") -> Pipeline:
    shop = Pipeline("shop", bootstrap)
    options = {"maxOffsetsPerTrigger": "9", "StartingTimestamp": "5"}
    shop.step("orders", to="priced", retries=["30s"], name="price", start="latest", options=options)(same)
    shop.step("priced", to="large", dead="odd", name="choose")(same)
    return shop


def test_the_second_pipeline_reads_from_the_time_and_writes_beside_the_first() -> None:
    shop = make_shop()
    before = topics_of(shop.steps)
    again = replay_pipeline(shop, "shop2", 1_700_000_000_000)
    price, choose = again.steps
    assert (again.name, price.sources, price.to) == ("shop2", ("orders",), "priced.shop2")
    assert (price.retry_topics, price.dead_topics) == ({"orders.shop2.retry-1": 30_000}, ("orders.shop2.dead",))
    assert (choose.sources, choose.to, choose.dead_topics) == (("priced.shop2",), "large.shop2", ("odd.shop2",))
    options = source_options(price, "shop2", {})
    assert options["startingTimestamp"] == "1700000000000"
    assert "StartingTimestamp" not in options, "the pipeline's own"
    assert options["startingOffsetsByTimestampStrategy"] == "latest"
    assert (options["startingOffsets"], options["maxOffsetsPerTrigger"]) == ("earliest", "9")
    assert "startingTimestamp" not in source_options(choose, "shop2", {}), "its source begins with the replay"
    assert topics_of(shop.steps) == before, "the first pipeline stays"
    written = {topic.name for topic in topics_of(again.steps) if topic.role != "source"}
    assert not written & {topic.name for topic in before}


def test_the_topics_of_a_replay_are_those_of_a_pipeline_with_its_name() -> None:
    named = Pipeline("shop2")
    named.step("orders", to="priced.shop2", retries=["30s"], name="price")(same)
    assert replay_pipeline(make_shop(), "shop2", 0).steps[0].base == named.steps[0].base


@pytest.mark.parametrize("name", ["shop", "", "with space", "x" * 101])
def test_names_that_are_none_are_refused(name: str) -> None:
    with pytest.raises(BadPipeline, match="must be another one than shop"):
        replay_pipeline(make_shop(), name, 0)


def test_committed_records_are_counted_from_the_time_on(tmp_path: Path) -> None:
    with EmbeddedTopics(None, tmp_path) as topics:
        shop = make_shop(topics.bootstrap)
        again = replay_pipeline(shop, "v2", 2_000)
        topics.create_topic("orders")
        topics.feed("priced", [Input("a", timestamp=1_000 + 100 * number, partition=0) for number in range(20)])
        topics.feed("priced.v2", ["a"] * 7, partitions=2)
        topics.feed("odd", [Input("early", timestamp=1)])
        transaction = {"bootstrap.servers": topics.bootstrap, "transactional.id": "t"}
        with Producer(transaction) as producer:
            producer.init_transactions()
            for topic, count, end in (("odd.v2", 3, "commit"), ("odd.v2", 5, "abort"), ("priced.v2", 1, "commit")):
                producer.begin_transaction()
                for _ in range(count):
                    producer.send(topic, b"x", partition=0)
                if end == "commit":
                    producer.commit_transaction()
                else:
                    producer.abort_transaction()
        price, choose = count_outputs(shop, again, 2_000)
        assert price == OutputCount("price", "priced", 10, 0, "priced.v2", 8, 0)
        assert choose == OutputCount("choose", "large", 0, 0, "large.v2", 0, 3)
