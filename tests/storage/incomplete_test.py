"""A start finds logs that lost records, and names them, so that they do not count as in sync."""

from __future__ import annotations

import logging

import pytest
from tests.storage.conftest import SMALL, TOPIC_ID, TP

from ottla.sim.disks.drive import Drive
from ottla.storage.checkpoints import format_partition_metadata
from ottla.storage.log_loss import IncompleteLog, format_loss, parse_loss

IDS = {"t": TOPIC_ID}
OTHER_ID = bytes(range(100, 116))


@pytest.fixture
def stopped(sim, kit):
    """One log of three segments, stopped cleanly."""
    shelf = kit.rolled(sim, [0, 10, 20], 30)
    shelf.log.high_watermark = 30
    assert shelf.manager.incomplete_partitions(IDS) == []
    assert shelf.stop() is None
    return shelf


def lose_directory(drive: Drive) -> None:
    del drive.root.names["t-0"]


def test_a_complete_log_is_not_reported(stopped) -> None:
    assert stopped.again().manager.incomplete_partitions(IDS) == []


def test_a_log_whose_directory_is_missing_is_reported_until_forget_missing(sim, stopped, caplog) -> None:
    lose_directory(sim.drives[0])
    shelf = stopped.again()
    for _ in range(2):
        with caplog.at_level(logging.ERROR):
            assert shelf.manager.incomplete_partitions(IDS) == [TP]
        assert "the log of t-0 is missing" in caplog.text
        assert shelf.manager.topic_names() == ["t"]
        shelf.manager.dirs[0].checkpoint_recovery_points()
        sim.settle()
        sim.kill()
        shelf = shelf.again()
    assert shelf.manager.incomplete_partitions({"other": TOPIC_ID}) == [], "a log of a deleted topic is not missed"
    shelf.manager.forget_missing()
    assert shelf.manager.incomplete_partitions(IDS) == []


@pytest.mark.parametrize("is_new", [True, False])
def test_a_log_created_in_place_of_a_missing_one_is_incomplete_unless_new(sim, stopped, is_new) -> None:
    lose_directory(sim.drives[0])
    shelf = stopped.again()
    log = shelf.manager.create_log(TP, TOPIC_ID, SMALL, is_new=is_new)
    assert (log.start_offset, log.end_offset, log.recovery_point) == (0, 0, 0)
    assert log.loss is (None if is_new else IncompleteLog.END)
    assert shelf.manager.incomplete_partitions(IDS) == ([] if is_new else [TP])


def test_a_log_with_another_topics_id_is_reported(sim, stopped) -> None:
    sim.overwrite("t-0/partition.metadata", format_partition_metadata(OTHER_ID))
    shelf = stopped.again()
    assert shelf.manager.incomplete_partitions(IDS) == [TP]
    assert shelf.manager.incomplete_partitions({"t": OTHER_ID}) == []


def test_a_log_that_ends_below_its_high_watermark_is_reported(sim, kit) -> None:
    shelf = kit.rolled(sim, [0, 10], 20)
    shelf.log.high_watermark = 20
    shelf.manager.dirs[0].checkpoint_high_watermarks()
    sim.settle()
    path = f"t-0/{10:020d}.log"
    content = sim.contents(path)
    sim.kill()
    sim.overwrite(path, content[:-1])
    shelf = shelf.again()
    assert shelf.log.end_offset < 20
    assert shelf.log.loss is IncompleteLog.END
    assert shelf.manager.incomplete_partitions(IDS) == [TP]
    shelf.log.clear_incomplete()
    assert shelf.manager.incomplete_partitions(IDS) == []
    assert "incomplete" not in sim.names("t-0")


def test_an_unreadable_mark_means_the_worst_loss() -> None:
    assert [parse_loss(format_loss(lack)) for lack in IncompleteLog] == list(IncompleteLog)
    assert parse_loss(b"") is IncompleteLog.WITHIN
