"""Options as rows: every field has one, every row is read, every default is allowed.

`reference_test` compares the pages of docs/ with the rows.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from functools import cache
from inspect import signature
from pathlib import Path
from typing import NamedTuple

import pytest

import ottla
from ottla.client.consumer.settings import CONSUMER_OPTIONS, ConsumerConfig
from ottla.client.producer.config import PRODUCER_OPTIONS, ProducerConfig
from ottla.client.security.settings import SECURITY_OPTIONS, SecurityConfig
from ottla.client.setting_values import join_words, parse_setting
from ottla.client.settings import CLIENT_OPTIONS, ClientConfig
from ottla.config.broker import BROKER_ROWS
from ottla.config.options import FUNCTION, OBJECTS, Bounds, Option, suggest_name
from ottla.config.providers import PROVIDERS
from ottla.config.topic import TOPIC_ROWS
from ottla.logtable.options import LOG_OPTIONS
from ottla.pipeline import Pipeline
from ottla.pipeline.options import STEP_OPTIONS, StepOptions
from ottla.retry import AsyncRetrier, Mover, PolicyError, RedisScheduler, Retrier, RetryPolicy
from ottla.retry.options import (
    POLICY_OPTIONS,
    REDIS_OPTIONS,
    RETRIER_OPTIONS,
    SERVICE_OPTIONS,
    RetrierOptions,
    ServiceOptions,
)
from ottla.spark.option_values import ParsedOptions
from ottla.spark.options import SOURCE_OPTIONS
from ottla.spark.sink.sink_options import SINK_OPTIONS, ExactlyOnceOptions

ROOT = Path(ottla.__file__).parent
CLIENT_TABLES = (CLIENT_OPTIONS, SECURITY_OPTIONS, PRODUCER_OPTIONS, CONSUMER_OPTIONS)
SPARK_TABLES = (SOURCE_OPTIONS, SINK_OPTIONS, LOG_OPTIONS)
OWNERS = (
    ClientConfig,
    SecurityConfig,
    ProducerConfig,
    ConsumerConfig,
    ExactlyOnceOptions,
    StepOptions,
    ServiceOptions,
    RetrierOptions,
)
ROWS = [row for table in CLIENT_TABLES for row in table.values()]
DOTTED = re.compile(r"[a-z]+(\.[a-z]+)+")
NESTED = {"client", "security"}
"""Fields that hold another dataclass of options."""


class Words(NamedTuple):
    """What a room reads, and what it asks for by name."""

    attributes: frozenset[str]
    texts: frozenset[str]


@cache
def words_of(room: str) -> Words:
    """The words of a room, which is parsed once."""
    trees = [ast.parse(path.read_text()) for path in (ROOT / room).rglob("*.py")]
    return Words(
        frozenset(name for tree in trees for name in attributes_read(tree)),
        frozenset(text for tree in trees for text in texts_outside_rows(tree)),
    )


def attributes_read(tree: ast.AST) -> Iterator[str]:
    """Names of attributes that are read, without the checks of the dataclasses themselves."""
    if isinstance(tree, ast.FunctionDef) and tree.name == "__post_init__":
        return
    if isinstance(tree, ast.Attribute):
        yield tree.attr
    for inner in ast.iter_child_nodes(tree):
        yield from attributes_read(inner)


@pytest.mark.parametrize("owner", OWNERS)
def test_every_field_has_a_row(owner: type) -> None:
    assert {each.name for each in fields(owner) if "option" not in each.metadata} <= NESTED


def test_a_name_has_one_row() -> None:
    names = [row.name for row in ROWS]
    assert len(names) == len(set(names))


def test_only_options_that_no_code_reads_are_marked_unused() -> None:
    read = words_of("client").attributes | words_of("spark").attributes
    for row in ROWS:
        assert (row.attribute in read) != bool(row.unused), row.name


def texts_outside_rows(tree: ast.AST) -> Iterator[str]:
    """String constants, without those in declarations of rows."""
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id in ("Option", "option"):
        return
    if isinstance(tree, ast.Constant) and isinstance(tree.value, str):
        yield tree.value
    for inner in ast.iter_child_nodes(tree):
        yield from texts_outside_rows(inner)


@pytest.mark.parametrize("table", SPARK_TABLES, ids=["source", "sink", "log"])
def test_every_option_of_spark_is_read(table: Mapping[str, Option]) -> None:
    """A row is a field that is read, or its name is asked for: `given.value("endingOffsets")`."""
    read = words_of("spark").attributes | words_of("logtable").attributes
    asked = words_of("spark").texts | words_of("logtable").texts
    asked |= {f"{side}{text}" for side in ("starting", "ending") for text in asked if text[:1].isupper()}
    asked |= {f"kafka.compression.{codec}.level" for codec in ("gzip", "lz4", "zstd")}
    for row in table.values():
        assert bool(row.unused) or (row.attribute in read if row.attribute else row.name in asked), row.name


@pytest.mark.parametrize("table", SPARK_TABLES, ids=["source", "sink", "log"])
def test_a_row_of_spark_is_complete(table: Mapping[str, Option]) -> None:
    for name, row in table.items():
        assert (row.name, row.doc[-1]) == (name, ".")
        assert row.default is None or row.is_allowed(row.default)


def test_the_arguments_of_a_step_are_its_rows() -> None:
    arguments = signature(Pipeline.step).parameters
    assert list(arguments)[3:] == list(STEP_OPTIONS)
    read = words_of("pipeline").attributes
    for row in STEP_OPTIONS.values():
        assert arguments[row.name].default == row.default
        assert row.attribute in read
        assert row.doc[-1] == "."


def test_the_arguments_of_retries_are_their_rows() -> None:
    check_arguments(RedisScheduler, REDIS_OPTIONS, list(REDIS_OPTIONS))
    check_arguments(Mover, SERVICE_OPTIONS, ["group", "instance"])
    for retrier in (Retrier, AsyncRetrier):
        check_arguments(retrier, RETRIER_OPTIONS, list(RETRIER_OPTIONS))
    check_arguments(RetryPolicy.growing, POLICY_OPTIONS, ["first", "longest", "factor"])
    policies = {*signature(RetryPolicy.fixed).parameters, *signature(RetryPolicy.growing).parameters}
    assert policies == set(POLICY_OPTIONS)


def check_arguments(function: Callable[..., object], rows: Mapping[str, Option], names: list[str]) -> None:
    """Check that arguments have the defaults of their rows."""
    arguments = signature(function).parameters
    assert {name: arguments[name].default for name in names} == {name: rows[name].default for name in names}


def test_every_option_of_the_retry_service_is_read() -> None:
    read = words_of("retry").attributes | words_of("cli").attributes
    for row in (*SERVICE_OPTIONS.values(), *RETRIER_OPTIONS.values()):
        assert row.attribute in read, row.name


@pytest.mark.parametrize("name", ["attempts", "jitter", "factor"])
def test_a_policy_has_the_bounds_of_its_rows(name: str) -> None:
    row = POLICY_OPTIONS[name]
    assert isinstance(row.allowed, Bounds)
    assert row.allowed.high is not None
    for wrong in (row.allowed.low - 1, row.allowed.high + 1):
        with pytest.raises(PolicyError, match=f"{name}={wrong} is not {row.requirement}"):
            RetryPolicy.growing(**{"attempts": 3, name: wrong})


def test_an_option_without_a_row_cannot_be_read() -> None:
    with pytest.raises(KeyError):
        ParsedOptions({"x": "1"}, {}).value("x")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_is_complete(row: Option) -> None:
    assert row.doc.endswith((".", ";`."))
    assert row.is_allowed(row.default)
    assert row.since
    if row.type not in (FUNCTION, OBJECTS) and row.default is not None:
        text = ",".join(row.default) if isinstance(row.default, tuple) else str(row.default)
        parsed = parse_setting(row, text)
        assert row.default in (parsed, join_words(parsed))


def test_keys_that_the_code_sets_have_rows() -> None:
    """Settings in dict literals of rooms above the client: a misspelt one would fail only when it is used."""
    known = {*BROKER_ROWS, *TOPIC_ROWS, *(row.name for row in ROWS), PROVIDERS}
    for room in ("client", "spark", "retry", "pipeline", "sinks", "cli", "demo"):
        for path in (ROOT / room).rglob("*.py"):
            if path.name != "kafka_keys.py":  # its tables are about keys without rows
                used = set(map(_kafka_name, literal_keys(ast.parse(path.read_text()))))
                assert used - known <= {""}, f"{path}: {used - known}"


def literal_keys(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        for key in node.keys if isinstance(node, ast.Dict) else ():
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield key.value


def _kafka_name(key: str) -> str:
    """The name of a Kafka key, empty for another text."""
    key = key.removeprefix("kafka.")
    return "" if key.startswith(("ottla.", "spark.")) or not DOTTED.fullmatch(key) else key


def test_bounds_have_their_ends() -> None:
    row = Option("x", FUNCTION, 1, "", Bounds(1, 3))
    assert [row.is_allowed(value) for value in (0, 1, 3, 4)] == [False, True, True, False]
    assert row._replace(allowed=Bounds(1)).is_allowed(2**70)
    assert row._replace(allowed=("a", "b")).words == "a, b"


def test_the_nearest_name_is_suggested() -> None:
    known: Mapping[str, Option] = CLIENT_OPTIONS
    assert suggest_name("bootstrap.server", known) == "Did you mean bootstrap.servers?"
    assert suggest_name("zzz", known) == ""
