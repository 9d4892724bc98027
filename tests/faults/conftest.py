"""Brokers as processes that are killed, cut off from power, and robbed of their disks.

Zone: real.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the test bench is not part of the package

from testbench.disk import Volume, VolumeError
from testbench.ottla_node import OttlaNode


@pytest.fixture
def node(tmp_path: Path, volume: Callable[..., Volume]) -> Iterator[Callable[..., OttlaNode]]:
    """`node(directory, settings)`: brokers, not started; at the end they are killed and their logs looked through.

    It asks for `volume` so that brokers end before the disks under them go.
    """
    nodes: list[OttlaNode] = []

    def make(data: Path | None = None, settings: dict[str, str] | None = None) -> OttlaNode:
        log = tmp_path / f"broker{len(nodes)}.log"
        nodes.append(OttlaNode(data or tmp_path / f"data{len(nodes)}", settings, log=log))
        return nodes[-1]

    yield make
    for made in nodes:
        made.kill()
        if made.log.exists():
            assert "Traceback" not in made.said(), made.tail(60)


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Callable[..., Volume]]:
    """`volume("ext4", mib=256)`: a file system of one's own on a loop device. Without root it fails, and says so."""
    volumes: list[Volume] = []

    def make(kind: str, mib: int = 512) -> Volume:
        try:
            volumes.append(Volume(tmp_path / f"volume{len(volumes)}", kind, mib))
        except VolumeError as error:
            pytest.fail(str(error))
        return volumes[-1]

    yield make
    for made in volumes:
        made.remove()
