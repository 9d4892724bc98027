"""Brokers are replaced by those of another release, and back, while clients of both work; `make roll` does more.

Zone: real.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from testbench.releases import ReleaseError, release_source
from testbench.rolls.run import Roll, rolling
from testbench.zookeeper import ZooKeeper

pytestmark = [pytest.mark.slow, pytest.mark.interop]


@pytest.fixture
def roll(tmp_path: Path, zookeeper: ZooKeeper) -> Iterator[Roll]:
    try:
        release_source()
    except ReleaseError as error:
        pytest.skip(str(error))
    with rolling(tmp_path, zookeeper.chroot(f"/{tmp_path.name}")) as running:
        yield running


def test_a_cluster_is_rolled_to_this_release_and_back(roll: Roll) -> None:
    for source in (None, roll.old):
        roll.replace_all(source, {}, None)
    counts = roll.finish()
    assert counts["records"] > 100
    assert counts["transactions"] > 3
