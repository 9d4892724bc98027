"""The embedded store: the rules of the seam, and its state after crashes.

Zone: real.
"""

from __future__ import annotations

import pytest

from ottla.seams import Failure, Kind, Op, Session
from ottla.sim.disks.drive import JournalLoss
from ottla.sim.disks.drive_faults import DiskOperation
from ottla.sim.disks.inode import LossPattern
from ottla.sim.machines.machine import Death
from ottla.storage.layout import parse_log_dir
from ottla.znodes.journal import DIRECTORY
from ottla.znodes.local_session import LocalSession
from ottla.znodes.records import CorruptStore


def test_values_survive_a_kill(home):
    assert home.submit(Op("create", "/a", b"1"), Op("create", "/a/b")) == [("/a", 0), ("/a/b", 0)]
    assert home.submit(Op("put", "/a", b"2", 0)) == [("/a", 1)]
    home.restart()
    assert home.get("/a").data == b"2"
    assert home.get("/a").version == 1
    assert home.children("/a") == ["b"]
    assert home.children("/nowhere") == []
    assert home.get("/nowhere") is None


def test_the_session_opens_and_dies_with_the_process(home):
    state, first = home.told[0]
    assert state is Session.OPEN
    home.submit(Op("create", "/ids"), Op("ephemeral", "/ids/1"))
    assert home.get("/ids/1").owner == first
    home.restart()
    assert home.get("/ids/1") is None
    assert home.get("/ids") is not None
    assert home.told[0][1] > first


def test_czxid_grows_with_every_creation(home):
    home.submit(Op("create", "/a"))
    first = home.get("/a").czxid
    home.submit(Op("delete", "/a"))
    home.restart()
    home.submit(Op("create", "/a"))
    assert home.get("/a").czxid > first


def test_a_condition_that_does_not_hold_is_a_conflict(home):
    home.submit(Op("create", "/a"))
    for ops in ([Op("create", "/a")], [Op("put", "/a", b"x", 5)], [Op("delete", "/b")], [Op("create", "/x/y")]):
        with pytest.raises(Failure) as failure:
            home.submit(*ops)
        assert failure.value.kind is Kind.CONFLICT


def test_a_multi_is_applied_as_a_whole_or_not(home):
    with pytest.raises(Failure):
        home.submit(Op("create", "/a"), Op("create", "/b/c"))
    assert home.get("/a") is None
    home.restart()
    assert home.get("/a") is None


def test_a_failure_fails_the_rest_of_its_lane(home):
    told = []
    home.store.submit_ops("x", [Op("create", "/a/b")], lambda outcome: told.append(("1", outcome)))
    home.store.submit_ops("x", [Op("create", "/c")], lambda outcome: told.append(("2", outcome)))
    home.store.submit_ops("y", [Op("create", "/d")], lambda outcome: told.append(("3", outcome)))
    home.settle()
    outcomes = dict(told)
    assert outcomes["1"].kind is Kind.CONFLICT
    assert outcomes["2"].kind is Kind.NOT_DONE
    assert outcomes["3"] == [("/d", 0)]
    assert home.get("/c") is None
    assert home.submit(Op("create", "/c"), lane="x") == [("/c", 0)]


def test_multis_of_a_lane_run_one_at_a_time_in_order(home):
    told = []
    for number in range(5):
        home.store.submit_ops("x", [Op("create", f"/{number}")], lambda _, number=number: told.append(number))
    home.settle()
    assert told == [0, 1, 2, 3, 4]
    czxids = [home.get(f"/{number}").czxid for number in range(5)]
    assert czxids == sorted(czxids)


def test_completions_wait_for_the_sync(home):
    told = []
    home.store.submit_ops("x", [Op("create", "/a", b"1")], told.append)
    home.store.get_node("/a", False, told.append)
    home.shell.effects.drain_effects()
    assert told == []
    home.settle()
    assert told[0] == [("/a", 0)]
    assert told[1].data == b"1"


def test_a_watch_fires_once_and_before_the_completion(home):
    home.submit(Op("create", "/a"))
    home.get("/a", watch=True)
    home.children("/a", watch=True)
    home.get("/later", watch=True)
    home.told.clear()
    home.store.submit_ops("x", [Op("put", "/a", b"2")], lambda _: home.told.append("done"))
    home.settle()
    assert home.told == [("node", "/a"), "done"]
    home.submit(Op("put", "/a", b"3"), Op("create", "/a/b"), Op("create", "/later"))
    assert home.told[2:] == [("node", "/a"), ("node", "/later")]
    home.submit(Op("put", "/a", b"4"), Op("delete", "/a/b"))
    assert len(home.told) == 4


def test_sequential_names_count_the_changes_of_children(home):
    home.submit(Op("create", "/q"))
    (first, _), (second, _) = home.submit(Op("sequential", "/q/n-"), Op("sequential", "/q/n-"))
    assert [first, second] == ["/q/n-0000000000", "/q/n-0000000001"]
    home.restart()
    assert home.submit(Op("sequential", "/q/n-"))[0][0] == "/q/n-0000000002"


def test_a_bad_path_is_refused(home):
    with pytest.raises(Failure) as failure:
        home.submit(Op("create", "/a/../b"))
    assert failure.value.kind is Kind.NOT_DONE


# -- what crashes leave ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pages", list(LossPattern))
@pytest.mark.parametrize("names", list(JournalLoss))
@pytest.mark.parametrize("snapshot_bytes", [600, 1 << 22])
def test_a_power_loss_keeps_everything_confirmed(make_home, pages, names, snapshot_bytes):
    for seed in range(3):
        home = make_home(seed, snapshot_bytes)
        told = {}
        for number in range(40):
            home.store.submit_ops(
                f"lane {number % 3}",
                [Op("create", f"/n{number}", b"x" * number)],
                lambda outcome, number=number, told=told: told.update({number: outcome}),
            )
        home.shell.effects.drain_effects()
        home.timeline.run_until(home.timeline.now_ns + seed * 17_000_000 + 5_000_000)
        home.restart(Death.POWER_LOSS, (pages, names))
        for number, outcome in told.items():
            assert outcome == [(f"/n{number}", 0)]
            assert home.get(f"/n{number}").data == b"x" * number
        per_lane = [[home.get(f"/n{n}") is not None for n in range(lane, 40, 3)] for lane in range(3)]
        for kept in per_lane:
            assert kept == sorted(kept, reverse=True), "a later change of a lane survived an earlier one"


def test_a_torn_tail_is_cut_and_overwritten(home):
    home.submit(Op("create", "/a"))
    (name,) = home.names()
    file = home.drive.file_at(f"{DIRECTORY}/{name}")
    whole = bytes(file.data)
    home.submit(Op("create", "/b"))
    home.machine.end_process(Death.KILL)
    for cut in (1, 30, 61):
        del file.data[len(whole) + cut :]
        home.open()
        assert home.get("/a") is not None
        assert home.get("/b") is None
        home.submit(Op("create", "/b", b"again"))
        home.restart()
        assert home.get("/b").data == b"again"
        home.submit(Op("delete", "/b"))
        home.submit(Op("create", "/b"))
        whole = bytes(file.data)
        home.submit(Op("delete", "/b"))
        home.submit(Op("create", "/b"))
        home.submit(Op("delete", "/b"))
        whole = bytes(file.data)
        home.submit(Op("create", "/b"))
        home.machine.end_process(Death.KILL)


def test_a_flipped_bit_in_the_tail_is_cut(home):
    home.submit(Op("create", "/a"))
    (name,) = home.names()
    size = len(home.drive.file_at(f"{DIRECTORY}/{name}").data)
    home.submit(Op("create", "/b", b"value"))
    home.machine.end_process(Death.KILL)
    home.flip_bit(name, size + 80)
    home.open()
    assert home.get("/a") is not None
    assert home.get("/b") is None


def test_snapshots_replace_the_logs_before_them(make_home):
    home = make_home(snapshot_bytes=2000)
    home.submit(Op("create", "/kept", b"first"))
    for number in range(60):
        home.submit(Op("create", f"/n{number}", b"v" * 50))
        home.submit(Op("delete", f"/n{number}"))
    before = home.tree()
    snapshots = [name for name in home.names() if name.endswith(".snapshot")]
    logs = [name for name in home.names() if name.endswith(".log")]
    assert len(snapshots) == 2
    assert 2 <= len(logs) <= 3
    home.restart()
    assert home.tree() == before
    assert home.get("/kept").data == b"first"


def test_a_damaged_snapshot_falls_back_to_the_one_before(make_home):
    home = make_home(snapshot_bytes=2000)
    for number in range(60):
        home.submit(Op("create", f"/n{number}", b"v" * 50))
    before = home.tree()
    newest = [name for name in home.names() if name.endswith(".snapshot")][-1]
    home.machine.end_process(Death.KILL)
    home.flip_bit(newest, 200)
    home.open()
    assert home.tree() == before


def test_a_damaged_log_before_the_last_one_is_an_error(make_home):
    home = make_home(snapshot_bytes=1000)
    for number in range(40):
        home.submit(Op("create", f"/n{number}", b"v" * 50))
    oldest = next(name for name in home.names() if name.endswith(".log"))
    snapshots = [name for name in home.names() if name.endswith(".snapshot")]
    home.machine.end_process(Death.KILL)
    home.flip_bit(oldest, 200)
    for name in snapshots:
        home.flip_bit(name, 200)
    with pytest.raises(CorruptStore, match="no snapshot"):
        home.open()


# -- what disks do -----------------------------------------------------------------------------------------------------


def test_a_full_disk_refuses_and_changes_nothing(home):
    home.submit(Op("create", "/a"))
    home.drive.capacity = home.drive.used_bytes() + 10
    with pytest.raises(Failure) as failure:
        home.submit(Op("create", "/b", bytes(100)))
    assert failure.value.kind is Kind.FULL
    assert home.get("/b") is None
    home.drive.capacity = 1 << 40
    assert home.submit(Op("create", "/b")) == [("/b", 0)]
    home.restart()
    assert home.get("/b").data == b""


def test_a_failed_sync_leaves_the_outcome_unknown_and_ends_the_store(home):
    home.submit(Op("create", "/a"))
    home.faults.arm_error(DiskOperation.SYNC)
    read = []
    home.store.submit_ops("x", [Op("create", "/b")], read.append)
    home.store.get_node("/b", False, read.append)
    home.settle()
    assert [outcome.kind for outcome in read] == [Kind.UNKNOWN, Kind.IO]
    assert (Session.EXPIRED, home.told[0][1]) in home.told
    with pytest.raises(Failure) as failure:
        home.submit(Op("create", "/c"))
    assert failure.value.kind is Kind.IO


def test_a_closed_session_loses_its_nodes_and_refuses_requests(home):
    home.submit(Op("ephemeral", "/me"))
    other = LocalSession(home.engine, lambda path: home.told.append(("other", path)), lambda *_: None).begin_session()
    home.settle()
    other.get_node("/me", True, home.told.append)
    home.settle()
    home.store.close_session()
    home.settle()
    assert ("other", "/me") in home.told
    with pytest.raises(Failure) as failure:
        home.submit(Op("create", "/a"))
    assert failure.value.kind is Kind.EXPIRED


def test_close_waits_for_the_last_sync(home):
    told = []
    home.store.submit_ops("x", [Op("create", "/a")], lambda _: told.append("submit"))
    home.engine.close_store(lambda outcome: told.append(("closed", outcome)))
    home.settle()
    assert told == ["submit", ("closed", None)]


def test_the_log_manager_ignores_the_directory():
    assert parse_log_dir(DIRECTORY) is None
