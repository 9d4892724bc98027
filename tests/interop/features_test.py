"""Apache Kafka's kafka-features, of two generations, against the broker.

Zone: real.
"""

from __future__ import annotations

import re

import pytest
from testbench.apache_kafka import packages, tools

from ottla.server.embedded import EmbeddedBroker

pytestmark = [pytest.mark.interop, pytest.mark.kafka, pytest.mark.slow]


@pytest.mark.parametrize("version", ["4.4.0", "3.9.1"])
def test_levels_are_shown_lowered_and_raised(version: str) -> None:
    try:
        packages.class_path(version, "tools")
    except packages.BenchError as error:
        pytest.fail(f"{error} (testbench/setup does it)")
    with EmbeddedBroker() as broker:

        def features(*words: str) -> tuple[int, str]:
            done = tools.run(version, "kafka-features", "--bootstrap-server", broker.bootstrap, *words)
            return done.returncode, done.stdout + done.stderr

        def level() -> str:
            code, shown = features("describe")
            assert code == 0, shown
            found = re.search(r"Feature: transaction\.version.*FinalizedVersionLevel: (\S+)\s+Epoch: (\S+)", shown)
            assert found is not None, shown
            return f"{found[1]}@{found[2]}"

        assert level() == "2@0"
        code, shown = features("upgrade", "--feature", "transaction.version=1")
        assert code != 0
        assert "without setting the upgrade type" in shown
        code, shown = features("downgrade", "--feature", "transaction.version=1")
        assert (code, "was downgraded to 1" in shown) == (0, True), shown
        assert level() == "1@1"
        code, shown = features("upgrade", "--feature", "transaction.version=2")
        assert (code, "was upgraded to 2" in shown) == (0, True), shown
        assert level() == "2@2"
