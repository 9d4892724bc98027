"""`ottla cluster features` against a broker of its own.

Zone: real.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from ottla.cli.main import cli
from ottla.server.embedded import EmbeddedBroker


@pytest.fixture(scope="module")
def own_broker() -> Iterator[str]:
    with EmbeddedBroker() as broker:
        yield broker.bootstrap


def features(broker: str, *words: str) -> Result:
    return CliRunner().invoke(cli, ["cluster", "features", *words], env={"OTTLA_BROKERS": broker})


def finalized(broker: str) -> tuple[int, int]:
    shown = json.loads(features(broker, "describe", "-o", "json").stdout)
    (feature,) = shown["features"]
    assert {"name": "transaction.version", "min_level": 0, "max_level": 2}.items() <= feature.items()
    return shown["epoch"], feature["finalized"]


def test_levels_are_lowered_and_raised(own_broker: str) -> None:
    assert finalized(own_broker) == (0, 2)
    assert features(own_broker, "downgrade", "transaction.version=1", "--dry-run").exit_code == 0
    assert finalized(own_broker) == (0, 2)
    done = features(own_broker, "downgrade", "transaction.version=1", "-o", "json")
    assert json.loads(done.stdout) == {"levels": {"transaction.version": 1}, "dry_run": False}
    assert finalized(own_broker) == (1, 1)
    done = features(own_broker, "downgrade", "transaction.version=0", "--unsafe")
    assert "Finalized transaction.version=0." in done.output
    assert finalized(own_broker) == (2, 0)
    assert features(own_broker, "upgrade", "transaction.version=2").exit_code == 0
    table = features(own_broker, "describe").stdout
    assert "transaction.version" in table
    assert "Epoch: 3" in table


def test_refused_changes_name_the_reason(own_broker: str) -> None:
    refused = features(own_broker, "upgrade", "transaction.version=9")
    assert refused.exit_code != 0
    assert "only supports versions 0-2" in refused.output
    refused = features(own_broker, "upgrade", "metadata.version=20")
    assert "does not support this feature" in refused.output


@pytest.mark.parametrize(
    "words",
    [["x"], ["=1"], ["x="], ["x=-1"], ["x=32768"], ["x=" + "9" * 5000], ["x=1", "x=2"], []],
    ids=lambda words: "+".join(words)[:20] or "nothing",
)
def test_levels_that_are_not_levels(own_broker: str, words: list[str]) -> None:
    assert features(own_broker, "upgrade", *words).exit_code == 2
