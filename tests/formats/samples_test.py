"""Release 0.1 and this one read each other's files, records and nodes.

Zone: real.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from testbench.formats.children import read_with, write_with
from testbench.formats.inventory import EXCHANGES
from testbench.formats.samples import GATED, read_samples, write_samples
from testbench.formats.stored import stored_samples
from testbench.releases import ReleaseError, release_source
from tests.formats.inventory_test import declared, numbers

VERSIONS = {
    "offset": 3,
    "offset at inter.broker.protocol.version 2.0": 1,
    "offset at inter.broker.protocol.version 2.1-IV0": 2,
    "group": 3,
    "group at inter.broker.protocol.version 0.10.0": 0,
    "group at inter.broker.protocol.version 2.0": 1,
    "group at inter.broker.protocol.version 2.2": 2,
    "transaction-ongoing": 1,
    "transaction-ongoing at transaction.version 0": 0,
}


MOVED = {
    "cluster/controlled_shutdown.py": "cluster/departure.py",
    "replication/follower/fetcher_manager.py": "replication/fetchers.py",
    "replication/follower/leader_requests.py": "replication/leader_questions.py",
    "replication/produce/verifier.py": "replication/verifier.py",
    "replication/tombstone_retention.py": "replication/removals.py",
}
"""The names that modules of this release had in 0.1."""
NOT_IN_0_1 = {"transactions/service.py:OLD_MARKERS_VERSION"}


@pytest.fixture(scope="module")
def release() -> Path:
    try:
        return release_source()
    except ReleaseError as error:
        pytest.skip(str(error))


def test_this_release_reads_the_bytes_of_release_0_1() -> None:
    # The writers of both have the same values, so what is read from the one's bytes is what is read from the other's.
    ours = {name: data for name, data in write_samples().items() if GATED not in name}
    assert read_samples(stored_samples()) == read_samples(ours)


def test_this_release_writes_the_bytes_of_release_0_1_unless_a_gate_changes_them() -> None:
    ours = {name: data for name, data in write_samples().items() if GATED not in name}
    assert ours == stored_samples()


def test_each_gate_chooses_the_version_of_its_record() -> None:
    ours = write_samples()
    # A sample of a record: length of the key i32, key, value, which begins with its version i16.
    values = {name: ours[name][4 + int.from_bytes(ours[name][:4]) :] for name in VERSIONS}
    assert {name: int.from_bytes(value[:2]) for name, value in values.items()} == VERSIONS


@pytest.mark.slow
def test_release_0_1_reads_the_bytes_of_this_release_at_each_level(release: Path) -> None:
    ours = write_samples()
    assert any(GATED in name for name in ours)
    assert read_with(release, ours) == read_samples(ours)


@pytest.mark.slow
def test_the_kept_bytes_are_those_of_release_0_1(release: Path) -> None:
    assert write_with(release) == stored_samples()


def test_the_listed_versions_of_requests_are_those_that_release_0_1_accepts(release: Path) -> None:
    accepted = declared(release / "ottla")
    assert {each.api: each.accepted for each in EXCHANGES} == {each.api: accepted[each.api] for each in EXCHANGES}


def test_release_0_1_sends_the_listed_versions_of_requests(release: Path) -> None:
    for each in EXCHANGES:
        sent: set[int] = set()
        for place in set(each.constants) - NOT_IN_0_1:
            module, _, name = place.partition(":")
            sent |= numbers(f"{MOVED.get(module, module)}:{name}", release / "ottla")
        assert sent <= set(each.versions), each
        assert max(sent) == max(each.versions), each
