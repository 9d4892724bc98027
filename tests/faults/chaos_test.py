"""A short dose of chaos on each engine; `make chaos` gives the long one."""

from __future__ import annotations

from pathlib import Path

import pytest
from testbench.chaos.run import run
from testbench.disk import VolumeError
from testbench.network import NetworkError

pytestmark = [pytest.mark.slow, pytest.mark.root, pytest.mark.interop, pytest.mark.kafka]

MINUTES = {"embedded": 0.7, "zookeeper": 0.7, "secured": 3.0}
FAULTS = 8
"""A quiet machine makes a dozen faults in the shorter time; a busy one takes longer for the fewest."""


@pytest.mark.parametrize("engine", list(MINUTES))
def test_no_acknowledged_record_is_lost(engine: str, tmp_path: Path) -> None:
    lines: list[str] = []
    try:
        dose = {"minutes": MINUTES[engine], "at_least": FAULTS, "seed": 4, "rate": 1_500}
        complaints, counts = run(engine, tmp_path, **dose, say=lines.append)
    except (NetworkError, VolumeError) as error:
        pytest.fail(str(error))
    assert not complaints, "\n".join([*lines[-60:], *complaints])
    assert counts["acknowledged"] > 20_000
    assert counts["faults"] >= FAULTS
