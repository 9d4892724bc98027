"""The deep check of directories, its findings, and their repair."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.storage.conftest import RealWorld, Shelf

from ottla.cli.commands.log import log
from ottla.config.topic import TopicConfig
from ottla.server.disks.data_dir_lock import DirectoryLock
from ottla.storage.verify.directory import verify_directory
from ottla.storage.verify.source import OrdinaryDirectory

GOLDEN = sorted((Path(__file__).parent.parent / "data" / "golden").rglob("*.tar.gz"))
FIRST, SECOND = f"t-0/{0:020d}", f"t-0/{8:020d}"


@pytest.fixture
def directory(tmp_path, kit) -> Path:
    """Two segments, cleanly stopped: an idempotent producer, an aborted transaction in each, two epochs."""
    world = RealWorld(tmp_path)
    try:
        shelf = Shelf(world, TopicConfig(index_interval_bytes=1000))
        shelf.manager.claim_directories("cluster", 1)
        for round_number in range(2):
            for number in range(3):
                sequence = round_number * 6 + number * 2
                shelf.put(
                    kit.batch(2, 900, producer_id=1, producer_epoch=0, base_sequence=sequence), epoch=round_number
                )
            shelf.put(
                kit.batch(1, producer_id=2, producer_epoch=0, base_sequence=round_number, transactional=True),
                kit.marker(2, commit=False),
                epoch=round_number,
            )
            if not round_number:
                shelf.log.roll_segment()
        shelf.log.high_watermark = shelf.log.end_offset
        assert shelf.log.segments.active.base_offset == 8
        shelf.manager.dirs[0].checkpoint_starts()
        assert shelf.stop() is None
    finally:
        world.close()
    return tmp_path


def check(directory: Path):
    return verify_directory(OrdinaryDirectory(str(directory)), lambda batches, size: None)


def run(*arguments: object):
    return CliRunner().invoke(log, [*map(str, arguments)])


@pytest.mark.parametrize("archive", GOLDEN, ids=lambda path: path.name)
def test_directories_of_kafka_have_no_findings(archive, tmp_path) -> None:
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="data")
    report = check(tmp_path)
    assert report.is_clean, report.findings
    if "cluster-metadata" not in archive.name:
        assert report.batches > 0


def test_a_cleanly_stopped_directory_has_no_findings(directory) -> None:
    report = check(directory)
    assert report.findings == []
    assert (report.logs, report.segments, report.batches) == (1, 2, 10)
    result = run("verify", directory)
    assert result.exit_code == 0
    assert "all well" in result.output
    assert run("repair", "--dry-run", directory).output.endswith("nothing to repair\n")


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0x41
    path.write_bytes(content)


DAMAGES = {
    # damage to the directory: what is found in which file, and whether repair corrects it
    "a flip in the last batch": (lambda d: flip(d / f"{SECOND}.log", -3), "torn tail", f"{SECOND}.log", True),
    "half a batch": (
        lambda d: (d / f"{SECOND}.log").write_bytes((d / f"{SECOND}.log").read_bytes()[:-20]),
        "torn tail",
        f"{SECOND}.log",
        True,
    ),
    "a flip in the middle": (lambda d: flip(d / f"{FIRST}.log", 300), "damaged batch", f"{FIRST}.log", False),
    "the first segment gone": (lambda d: (d / f"{FIRST}.log").unlink(), "orphan", f"{FIRST}.index", True),
    "zeros in an index": (
        lambda d: (d / f"{FIRST}.timeindex").write_bytes(bytes(24)),
        "index",
        f"{FIRST}.timeindex",
        True,
    ),
    "an index of another segment": (
        lambda d: (d / f"{FIRST}.index").write_bytes(b"\0\0\0\5\0\0\0\7"),
        "index",
        f"{FIRST}.index",
        True,
    ),
    "no transaction index": (
        lambda d: (d / f"{FIRST}.txnindex").unlink(),
        "transaction index",
        f"{FIRST}.txnindex",
        True,
    ),
    "a transaction index that is not what it was": (
        lambda d: flip(d / f"{FIRST}.txnindex", 33),
        "transaction index",
        f"{FIRST}.txnindex",
        True,
    ),
    "a flip in a snapshot": (
        lambda d: flip(d / f"{SECOND}.snapshot", 12),
        "producer snapshot",
        f"{SECOND}.snapshot",
        True,
    ),
    "a snapshot of another offset": (
        lambda d: (d / f"{SECOND}.snapshot").write_bytes(max(d.glob("t-0/*.snapshot")).read_bytes()),
        "producer snapshot",
        f"{SECOND}.snapshot",
        True,
    ),
    "epochs that are none": (
        lambda d: (d / "t-0/leader-epoch-checkpoint").write_text("0\n1\nx 0\n"),
        "leader epochs",
        "t-0/leader-epoch-checkpoint",
        True,
    ),
    "epochs of another log": (
        lambda d: (d / "t-0/leader-epoch-checkpoint").write_text("0\n1\n7 0\n"),
        "leader epochs",
        "t-0/leader-epoch-checkpoint",
        True,
    ),
    "a topic id that is none": (
        lambda d: (d / "t-0/partition.metadata").write_text("version: 0\ntopic_id: ?"),
        "metadata",
        "t-0/partition.metadata",
        False,
    ),
    "meta.properties": (lambda d: (d / "meta.properties").write_text("?"), "metadata", "meta.properties", False),
    "the mark of a clean stop": (
        lambda d: (d / ".kafka_cleanshutdown").write_text("{"),
        "clean stop",
        ".kafka_cleanshutdown",
        True,
    ),
    "a checkpoint": (
        lambda d: (d / "recovery-point-offset-checkpoint").write_text("0\n9\n"),
        "checkpoint",
        "recovery-point-offset-checkpoint",
        True,
    ),
    "a checkpoint of another log": (
        lambda d: (d / "replication-offset-checkpoint").write_text("0\n1\nt 0 4711\n"),
        "checkpoint",
        "replication-offset-checkpoint",
        True,
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found_and_named_and_what_can_be_is_repaired(directory, damage) -> None:
    harm, kind, path, mends = DAMAGES[damage]
    harm(directory)
    before = {file: file.read_bytes() for file in directory.rglob("*") if file.is_file()}
    result = run("verify", "-o", "json", directory)
    (report,) = json.loads(result.output)
    assert (kind, path) in [(finding["kind"], finding["path"]) for finding in report["findings"]], report
    dry = run("repair", "--dry-run", directory)
    assert before == {file: file.read_bytes() for file in directory.rglob("*") if file.is_file()}, "read only"
    real = run("repair", directory)
    assert dry.exit_code == real.exit_code == (0 if mends or damage == "the first segment gone" else 1), real.output
    again = [(finding.kind, finding.path) for finding in check(directory).findings if not finding.harmless]
    assert ((kind, path) not in again) == mends
    if mends:
        world = RealWorld(directory)
        try:
            shelf = Shelf(world)
            assert shelf.log.end_offset in (14, 15, 16)
            assert shelf.stop() is None
        finally:
            world.close()


def test_records_that_are_lost_are_named(directory) -> None:
    flip(directory / f"{SECOND}.log", -3)
    assert "records from offset 15 to 15 are lost" in run("repair", "--dry-run", directory).output
    result = run("verify", "-o", "json", directory / "t-0")
    assert result.exit_code == 1


def test_a_directory_in_use_is_not_repaired(directory) -> None:
    lock = DirectoryLock(str(directory))
    try:
        for place in (directory, directory / "t-0"):
            result = run("repair", place)
            assert result.exit_code == 2
            assert "in use" in result.output
    finally:
        lock.release_lock()


def test_a_missing_directory_is_an_error(tmp_path) -> None:
    result = run("verify", tmp_path / "nowhere")
    assert result.exit_code == 2
    assert "No such file" in result.output
