"""docs/metrics.md, from the page /metrics of a broker that has served a producer and a consumer.

And from the metrics that pipelines and queries on PySpark declare.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple
from urllib.request import urlopen

from testbench.ottla_node import OttlaNode
from testbench.ports import free_port

from ottla.client import Consumer, Producer
from ottla.metrics import Registry
from ottla.pipeline import Pipeline
from ottla.pipeline.service import ServedPipeline, add_service_metrics
from ottla.pipeline.supervision import Supervision
from ottla.spark.monitoring.query_figures import QueryTable, add_query_metrics
from tools.source import GENERATED

_SAMPLE: Final = re.compile(r"(\w+)\{(.*)\} ")
_LABEL: Final = re.compile(r'(\w+)="')
_SUFFIX: Final = re.compile(r"_(?:bucket|sum|count)$")
_GROUPS: Final = (
    ("kafka_server_", "Requests, replicas and topics"),
    ("kafka_network_", "Requests by API"),
    ("kafka_controller_", "The controller"),
    ("kafka_coordinator_", "Group and transaction coordinators"),
    ("kafka_log_", "Logs and compaction"),
    ("kafka_", "What kafka_exporter and others call so"),
    ("ottla_", "Ottla's own"),
    ("", "The process"),
)
"""Prefixes of names and the headings under which they stand; the first that fits."""


class Row(NamedTuple):
    """One metric."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...]


def metrics_page() -> str:
    """The page."""
    return "".join([*_lines(read_metrics(_scrape())), *_lines_of_queries(read_metrics(_query_metrics()))])


def _query_metrics() -> str:
    """The text of the metrics of queries and of `ottla pipeline serve`, with a sample of each."""
    registry, queries = Registry(), QueryTable()
    add_query_metrics(registry, queries)
    served = ServedPipeline("shop", lambda: Pipeline("shop"), "5s", Supervision())
    add_service_metrics(registry, lambda: [served])
    source = {"latestOffset": {"orders": {"0": 1}}, "endOffset": {"orders": {"0": 0}}}
    queries.on_progress("shop.price", "run", {"batchId": 0, "sources": [source]}, 0.0)
    return registry.render_text()


def _lines_of_queries(rows: list[Row]) -> Iterator[str]:
    yield "\n## Queries and pipelines on PySpark\n\n"
    yield "`ottla pipeline serve --http HOST:PORT` shows these ([pipelines](pipeline.md#pipelines-as-a-service)), and "
    yield "those that begin with `ottla_query` also `ottla.spark.QueryMetrics` "
    yield "([PySpark](pyspark.md#metrics-of-queries)). The query of a pipeline's step is named `pipeline.step`.\n\n"
    yield "| metric | what it counts |\n|---|---|\n"
    yield from map(_row_text, rows)


def _scrape() -> str:
    """The text of /metrics, with a sample of whatever has labels."""
    port = free_port()
    settings = {"ottla.http.listener": f"127.0.0.1:{port}"}
    with tempfile.TemporaryDirectory() as directory, OttlaNode(Path(directory) / "data", settings) as broker:
        client = {"bootstrap.servers": broker.bootstrap}
        with Producer(client) as producer:
            producer.send("orders", b"tea")
        with Consumer(client | {"group.id": "billing", "auto.offset.reset": "earliest"}) as consumer:
            consumer.subscribe(["orders"])
            while not consumer.poll(1.0):
                pass
            consumer.commit()
            with urlopen(f"http://127.0.0.1:{port}/metrics") as page:
                return str(page.read(), "utf-8")


def read_metrics(text: str) -> list[Row]:
    """The metrics of a page in Prometheus' text format, by name."""
    helps, kinds, labels = dict[str, str](), dict[str, str](), dict[str, dict[str, None]]()
    for line in text.splitlines():
        if line.startswith("# HELP "):
            _, _, name, words = line.split(" ", 3)
            helps[name] = words
        elif line.startswith("# TYPE "):
            _, _, name, kinds[name] = line.split(" ", 3)
        elif found := _SAMPLE.match(line):
            name = found.group(1) if found.group(1) in helps else _SUFFIX.sub("", found.group(1))
            labels.setdefault(name, {}).update(dict.fromkeys(_LABEL.findall(found.group(2))))
    return [
        Row(name, kinds[name], helps[name], tuple(label for label in labels.get(name, ()) if label != "le"))
        for name in sorted(helps)
    ]


def _lines(rows: list[Row]) -> Iterator[str]:
    yield f"{GENERATED}`make reference`; edit the help where the metric is registered -->\n# Metrics\n\n"
    yield "A broker shows these at `http://HOST:PORT/metrics` for Prometheus, and whether it is well at `/health`, "
    yield "where `ottla.http.listener=HOST:PORT` is set ([broker keys](config-broker.md)). Names follow the JMX "
    yield "exporter's rule for Apache Kafka, so that dashboards for Kafka work. "
    yield "A counter only grows since the broker's start.\n"
    left = rows
    for prefix, title in _GROUPS:
        chosen = [row for row in left if row.name.startswith(prefix)]
        left = [row for row in left if row not in chosen]
        if chosen:
            yield f"\n## {title}\n\n| metric | what it counts |\n|---|---|\n"
            yield from map(_row_text, chosen)


def _row_text(row: Row) -> str:
    labels = ", ".join(f"`{label}`" for label in row.labels)
    by = f" by {labels}" if labels else ""
    text = row.help.replace("|", chr(92) + "|").replace("__", chr(92) + "__")
    return f"| `{row.name}` | {text} {row.kind.capitalize()}{by}. |\n"
