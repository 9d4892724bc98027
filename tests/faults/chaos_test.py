"""A short dose of chaos on both engines; `make chaos` gives the long one."""

from __future__ import annotations

from pathlib import Path

import pytest
from testbench.chaos.run import run
from testbench.disk import VolumeError
from testbench.network import NetworkError

pytestmark = [pytest.mark.slow, pytest.mark.root, pytest.mark.interop, pytest.mark.kafka]

MINUTES = 1.5


@pytest.mark.parametrize("engine", ["embedded", "zookeeper"])
def test_no_acknowledged_record_is_lost(engine: str, tmp_path: Path) -> None:
    lines: list[str] = []
    try:
        complaints, counts = run(engine, tmp_path, minutes=MINUTES, seed=4, rate=1_500, say=lines.append)
    except (NetworkError, VolumeError) as error:
        pytest.fail(str(error))
    assert not complaints, "\n".join([*lines[-60:], *complaints])
    assert counts["acknowledged"] > 20_000
    assert counts["faults"] >= 6
