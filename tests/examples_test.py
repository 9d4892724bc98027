"""Every program in examples/ runs and prints what it should; those of PySpark are in tests/spark: examples_test and
stateful_test."""

from __future__ import annotations

import os
import runpy
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from testbench.registry import RegistryProcess

from ottla.server.embedded import EmbeddedBroker

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
ON_SPARK = ("pipeline", "stateful")
PRINTED = {
    "produce": "orders 0 1\n",
    "consume": "0 b'anna' b'tea'\n1 b'bert' b'coffee'\n",
    "transaction": "[b'TEA', b'COFFEE']\n",
    "async_clients": "[0, 1, 2]\nb'a'\nb'b'\nb'c'\n",
    "arrow_tables": "3 rows written\n"
    "{'offset': [0, 1, 2], 'key': [b'anna', b'bert', b'anna'], 'value': [b'1', b'2', b'3']}\n",
    "retries": "b'coffee' -> orders.retry.1\n",
    "sink": "3 records counted\n0 counted when the same records come again\n{b'anna': b'7', b'bert': b'5'}\n",
    "embedded_broker": "2\n",
    "schemas": "{'sort': 'Assam', 'cups': 2}\n",
    "simulator": "violations: []\nrecords acknowledged: True - faults: True\nthe same run: True\n",
}


def run_example(name: str) -> None:
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")


@pytest.fixture(scope="module")
def orders() -> Iterator[str]:
    """A broker whose topic `orders` has what examples/produce.py wrote; what that printed."""
    with EmbeddedBroker(config={"group.initial.rebalance.delay.ms": "0"}) as broker:
        former, os.environ["OTTLA_BROKERS"] = os.environ.get("OTTLA_BROKERS"), broker.bootstrap
        with redirect_stdout(StringIO()) as printed:
            run_example("produce")
        yield printed.getvalue()
        os.environ.pop("OTTLA_BROKERS")
        if former is not None:
            os.environ["OTTLA_BROKERS"] = former


def test_every_example_is_run_by_a_test() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*PRINTED, *ON_SPARK}


@pytest.mark.slow
@pytest.mark.parametrize("name", PRINTED)
def test_an_example(
    name: str, orders: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "schemas":
        with RegistryProcess(tmp_path, os.environ["OTTLA_BROKERS"]) as registry:
            monkeypatch.setenv("OTTLA_SCHEMA_REGISTRY", registry.url)
            run_example(name)
    elif name != "produce":
        run_example(name)
    assert (capsys.readouterr().out or orders) == PRINTED[name]
