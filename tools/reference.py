"""The reference pages of docs/, written from the rows, metrics and commands that they describe.

    python -m tools.reference            write them
    python -m tools.reference --check    exit code 1 and the names of those that are not current

Never edit these pages: edit the row, the help of the metric or of the option, and run `make reference`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from ottla.config.broker import BrokerConfig
from ottla.config.rows import Dynamic, Row, Type, Value, render_value, rows_of
from ottla.config.topic import TopicConfig
from tools import options_reference as options
from tools.cli_reference import cli_page
from tools.metrics_reference import metrics_page
from tools.source import GENERATED, ROOT

DOCS: Final = ROOT / "docs"
_SECTIONS: Final = {
    "ServerConfig": "The broker and its connections",
    "LogConfig": "Logs",
    "ReplicationConfig": "Replication and the cluster",
    "CoordinatorConfig": "Groups and transactions",
    "AuthorizerConfig": "Authorization",
    "SaslConfig": "Logins by SASL",
    "BrokerConfig": "Others",
}
"""Headings of the classes that hold rows; a class that is not named here is its own heading."""
_SCOPES: Final = {
    Dynamic.READ_ONLY: "read at start",
    Dynamic.PER_BROKER: "can be altered for one listener of a broker while it runs",
    Dynamic.CLUSTER_WIDE: "can be altered while the cluster runs",
}


def main(words: list[str]) -> int:
    """Write or check all pages."""
    parser = argparse.ArgumentParser(prog="python -m tools.reference", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args(words).check
    stale = [name for name, page in PAGES.items() if _write_page(DOCS / name, page(), check=check)]
    for name in stale:
        print(f"docs/{name}: {'not current; run `make reference`' if check else 'written'}")
    return int(check and bool(stale))


def _write_page(path: Path, text: str, *, check: bool) -> bool:
    """Whether the page was another one."""
    changed = not path.exists() or path.read_text(encoding="utf-8") != text
    if changed and not check:
        path.write_text(text, encoding="utf-8")
    return changed


def broker_page() -> str:
    """docs/config-broker.md."""
    return "".join(_broker_lines())


def _broker_lines() -> Iterator[str]:
    yield _head("Broker keys", "set with `ottla up --set KEY=VALUE`, or in the file that `ottla server --config` reads")
    yield "A key that can be altered while the cluster runs has one value for all brokers (`AlterConfigs` with an "
    yield "empty broker name). Times are in the unit that the name ends in, sizes in bytes. "
    yield "[Topic keys](config-topic.md) override the broker's defaults for one topic.\n"
    without: list[Row] = []
    for title, rows in _sections(BrokerConfig):
        working = [row for row in rows if not row.unused]
        without += [row for row in rows if row.unused]
        if working:
            yield f"\n## {title}\n"
            yield from map(_key_text, working)
    yield from _without_effect(without)


def topic_page() -> str:
    """docs/config-topic.md."""
    rows = list(rows_of(TopicConfig))
    return "".join(
        [
            _head("Topic keys", "set with `ottla topic create -c KEY=VALUE` and `ottla topic alter -c KEY=VALUE`"),
            "A topic takes the value of the broker key named below where it has none of its own. ",
            "All topic keys can be altered while the topic is in use.\n\n## Keys\n",
            *(_key_text(row, scope=False) for row in rows if not row.unused),
            *_without_effect([row for row in rows if row.unused]),
        ]
    )


def _head(title: str, how: str) -> str:
    return f"{GENERATED}`make reference`; edit the rows in src/ottla/config -->\n# {title}\n\nKeys are {how}. "


def _sections(owner: type[object]) -> Iterator[tuple[str, list[Row]]]:
    """The rows of a dataclass by the class that declares them, its bases first."""
    seen: set[str] = set()
    for each in reversed(owner.__mro__):
        rows = [row for row in rows_of(each) if row.name not in seen] if each is not object else []
        seen.update(row.name for row in rows)
        yield _SECTIONS.get(each.__name__, each.__name__), rows


def _key_text(row: Row, *, scope: bool = True) -> str:
    facts = [f"Type: {row.type.name.lower()}", f"default: {_default_text(row)}"]
    if row.check is not None:
        facts.append(f"must be {row.check.text}")
    elif row.type is Type.BOOLEAN:
        facts.append("must be true or false")
    facts += [f"importance: {row.importance.value}", *([_SCOPES[row.dynamic]] if scope else [])]
    others = [name for name in row.synonyms if name != row.name or not scope]
    if others:
        facts.append(("other names: " if scope else "default from: ") + ", ".join(f"`{name}`" for name in others))
    facts.append(f"since {row.since}")
    return f"\n### {row.name}\n\n{_escape(row.doc)}\n\n{_escape('; '.join(facts))}.\n"


def _default_text(row: Row) -> str:
    value: Value = row.default
    if value is None:
        return "not set"
    text = render_value(value)
    return f"`{text}`" if text else "empty"


def _without_effect(rows: list[Row]) -> Iterator[str]:
    if rows:
        yield "\n## Keys without an effect\n\nThese are accepted, so that a configuration written for Apache Kafka can "
        yield "be used as it is. The broker names each of them that is set when it starts.\n\n"
        yield "| key | why |\n|---|---|\n"
        yield from (f"| `{row.name}` | {_escape(row.unused)} |\n" for row in rows)


def _escape(text: str) -> str:
    """Signs that Markdown would read."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "config-broker.md": broker_page,
    "config-topic.md": topic_page,
    "config-client.md": options.client_page,
    "config-producer.md": options.producer_page,
    "config-consumer.md": options.consumer_page,
    "config-spark.md": options.spark_page,
    "config-log-table.md": options.log_table_page,
    "config-retry.md": options.retry_page,
    "config-pipeline.md": options.pipeline_page,
    "metrics.md": metrics_page,
    "cli-reference.md": cli_page,
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
