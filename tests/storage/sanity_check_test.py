"""Checks of the ends of trusted files: each kind of damage was missed once (`python -m testbench.damage`)."""

from __future__ import annotations

import logging

import pytest
from tests.storage.conftest import SMALL, idempotent

from ottla.config.topic import TopicConfig
from ottla.sim.mutants.ablation import without_safeguard
from ottla.storage.checkpoints import format_epochs, parse_checksums
from ottla.storage.indexes.leader_epochs import EpochEntry
from ottla.storage.retention.retention_enforcer import delete_old_segments

FIRST, SECOND = f"t-0/{0:020d}", f"t-0/{10:020d}"


@pytest.fixture
def stopped(sim, kit):
    """Two segments, stopped cleanly: a producer, two epochs, two aborted transactions."""
    shelf = kit.Shelf(sim, TopicConfig(index_interval_bytes=1000))
    for part in range(2):
        for number in range(4):
            shelf.put(idempotent(kit, part * 8 + number * 2, 2, 900), epoch=part)
        shelf.put(
            kit.batch(producer_id=2, producer_epoch=0, base_sequence=part, transactional=True),
            kit.marker(2, commit=False),
            epoch=part,
        )
        if not part:
            shelf.log.roll_segment()
    shelf.log.high_watermark = 20
    assert shelf.log.segments.active.base_offset == 10
    assert shelf.stop() is None
    return shelf


def facts(log) -> tuple:
    aborted = [entry[:3] for entry in log.segments.aborted_transactions(0, 20)]
    return log.end_offset, log.epochs.entries, log.producers.snapshot_entries(), aborted


TRUTH_OF = {
    "an epoch that begins elsewhere": (
        "t-0/leader-epoch-checkpoint",
        lambda content, _: content.replace(b"0 0", b"0 4"),
    ),
    "an epoch without records": (
        "t-0/leader-epoch-checkpoint",
        lambda content, _: content.replace(b"1 10", b"9 10"),
    ),
    "no epochs": ("t-0/leader-epoch-checkpoint", lambda *_: b""),
    "a transaction of another producer": (f"{FIRST}.txnindex", lambda content, _: content[:9] + b"\7" + content[10:]),
    "another first offset": (
        f"{FIRST}.txnindex",
        lambda content, _: content[:17] + b"\2" + content[18:],
    ),
    "those of another segment": (f"{FIRST}.txnindex", lambda _, world: world.contents(f"{SECOND}.txnindex")),
    "no transactions": (f"{FIRST}.txnindex", lambda *_: b""),
    "a last stable offset far ahead": (f"{FIRST}.txnindex", lambda content, _: content[:27] + b"\1" + content[28:]),
    "the producers of an earlier offset": (
        f"t-0/{20:020d}.snapshot",
        lambda _, world: world.contents(f"t-0/{10:020d}.snapshot"),
    ),
}


UNSEEN = {
    "the first offset of another batch": (f"{FIRST}.txnindex", lambda content: content[:17] + b"\2" + content[18:]),
    "no transactions in the active segment": (f"{SECOND}.txnindex", lambda _: b""),
    "an entry less in the active segment": (f"{SECOND}.txnindex", lambda content: content[34:]),
}
"""Damage that only the checksum of a transaction index shows."""


@pytest.fixture
def chained(sim, kit):
    """As `stopped`, but the transactions have several batches, and the active segment two of them."""
    shelf = kit.Shelf(sim, TopicConfig(index_interval_bytes=1000))
    for part in range(3):
        for number in range(4):
            batch = kit.batch(
                producer_id=2, producer_epoch=0, base_sequence=4 * part + number, transactional=True, size=900
            )
            shelf.put(batch, epoch=part)
        shelf.put(kit.marker(2, commit=False), epoch=part)
        if not part:
            shelf.put(idempotent(kit, 0, 5), epoch=part)
            shelf.log.roll_segment()
    shelf.log.high_watermark = 20
    assert shelf.log.segments.active.base_offset == 10
    return shelf


@pytest.mark.parametrize("what", UNSEEN)
def test_a_transaction_index_with_another_checksum_is_rebuilt(sim, chained, what, caplog) -> None:
    expected = facts(chained.log)
    assert chained.stop() is None
    path, harm = UNSEEN[what]
    sim.overwrite(path, harm(sim.contents(path)))
    with caplog.at_level(logging.WARNING):
        shelf = chained.again()
    assert facts(shelf.log) == expected
    assert any("t-0" in record.getMessage() for record in caplog.records)
    assert shelf.stop() is None
    caplog.clear()
    assert facts(shelf.again().log) == expected
    assert not caplog.records


@pytest.mark.parametrize("what", UNSEEN)
def test_without_the_safeguard_a_wrong_transaction_index_is_trusted(sim, chained, what) -> None:
    expected = facts(chained.log)
    assert chained.stop() is None
    path, harm = UNSEEN[what]
    sim.overwrite(path, harm(sim.contents(path)))
    with without_safeguard("txn_indexes_vouched"):
        assert facts(chained.again().log) != expected


def test_a_time_index_with_offsets_beyond_its_segment_is_rebuilt(sim, stopped, caplog) -> None:
    path = f"{FIRST}.timeindex"
    right = sim.contents(path)
    sim.overwrite(path, right[:-4] + (10).to_bytes(4, "big"))
    with caplog.at_level(logging.WARNING):
        stopped.again()
    assert f"{FIRST}.log do not match it" in caplog.text
    assert sim.contents(path) == right


def test_leader_epochs_that_begin_too_late_are_completed_in_a_compacted_log(sim, kit) -> None:
    """The checkpoint of epochs had a deletion that the one of log starts did not: the process was killed."""
    shelf = kit.rolled(sim, [0, 10, 20], 25, cleanup_policy=("compact",))
    shelf.put(kit.batch(1), epoch=4)
    shelf.flush()
    shelf.manager.dirs[0].offsets.checkpoint_recovery_points()
    sim.settle()
    whole = shelf.log.epochs.entries
    for known in (((0, 14), (4, 25)), ((0, 24), (4, 25)), ((4, 25),)):
        sim.kill()
        sim.overwrite("t-0/leader-epoch-checkpoint", format_epochs([EpochEntry(*entry) for entry in known]))
        shelf = shelf.again()
        assert shelf.log.epochs.entries == whole == ((0, 0), (4, 25))
        assert shelf.log.epochs.epoch_of(3) == 0


def test_after_a_kill_a_sealed_transaction_index_is_also_checked(sim, chained, caplog) -> None:
    expected = facts(chained.log)
    chained.flush()
    chained.manager.dirs[0].offsets.checkpoint_recovery_points()
    sim.settle()
    sim.kill()
    path, harm = UNSEEN["the first offset of another batch"]
    sim.overwrite(path, harm(sim.contents(path)))
    with caplog.at_level(logging.WARNING):
        assert facts(chained.again().log) == expected
    assert f"{FIRST}.log do not match it" in caplog.text


def test_missing_or_unreadable_checksums_are_ignored(sim, chained, caplog) -> None:
    shelf, expected = chained, facts(chained.log)
    path = "t-0/txnindex-checksums"
    for harm in (lambda: sim.overwrite(path, b"0\n7\n"), lambda: sim.remove(path)):
        assert shelf.stop() is None
        harm()
        shelf = shelf.again()
        assert facts(shelf.log) == expected
    assert shelf.stop() is None
    assert set(parse_checksums(sim.contents(path))) == {
        f"{0:020d}.txnindex",
        f"{10:020d}.txnindex",
    }


def test_a_log_without_aborted_transactions_has_no_checksums(sim, kit) -> None:
    shelf = kit.rolled(sim, [0, 10, 20], 30)
    assert shelf.stop() is None
    assert "txnindex-checksums" not in sim.names("t-0")


@pytest.mark.parametrize("what", TRUTH_OF)
def test_files_that_contradict_the_log_are_rebuilt_from_it(sim, stopped, what, caplog) -> None:
    path, harm = TRUTH_OF[what]
    expected = facts(stopped.again().log)
    assert stopped.again().stop() is None
    sim.overwrite(path, harm(sim.contents(path), sim))
    with caplog.at_level(logging.WARNING):
        assert facts(stopped.again().log) == expected
    assert any("t-0" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda content: b"", "it is empty"),
        (lambda content: content[:15], "does not begin with a batch"),
        (lambda content: content[:-100], "bytes at its end"),
        (lambda content: content[: len(content) // 2 // 1900 * 1900], "damaged"),
    ],
)
def test_a_sealed_segment_that_is_damaged_is_reported(sim, stopped, harm, words, caplog) -> None:
    path = f"{FIRST}.log"
    sim.overwrite(path, harm(sim.contents(path)))
    with caplog.at_level(logging.ERROR):
        stopped.again()
    assert any(words in record.getMessage() and path in record.getMessage() for record in caplog.records)


def test_a_missing_first_segment_is_reported(sim, stopped, caplog) -> None:
    for kind in ("log", "index", "timeindex", "txnindex"):
        sim.remove(f"{FIRST}.{kind}")
    with caplog.at_level(logging.ERROR):
        assert stopped.again().log.start_offset == 10
    assert "t-0: records below offset 10 are missing" in caplog.text


@pytest.mark.parametrize("start", [3, 12, 18])
def test_a_damaged_log_start_is_corrected(sim, stopped, start, caplog) -> None:
    sim.overwrite("log-start-offset-checkpoint", f"0\n1\nt 0 {start}\n".encode())
    with caplog.at_level(logging.ERROR):
        assert stopped.again().log.start_offset == 0
    assert f"t-0: log start offset {start} is wrong, using the first leader epoch's 0" in caplog.text


def test_a_valid_log_start_is_trusted(sim, stopped, caplog) -> None:
    shelf = stopped.again()
    shelf.log.high_watermark = 20
    shelf.log.set_start_offset(12)
    assert shelf.stop() is None
    caplog.clear()
    assert shelf.again().log.start_offset == 12
    assert not caplog.records


def test_retention_is_no_damage(sim, kit, caplog) -> None:
    shelf = kit.rolled(sim, [0, 10, 20], 30, retention_bytes=1, retention_ms=-1)
    delete_old_segments(shelf.log, sim.clock.now())
    sim.settle()
    for end in (shelf.stop, sim.kill, sim.kill):
        end()
        with caplog.at_level(logging.ERROR):
            shelf = shelf.again()
        sim.settle()
        assert shelf.log.start_offset in {20, 30}
    assert not caplog.records


def test_an_end_other_than_at_the_last_stop_is_reported(sim, kit, caplog) -> None:
    shelf = kit.Shelf(sim, SMALL)
    shelf.put(kit.batch(1))
    assert shelf.stop() is None
    content = bytearray(sim.contents(f"{FIRST}.log"))
    content[5] ^= 1
    sim.overwrite(f"{FIRST}.log", bytes(content))
    with caplog.at_level(logging.ERROR):
        shelf.again()
    assert "but ended at 1" in caplog.text


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("more", [0, 1])
def test_a_clean_start_keeps_the_snapshot_after_a_transaction_of_version_2(sim, kit, caplog, commit, more) -> None:
    """Its marker has the next epoch: the snapshot lacks the producer's batches, which have the old one."""
    shelf = kit.Shelf(sim)
    batch = {"producer_id": 7, "transactional": True}
    shelf.put(kit.batch(2, producer_epoch=0, base_sequence=0, **batch), kit.marker(7, 1, commit))
    for _ in range(more):
        shelf.put(kit.batch(2, producer_epoch=1, base_sequence=0, **batch), kit.marker(7, 2, commit))
    shelf.stop()
    names = [name for name in sim.names("t-0") if name.endswith(".snapshot")]
    assert names
    caplog.clear()
    again = shelf.again()
    assert [name for name in sim.names("t-0") if name.endswith(".snapshot")] == names
    assert caplog.messages == []
    assert again.log.producers.get(7).epoch == 1 + more
