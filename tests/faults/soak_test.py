"""A short dose of the soak; `make soak` gives the two hours. And what its judges notice, on planted damage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from testbench.chaos.values import value
from testbench.disk import VolumeError
from testbench.network import NetworkError
from testbench.soak.pacing import Pacing
from testbench.soak.run import run
from testbench.soak.stream import Stream
from testbench.soak.watch import Samples, judge_disk, judge_growth

HOUR_S = 3600


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.interop
def test_nothing_is_lost_and_nothing_grows_without_bounds(tmp_path: Path) -> None:
    lines: list[str] = []
    try:
        complaints, counts = run(
            tmp_path, minutes=0.45, at_least=2, records=50_001, seed=4, rate=3_000, say=lines.append
        )
    except (NetworkError, VolumeError) as error:
        pytest.fail(str(error))
    assert not complaints, "\n".join([*lines[-60:], *complaints])
    assert counts["acknowledged"] > 50_000
    assert len(counts["faults"]) >= 2
    assert counts["pairs"]["committed"] > 0
    assert counts["table"]["rows"] > 0
    assert json.loads((tmp_path / "soak.json").read_text())["complaints"] == []


class Paced:
    """A client that prints what it is set to."""

    def __init__(self, *counts: int) -> None:
        self.said = list(counts)
        self.paused = False

    def counts(self) -> list[int]:
        return self.said

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False


def test_writers_wait_for_a_reader_that_is_far_behind() -> None:
    writers, reader = [Paced(0, 0, 0), Paced()], Paced(0)
    pacing = Pacing(writers, reader, 600)
    pacing.stop()
    states = []
    for written, read in ((200, 0), (202, 0), (202, 100), (202, 103), (900, 103), (900, 900)):
        writers[0].said, reader.said = [written, written, 0], [read]
        pacing.look()
        states.append([each.paused for each in writers])
    yes, no = [True] * 2, [False] * 2
    assert states == [no, yes, yes, no, yes, no]
    assert pacing.pauses == 2


def test_writers_wait_for_a_replica_that_does_not_catch_up() -> None:
    writers, reader = [Paced(0, 0, 0)], Paced(0)
    pacing = Pacing(writers, reader, 600)
    pacing.stop()
    states = []
    for act in (pacing.look, pacing.hold, pacing.hold, pacing.release):
        act()
        pacing.look()
        states.append(writers[0].paused)
    assert states == [False, True, True, False]
    assert (pacing.pauses, pacing.holds) == (1, 1)


class Message:
    """A record of the stream, as the reader gets it."""

    def __init__(self, producer: int, number: int, partition: int) -> None:
        self._value = value(producer, number)
        self._partition = partition

    def value(self) -> bytes:
        return self._value

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return 7


def test_a_record_of_the_stream_that_is_missing_or_comes_again_ends_the_run():
    stream = Stream(partitions=2, producers=2)
    for message in (Message(0, 0, 0), Message(1, 0, 0), Message(0, 1, 1), Message(0, 2, 0)):
        stream.take(message)
    assert stream.counts == [3, 1]
    with pytest.raises(SystemExit, match="record 6 where 4 was due, 1 are missing"):
        stream.take(Message(0, 6, 0))
    with pytest.raises(SystemExit, match="record 0 where 2 was due, it came before"):
        stream.take(Message(1, 0, 0))


def grown(pid: int, last: int) -> Samples:
    samples = Samples()
    for at in range(0, 2 * HOUR_S, 60):
        samples.rss.append((at, pid, 100 if at < HOUR_S * 1.5 else last))
        samples.disk.append((at, at))
    return samples


def test_memory_that_grows_in_the_last_hour_is_complained_about():
    assert judge_growth({"a": grown(1, 104), "b": grown(2, 90)}, 2 * HOUR_S) == []
    (complaint,) = judge_growth({"a": grown(1, 107), "b": grown(2, 90)}, 2 * HOUR_S)
    assert complaint.startswith("a: resident memory grew by 7.0%")
    assert judge_growth({"a": grown(1, 107)}, 60) == [], "a short run is not judged"


def test_a_process_that_is_young_is_no_witness():
    young = grown(1, 104)
    young.rss.append((2.0 * HOUR_S, 2, 100))
    assert judge_growth({"a": young}, 2 * HOUR_S) == ["no broker lived through the last half"]


def test_disk_use_beyond_its_bound_is_complained_about():
    assert judge_disk({"a": grown(1, 100)}, 2 * HOUR_S) == []
    assert "7,140 bytes were in use" in judge_disk({"a": grown(1, 100)}, 7_000)[0]
