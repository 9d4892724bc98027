"""Brokers of release 0.1 and of this one in one simulated cluster, and the gates without which its formats are wrong.

Zone: real.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from testbench.formats.inventory import EXCHANGES, FILES, NODES, RECORDS
from testbench.mixed.formats import (
    LEVELS,
    OFFSETS,
    TRANSACTIONS,
    Release,
    find_new_file,
    find_new_node,
    find_new_record,
    find_unreadable,
    find_unsendable,
    limits_of,
)
from testbench.mixed.gates import GATES
from testbench.mixed.package import EARLIER, earlier_module, rename_package
from testbench.mixed.runner import MixedOptions
from testbench.mixed.watch import sound_batches
from testbench.releases import ReleaseError, release_source
from tests.messagesets import message

import ottla
from ottla.record.batch import Record, encode_batch
from ottla.sim.disks.drive import Directory
from ottla.sim.disks.inode import Inode
from ottla.sim.mutants.ablation import mutated_code, without_mutant
from ottla.sim.mutants.mutant import Edit, Mutant
from ottla.sim.swarm import run_seed
from ottla.wire.apis import ApiKey

SEEDS = {
    "message_format": 1,
    "offset_record": 1,
    "group_record": 1,
    "transaction_record": 16,
    "features_of_brokers": 11,
    "fetch_version": 1,
    "markers_version": 11,
}
"""By gate, a seed that fails without it within `SECONDS`: find new ones with `python -m testbench.mixed --gates`."""
SECONDS = 12
BROKERS = 3


@pytest.fixture(scope="module")
def release() -> Path:
    try:
        return release_source()
    except ReleaseError as error:
        pytest.skip(str(error))


# -- two releases in one process ---------------------------------------------------------------------------------------


def test_both_releases_are_imported_side_by_side(release: Path) -> None:
    theirs = earlier_module("broker.broker")
    assert theirs.__name__.startswith(EARLIER)
    assert Path(theirs.__file__).is_relative_to(release.parent)
    assert not Path(str(ottla.__file__)).is_relative_to(release.parent)


def test_only_imports_and_names_of_modules_are_renamed(release: Path) -> None:
    text = 'from ottla.seams import Kind\n    import ottla\nJOB = "ottla.record.entries:first_from"\n'
    text += 'KEY = "ottla.host"\n'
    assert rename_package(text, release / "ottla") == (
        f'from {EARLIER}.seams import Kind\n    import {EARLIER}\nJOB = "{EARLIER}.record.entries:first_from"\n'
        f'KEY = "ottla.host"\n'
    )


# -- formats -----------------------------------------------------------------------------------------------------------


def frame(api: ApiKey, version: int) -> bytes:
    return api.to_bytes(2) + version.to_bytes(2) + bytes(4)


def record(kind: int, version: int) -> tuple[bytes, bytes]:
    return kind.to_bytes(2), version.to_bytes(2)


@pytest.mark.parametrize(("level", "version", "allowed"), [("2.0", 10, True), ("2.0", 11, False), ("3.9", 17, True)])
def test_a_fetch_above_the_level_is_found(level: str, version: int, allowed: bool) -> None:
    assert (find_unsendable(frame(ApiKey.FETCH, version), level, False) is None) is allowed


def test_a_request_that_the_inventory_lacks_is_found() -> None:
    assert find_unsendable(frame(ApiKey.STOP_REPLICA, 3), "3.9", False)
    assert find_unsendable(frame(ApiKey.PRODUCE, 9), "3.9", False)


def test_a_request_that_release_0_1_does_not_read_is_found() -> None:
    assert find_unreadable(memoryview(frame(ApiKey.FETCH, 18))) is None
    assert find_unreadable(memoryview(frame(ApiKey.FETCH, 19)))
    assert find_unreadable(memoryview(frame(ApiKey.UPDATE_FEATURES, 0)))


@pytest.mark.parametrize("level", LEVELS)
def test_a_record_above_the_level_is_found(level: str) -> None:
    limits = limits_of(Release.PRESENT, level)
    assert find_new_record(OFFSETS, *record(1, LEVELS[level].offset), limits) is None
    assert find_new_record(OFFSETS, *record(1, LEVELS[level].offset + 1), limits)
    assert find_new_record(OFFSETS, *record(2, LEVELS[level].group), limits) is None
    assert find_new_record(OFFSETS, *record(2, LEVELS[level].group + 1), limits)


def test_a_record_that_release_0_1_does_not_read_is_found() -> None:
    limits = limits_of(Release.EARLIER, "3.9")
    assert find_new_record(OFFSETS, *record(2, 3), limits) is None
    assert find_new_record(OFFSETS, *record(2, 4), limits)
    assert find_new_record(OFFSETS, *record(3, 0), limits)  # a type of KIP-848
    assert find_new_record(TRANSACTIONS, *record(0, 2), limits)
    assert find_new_record(TRANSACTIONS, b"\0\0", None, limits) is None


@pytest.mark.parametrize(
    ("path", "data", "allowed"),
    [
        ("/brokers/topics/t/partitions/0/state", b'{"version":1}', True),
        ("/brokers/topics/t/partitions/0/state", b'{"version":2}', False),
        ("/brokers/topics/t", b'{"version":3}', True),
        ("/brokers/topics/t", b'{"version":4}', False),
        ("/brokers/ids/1", b'{"version":6}', False),
        ("/kafka-acl/Topic/t", b'{"version":1}', False),
        ("/feature", b'{"version":2}', True),
        ("/controller_epoch", b"7", True),
    ],
)
def test_a_node_that_release_0_1_does_not_read_is_found(path: str, data: bytes, allowed: bool) -> None:
    assert (find_new_node(path, data) is None) is allowed


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("recovery-point-offset-checkpoint", b"0\n1\nt 0 5\n", b"1\n1\nt 0 5\n"),
        ("partition.metadata", b"version: 0\ntopic_id: x\n", b"version: 1\ntopic_id: x\n"),
        ("meta.properties", b"#\nversion=1\n", b"#\nversion=2\n"),
        ("00000000000000000000.snapshot", b"\0\1", b"\0\2"),
    ],
)
def test_a_file_that_release_0_1_does_not_read_is_found(name: str, old: bytes, new: bytes) -> None:
    assert find_new_file(name, old) is None
    assert find_new_file(name, new)
    assert find_new_file(name, b"") is None  # a power loss has torn it


# -- gates -------------------------------------------------------------------------------------------------------------


def test_each_gate_of_the_inventory_can_be_switched_off() -> None:
    gated = {each.name for each in (*FILES, *RECORDS, *NODES) if not each.gate.startswith("none")}
    gated |= {each.api for each in EXCHANGES if not each.gate.startswith("none")}
    assert gated == {name for gate in GATES.values() for name in gate.formats}
    assert set(SEEDS) == set(GATES)


@pytest.mark.parametrize("name", GATES)
def test_the_source_of_each_gate_is_where_its_row_looks(name: str) -> None:
    assert mutated_code(GATES[name].mutant)


@pytest.mark.slow
@pytest.mark.parametrize("name", GATES)
def test_a_seed_fails_without_the_gate(name: str, release: Path) -> None:
    result = run_seed(SEEDS[name], MixedOptions(seconds=SECONDS, brokers=BROKERS, gate=name))
    assert GATES[name].noticed_by in {found for found, _ in result.violations}


NEWER = {
    "nodes_keep_to_their_version": (
        2,
        Edit("ottla.cluster.store.layout", "encode_state", '"version": 1', '"version": 2'),
    ),
    "files_keep_to_their_version": (
        1,
        Edit("ottla.storage.checkpoints", "_format_text", "str(_TEXT_VERSION)", '"1"'),
    ),
    "requests_keep_to_their_level": (
        2,
        Edit("ottla.cluster.controller.channel", "BrokerChannel._build_request", "STOP_REPLICA_VERSION", "3"),
    ),
}
"""By property, a seed, and a change of this release to a format that has no gate."""


@pytest.mark.slow
@pytest.mark.parametrize("name", NEWER)
def test_a_newer_format_without_a_gate_fails_a_seed(name: str, release: Path) -> None:
    seed, edit = NEWER[name]
    with without_mutant(Mutant("newer format", "", (edit,))):
        result = run_seed(seed, MixedOptions(seconds=SECONDS, brokers=BROKERS, until_noticed=True))
    assert name in {found for found, _ in result.violations}


# -- logs of brokers that have no power ------------------------------------------------------------------------------


def log_directory(data: bytes) -> Directory:
    directory = Directory()
    directory.names[f"{0:020}.log"] = inode = Inode()
    inode.data[:] = data
    return directory


def test_a_batch_that_was_written_in_part_ends_the_scan_of_a_log() -> None:
    first, second = (bytes(encode_batch([Record(at, 0, None, b"x" * 50)], base_offset=at)) for at in (0, 1))
    torn = second[:80] + bytes(len(second) - 80)
    assert [bytes(piece) for piece in sound_batches(log_directory(first + second))] == [first, second]
    assert [bytes(piece) for piece in sound_batches(log_directory(first + torn + second))] == [first]


def test_batches_of_older_formats_are_scanned() -> None:
    first, second = message(1, b"k", b"x"), message(0, None, b"y" * 50, offset=1)
    torn = second[:40] + bytes(len(second) - 40)
    assert [bytes(piece) for piece in sound_batches(log_directory(first + second))] == [first, second]
    assert [bytes(piece) for piece in sound_batches(log_directory(first + torn))] == [first]


# -- rolls -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3, 16])
def test_a_cluster_rolls_to_this_release_and_back(seed: int, release: Path) -> None:
    result = run_seed(seed, MixedOptions(seconds=SECONDS, brokers=BROKERS))
    assert result.violations == []
    assert result.faults["replaced by this release"] >= BROKERS


@pytest.mark.slow
def test_a_seed_is_the_same_run_each_time(release: Path) -> None:
    options = MixedOptions(seconds=2, brokers=BROKERS)
    assert run_seed(3, options).trace_hash == run_seed(3, options).trace_hash
