"""docs/config-client.md and the other pages of options, from the rows beside the code that reads them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from ottla.client.columns.columnar import BATCH_BYTES
from ottla.client.consumer.settings import CONSUMER_OPTIONS
from ottla.client.producer.config import PRODUCER_OPTIONS
from ottla.client.security.settings import SECURITY_OPTIONS
from ottla.client.settings import ALL_CLIENTS, CLIENT_OPTIONS, CONSUMERS, PRODUCERS, READERS
from ottla.config.options import BOOLEAN, DURATION, Bounds, Option
from ottla.logtable.options import LOG_OPTIONS
from ottla.pipeline.options import STEP_OPTIONS
from ottla.retry.options import POLICY_OPTIONS, REDIS_OPTIONS, RETRIER_OPTIONS, SERVICE_OPTIONS
from ottla.spark.kafka_keys import NO_EFFECT_SINK, NO_EFFECT_SOURCE, READING, REFUSED_SINK, REFUSED_SOURCE
from ottla.spark.options import SOURCE_OPTIONS
from ottla.spark.sink.sink_options import SINK_OPTIONS
from tools.source import GENERATED

_BOTH: Final = "producers and consumers"
_HOW: Final = (
    "Keys have Kafka's names. They are given to a client as a mapping of text or values (`{KEY: VALUE}`), to the "
    "command line with `-X KEY=VALUE` or in the file of `--command-config`, and to Spark with `kafka.` before them. An "
    "unknown key is an error that names the nearest one. Times are in milliseconds where the name ends in `.ms`, sizes "
    "in bytes.\n"
)
Section = tuple[str, str, Iterable[Option]]
"""Heading, introduction, rows."""


def client_page() -> str:
    """docs/config-client.md."""
    everyone = [row for row in CLIENT_OPTIONS.values() if row.scope == ALL_CLIENTS]
    others = (
        "More keys: [producers](config-producer.md), [consumers](config-consumer.md). An admin client has the keys of "
        "this page, and `isolation.level` of a consumer.\n"
    )
    return option_page(
        "Client keys",
        _HOW + others,
        [
            ("Connections and requests", "", everyone),
            ("TLS and SASL", "[Python clients](clients.md#tls-and-sasl) has examples.\n", SECURITY_OPTIONS.values()),
        ],
        ALL_CLIENTS,
    )


def producer_page() -> str:
    """docs/config-producer.md."""
    shared = [row for row in CLIENT_OPTIONS.values() if row.scope in (PRODUCERS, _BOTH)]
    intro = "A producer also has the [keys of all clients](config-client.md), TLS and SASL among them.\n"
    return option_page("Producer keys", _HOW + intro, [("Keys", "", [*shared, *PRODUCER_OPTIONS.values()])], PRODUCERS)


def consumer_page() -> str:
    """docs/config-consumer.md."""
    shared = [row for row in CLIENT_OPTIONS.values() if row.scope in (CONSUMERS, READERS, _BOTH)]
    intro = "A consumer also has the [keys of all clients](config-client.md), TLS and SASL among them.\n"
    return option_page("Consumer keys", _HOW + intro, [("Keys", "", [*CONSUMER_OPTIONS.values(), *shared])], CONSUMERS)


def spark_page() -> str:
    """docs/config-spark.md."""
    intro = (
        "Options of the format `ottla`, as `.option(NAME, VALUE)`. Names are read in any case; values "
        "are text. An option that is nearly one of these is an error that names it; others are passed over, because "
        "Spark passes on options of all kinds. [PySpark](pyspark.md) explains what they are for.\n"
    )
    keys = (
        "Keys of [all clients](config-client.md) and of [{0}s](config-{0}.md) are given with `kafka.` before them; "
        "`kafka.bootstrap.servers` must be set. "
    )
    defaults = ", ".join(f"`{key}={value}`" for key, value in READING.items())
    source = keys.format("consumer") + f"Their defaults are Kafka's, apart from {defaults}.\n"
    sink = keys.format("producer") + f"Their defaults are Kafka's, apart from `batch.size={BATCH_BYTES}`.\n"
    parts = [
        option_page("Spark options", intro, [("The source", source, SOURCE_OPTIONS.values())]),
        _kafka_tables("source", REFUSED_SOURCE, NO_EFFECT_SOURCE),
        option_sections([("The sink", sink, SINK_OPTIONS.values())]),
        _kafka_tables("sink", REFUSED_SINK, NO_EFFECT_SINK),
    ]
    return "".join(parts)


def log_table_page() -> str:
    """docs/config-log-table.md."""
    intro = (
        "Options of the format `ottla-log`, as `.option(NAME, VALUE)`. Names are read in any case. "
        "[PySpark](pyspark.md) has the columns.\n"
    )
    return option_page("Options of log tables", intro, [("Options", "", LOG_OPTIONS.values())])


def pipeline_page() -> str:
    """docs/config-pipeline.md."""
    intro = (
        "Arguments of `Pipeline.step(source, to=…)`, in Python. A value that is not allowed is a `BadPipeline`. "
        "[Pipelines](pipeline.md) explains steps.\n"
    )
    return option_page("Options of a pipeline's step", intro, [("Options", "", STEP_OPTIONS.values())])


def retry_page() -> str:
    """docs/config-retry.md."""
    intro = "Options of the retry service and of what writes to retry topics. [Retries](retry.md) explains them.\n"
    service = (
        "Given to `ottla retry run` as `--group` and so on, after the retry topics to read; without topics it reads "
        "all. Keys of [all clients](config-client.md) are given with `-X`.\n"
    )
    policy = "Arguments of `RetryPolicy.fixed(delays, …)` and `RetryPolicy.growing(attempts, …)`.\n"
    retrier = "Arguments of `Retrier(producer, policy, …)` and `AsyncRetrier(producer, policy, …)`.\n"
    return option_page(
        "Retry options",
        intro,
        [
            ("The service", service, SERVICE_OPTIONS.values()),
            ("Policies", policy, POLICY_OPTIONS.values()),
            ("Retriers", retrier, RETRIER_OPTIONS.values()),
            ("Redis", "Arguments of `RedisScheduler(url, …)`.\n", REDIS_OPTIONS.values()),
        ],
    )


def _kafka_tables(side: str, refused: Mapping[str, str], no_effect: Mapping[str, str]) -> str:
    accepted = "These are accepted, so that options written for Spark's own connector can be used as they are.\n"
    return reason_table(f"Keys that the {side} refuses", "", refused, "kafka.") + reason_table(
        f"Keys without an effect on the {side}", accepted, no_effect, "kafka."
    )


def option_page(title: str, intro: str, sections: Iterable[Section], scope: str = "") -> str:
    """A page of sections of options. scope: the scope of the whole page."""
    head = f"{GENERATED}`make reference`; edit the rows beside the code -->\n# {title}\n\n{intro}"
    return head + option_sections(sections, scope)


def option_sections(sections: Iterable[Section], scope: str = "") -> str:
    """Sections of options, and last the options without an effect."""
    parts: list[str] = []
    without: dict[str, str] = {}
    for heading, words, rows in sections:
        chosen = list(rows)
        without |= {row.name: row.unused for row in chosen if row.unused}
        working = [row for row in chosen if not row.unused]
        parts += [f"\n## {heading}\n", words and f"\n{words}", *(option_text(row, scope) for row in working)]
    return "".join([*parts, reason_table("Without an effect", "These are accepted.\n", without)])


def reason_table(heading: str, intro: str, reasons: Mapping[str, str], prefix: str = "") -> str:
    """A section with a table of names and reasons; empty without any."""
    if not reasons:
        return ""
    rows = "".join(f"| `{prefix}{name}` | {escape(reason)} |\n" for name, reason in reasons.items())
    return f"\n## {heading}\n{intro and chr(10)}{intro}\n| name | why |\n|---|---|\n{rows}"


def option_text(row: Option, page_scope: str = "") -> str:
    """The section of an option. page_scope: the scope that the whole page has."""
    return f"\n### {row.name}\n\n{escape(row.doc)}\n\n{escape('; '.join(_facts(row, page_scope)))}.\n"


def _facts(row: Option, page_scope: str) -> Iterator[str]:
    yield f"Type: {row.type.value}"
    yield f"default: {row.default_text or _value_text(row.default)}"
    if isinstance(row.allowed, Bounds):
        low, high = row.allowed
        yield f"must be at least {low}" if high is None else f"must be between {low} and {high}"
    elif row.allowed is not None:
        yield f"must be one of {row.words}"
    elif row.type is BOOLEAN:
        yield "must be true or false"
    elif row.type is DURATION:
        yield "a number with a unit, as 500ms, 30s, 15m, 2h"
    if row.scope and row.scope != page_scope:
        yield f"for {row.scope}"
    if row.old_names:
        yield "old names: " + ", ".join(f"`{name}`" for name in row.old_names)
    yield f"since {row.since}"


def _value_text(value: Any) -> str:
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return f"`{text}`" if text else "empty"


def escape(text: str) -> str:
    """Signs that Markdown would read; code stays as it is."""
    parts = text.split("`")
    signs = (("|", "\\|"), ("<", "&lt;"), ("*", "\\*"), ("_", "\\_"))
    for at in range(0, len(parts), 2):
        for sign, written in signs:
            parts[at] = parts[at].replace(sign, written)
    return "`".join(parts)
