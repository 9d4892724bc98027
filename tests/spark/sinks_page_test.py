"""The programs of docs/sinks.md, run as they stand there.

Zone: real. Only addresses and the checkpoint's place are put in, and where a program would run for ever it is stopped.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from testbench.postgres import Postgres
from tests.spark.conftest import Topics

from ottla.record.batch import Record
from ottla.sinks.changelog import Changelog

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "sinks.md"
CONSUMER, SPARK, STATE = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
CUSTOMERS = 5


@pytest.fixture
def table(postgres: Postgres) -> Iterator[None]:
    postgres.execute("CREATE TABLE totals (customer text PRIMARY KEY, total bigint)")
    yield
    postgres.execute("DROP TABLE IF EXISTS totals, ottla_offsets, ottla_batches")


@pytest.fixture
def topic(topics: Topics) -> str:
    """In the place of `orders`."""
    return topics.make(1)


@pytest.fixture
def orders(topics: Topics, topic: str) -> Callable[[int], dict[str, int]]:
    """`orders(n)`: n orders more; what all of them come to, by customer."""
    expected: dict[str, int] = {}

    def more(count: int) -> dict[str, int]:
        first = sum(len(records) for records in topics.records(topic).values())
        written = []
        for number in range(first, first + count):
            customer = f"customer {number % CUSTOMERS}"
            expected[customer] = expected.get(customer, 0) + number
            written.append(Record(number - first, 1000 + number, customer.encode(), b"%d" % number))
        topics.put_records(topic, 0, written)
        return dict(expected)

    return more


@pytest.fixture
def placed(topics: Topics, topic: str, postgres: Postgres, tmp_path: Path) -> Callable[[str], str]:
    """`placed(program)`: one of the page, with the addresses and names of this test."""
    own = {
        "localhost:9092": topics.bootstrap,
        "postgresql://me@localhost/shop": postgres.conninfo,
        "checkpoint/totals": str(tmp_path / "checkpoint"),
        '"orders"': f'"{topic}"',
        '}, "totals")': f'}}, "{topic}-totals")',
        '"order-totals"': f'"{topic}"',
        '"group.id": "totals"': f'"group.id": "{topic}", "session.timeout.ms": "6000"',  # to remove killed ones
    }

    def put_in(program: str) -> str:
        for ours, yours in own.items():
            program = program.replace(ours, yours)
        return program

    return put_in


def totals_in(postgres: Postgres) -> dict[Any, Any]:
    return dict(postgres.execute("SELECT customer, total FROM totals"))  # type: ignore[arg-type]


@pytest.mark.usefixtures("table")
def test_the_consumer_of_the_page_killed_again_and_again(
    postgres: Postgres, orders: Callable[[int], dict[str, int]], placed: Callable[[str], str]
) -> None:
    program = placed(CONSUMER)
    for number in range(3):
        expected = orders(500)
        with subprocess.Popen([sys.executable, "-W", "error", "-c", program], stderr=subprocess.PIPE, text=True) as run:
            while run.poll() is None and (found := totals_in(postgres)) != expected:
                time.sleep(0.05 if number else 0.2)
            assert run.poll() is None, run.communicate()[1]
            run.kill()
        assert found == expected


@pytest.mark.usefixtures("table")
def test_the_query_of_the_page_continues_from_its_checkpoint(
    spark: Any,
    topics: Topics,
    topic: str,
    postgres: Postgres,
    orders: Callable[[int], dict[str, int]],
    placed: Callable[[str], str],
) -> None:
    program = placed(SPARK)
    stream = spark.readStream.format("ottla").options(**topics.options, subscribe=topic, startingOffsets="earliest")
    sums = (
        stream.load()
        .selectExpr("CAST(key AS STRING) AS customer", "CAST(CAST(value AS STRING) AS BIGINT) AS n")
        .groupBy("customer")
        .agg({"n": "sum"})
        .toDF("customer", "total")
    )
    for _ in range(2):
        expected = orders(300)
        names: dict[str, Any] = {"totals": sums}
        exec(program, names)
        names["query"].processAllAvailable()
        names["query"].stop()
        names["sink"].close()
        assert totals_in(postgres) == expected


def test_the_state_of_the_page_outlives_its_checkpoint(
    spark: Any,
    topics: Topics,
    topic: str,
    orders: Callable[[int], dict[str, int]],
    placed: Callable[[str], str],
    tmp_path: Path,
) -> None:
    program = placed(STATE)
    assert ".start().awaitTermination()" in program
    program = program.replace(".start().awaitTermination()", ".trigger(availableNow=True).start().awaitTermination()")
    for _ in range(2):
        expected = orders(300)
        exec(program, {"spark": spark})
        shutil.rmtree(tmp_path / "checkpoint")
        with Changelog({"bootstrap.servers": topics.bootstrap}, f"{topic}-totals") as state:
            assert {key.decode(): int(value) for key, value in state.items()} == expected
