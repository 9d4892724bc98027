"""The generated pages of docs/ match the config keys, metrics and commands; `make reference` writes them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from tools.reference import DOCS, PAGES

from ottla.client.consumer.settings import CONSUMER_OPTIONS
from ottla.client.producer.config import PRODUCER_OPTIONS
from ottla.client.security.settings import SECURITY_OPTIONS
from ottla.client.settings import CLIENT_OPTIONS
from ottla.config.broker import BrokerConfig
from ottla.config.options import Option
from ottla.config.rows import rows_of
from ottla.config.topic import TopicConfig
from ottla.logtable.options import LOG_OPTIONS
from ottla.pipeline.options import STEP_OPTIONS
from ottla.retry.options import POLICY_OPTIONS, REDIS_OPTIONS, RETRIER_OPTIONS, SERVICE_OPTIONS
from ottla.spark.options import SOURCE_OPTIONS
from ottla.spark.sink.sink_options import SINK_OPTIONS

BROKER_MADE = "metrics.md"
"""Generated from the metrics of a running broker."""


def assert_current(name: str) -> None:
    written = (DOCS / name).read_text().splitlines()
    wanted = PAGES[name]().splitlines()
    missing = [line for line in wanted if line not in written]
    stale = [line for line in written if line not in wanted]
    assert written == wanted, f"docs/{name} is not current: run `make reference`\n{missing[:5]}\n{stale[:5]}"


@pytest.mark.parametrize("name", [name for name in PAGES if name != BROKER_MADE])
def test_a_page_is_current(name: str) -> None:
    assert_current(name)


@pytest.mark.slow
def test_the_page_of_metrics_is_current() -> None:
    assert_current(BROKER_MADE)


@pytest.mark.parametrize(("page", "owner"), [("config-broker.md", BrokerConfig), ("config-topic.md", TopicConfig)])
def test_every_key_is_on_its_page_once(page: str, owner: type) -> None:
    text = (DOCS / page).read_text()
    for row in rows_of(owner):
        assert count_row(text, row.name) == 1, row.name


def count_row(text: str, name: str) -> int:
    return text.count(f"\n### {name}\n") + text.count(f"\n| `{name}` |")


OPTION_PAGES: list[tuple[Mapping[str, Option], list[str]]] = [
    (CLIENT_OPTIONS, ["config-client.md", "config-producer.md", "config-consumer.md"]),
    (SECURITY_OPTIONS, ["config-client.md"]),
    (PRODUCER_OPTIONS, ["config-producer.md"]),
    (CONSUMER_OPTIONS, ["config-consumer.md"]),
    (SOURCE_OPTIONS, ["config-spark.md"]),
    (SINK_OPTIONS, ["config-spark.md"]),
    (LOG_OPTIONS, ["config-log-table.md"]),
    (STEP_OPTIONS, ["config-pipeline.md"]),
    *((table, ["config-retry.md"]) for table in (SERVICE_OPTIONS, POLICY_OPTIONS, RETRIER_OPTIONS, REDIS_OPTIONS)),
]


@pytest.mark.parametrize(("rows", "pages"), OPTION_PAGES, ids=lambda value: value[0] if isinstance(value, list) else "")
def test_every_option_is_on_its_page_once(rows: Mapping[str, Option], pages: list[str]) -> None:
    texts = [(DOCS / page).read_text() for page in pages]
    for row in rows.values():
        counts = [count_row(text, row.name) for text in texts]
        # A key of producers and consumers is on both pages; the source and the sink of Spark share a page.
        tables = sum(row.name in table for table, others in OPTION_PAGES if others == pages)
        assert sum(counts) == tables + (row.scope == "producers and consumers"), row.name
