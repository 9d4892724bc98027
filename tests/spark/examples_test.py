"""The example of a pipeline on PySpark, in the session that the other tests use."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from ottla.server.embedded import EmbeddedBroker

pytestmark = [pytest.mark.spark, pytest.mark.slow]
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_the_pipeline(one_spark: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedBroker(config={"group.initial.rebalance.delay.ms": "0"}) as broker:
        monkeypatch.setenv("OTTLA_BROKERS", broker.bootstrap)
        for name in ("produce", "pipeline"):
            runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert capsys.readouterr().out.splitlines() == ["orders 0 1", "[b'TEA', b'COFFEE']"]
