"""A look at the ends of files that are believed: what it tells, each missed once (`python -m testbench.damage`)."""

from __future__ import annotations

import logging

import pytest
from tests.storage.conftest import SMALL, idempotent

from ottla.config.topic import TopicConfig

FIRST, SECOND = f"t-0/{0:020d}", f"t-0/{10:020d}"


@pytest.fixture
def stopped(sim, kit):
    """Two segments, stopped in order: a producer, two epochs, two aborted transactions."""
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
            shelf.log.roll()
    shelf.log.high_watermark = 20
    assert shelf.log.segments.active.base_offset == 10
    assert shelf.stop() is None
    return shelf


def facts(log) -> tuple:
    aborted = [entry[:3] for entry in log.aborted_transactions(0, 20)]
    return log.end_offset, log.epochs.entries, log.producers.snapshot(), aborted


TRUTH_OF = {
    "an epoch that begins elsewhere": (
        "t-0/leader-epoch-checkpoint",
        lambda content, _: content.replace(b"0 0", b"0 4"),
    ),
    "an epoch that nobody wrote in": (
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


@pytest.mark.parametrize("what", TRUTH_OF)
def test_what_the_log_says_otherwise_is_made_anew_from_it(sim, stopped, what, caplog) -> None:
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
def test_a_sealed_segment_that_is_not_whole_is_named(sim, stopped, harm, words, caplog) -> None:
    path = f"{FIRST}.log"
    sim.overwrite(path, harm(sim.contents(path)))
    with caplog.at_level(logging.ERROR):
        stopped.again()
    assert any(words in record.getMessage() and path in record.getMessage() for record in caplog.records)


def test_a_first_segment_that_is_gone_is_named(sim, stopped, caplog) -> None:
    for kind in ("log", "index", "timeindex", "txnindex"):
        sim.remove(f"{FIRST}.{kind}")
    with caplog.at_level(logging.ERROR):
        assert stopped.again().log.start_offset == 10
    assert "t-0: records below offset 10 are not there" in caplog.text


def test_retention_is_no_damage(sim, kit, caplog) -> None:
    shelf = kit.rolled(sim, [0, 10, 20], 30, retention_bytes=1, retention_ms=-1)
    shelf.log.delete_old_segments(sim.clock.now())
    sim.settle()
    for end in (shelf.stop, sim.kill, sim.kill):
        end()
        with caplog.at_level(logging.ERROR):
            shelf = shelf.again()
        sim.settle()
        assert shelf.log.start_offset in {20, 30}
    assert not caplog.records


def test_an_end_that_is_not_where_the_last_stop_was_is_named(sim, kit, caplog) -> None:
    shelf = kit.Shelf(sim, SMALL)
    shelf.put(kit.batch(1))
    assert shelf.stop() is None
    content = bytearray(sim.contents(f"{FIRST}.log"))
    content[5] ^= 1
    sim.overwrite(f"{FIRST}.log", bytes(content))
    with caplog.at_level(logging.ERROR):
        shelf.again()
    assert "its last stop was at 1" in caplog.text
