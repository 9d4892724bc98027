"""Exactly once without a broker: options, scopes, markers, and when rows may change their partition."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.client.positions import OffsetAndMetadata
from ottla.spark import write_batch
from ottla.spark.connect_batch import parse_query
from ottla.spark.errors import BadCheckpoint, BadOption, StaleDriver, UnstableRows
from ottla.spark.offsets import Place
from ottla.spark.sink.exactly_once import (
    ADAPTIVE,
    ADAPTIVE_STREAMS,
    MARKERS,
    RUN,
    Marker,
    RunningBatch,
    TaskBatch,
    already_written,
    check_rows_are_stable,
    marker_position,
    parse_marker,
)
from ottla.spark.sink.sink_options import Scope, SinkOptions, batch_scope, sink_options, stream_scope
from ottla.spark.source.source_positions import TaskPosition
from ottla.spark.tasks import KEPT_NOTES, Task, add_note, hold_notes, notes_directory, read_notes, write_note
from ottla.types import TopicPartition

TURN = TaskBatch("ottla-", "3f1c", "sink", 4, 2)


def sink(**options: str) -> SinkOptions:
    given = {key.replace("__", "."): value for key, value in options.items()}
    return sink_options({"kafka.bootstrap.servers": "127.0.0.1:9092", "topic": "t", **given})


@pytest.mark.parametrize(
    ("options", "stream", "batch"),
    [
        ({}, Scope.PARTITION, None),
        ({"exactlyOnce": "auto"}, Scope.PARTITION, None),
        ({"exactlyOnce": "off"}, None, None),
        ({"exactlyOnce": "Batch", "sink": "a"}, Scope.BATCH, Scope.BATCH),
        ({"exactlyOnce": "partition", "sink": "a"}, Scope.PARTITION, Scope.PARTITION),
    ],
)
def test_what_is_written_all_or_nothing(options: dict[str, str], stream: Scope | None, batch: Scope | None) -> None:
    assert stream_scope(sink(**options)) is stream
    assert batch_scope(sink(**options)) is batch


def test_a_batch_write_with_a_name_is_written_as_a_whole() -> None:
    assert batch_scope(sink(jobId="nightly-2026-11-21")) is Scope.BATCH
    assert batch_scope(sink(jobId="nightly", exactlyOnce="partition")) is Scope.PARTITION


@pytest.mark.parametrize(
    ("options", "streaming", "name"),
    [
        ({"exactlyOnce": "always"}, True, "exactlyOnce"),
        ({"jobId": "a"}, True, "jobId"),
        ({"jobId": "a", "exactlyOnce": "off"}, False, "jobId"),
        ({"jobId": "a b"}, False, "jobId"),
        ({"outputId": "a", "exactlyOnce": "off"}, True, "outputId"),
        ({"outputId": "a", "jobId": "a"}, False, "outputId"),
        ({"outputId": "a-b"}, True, "outputId"),
        ({"sink": "a"}, False, "sink"),
        ({"sink": "a-b"}, True, "sink"),
        ({"sink": ""}, True, "sink"),
        ({"exactlyOnce": "partition"}, False, "sink"),
        ({"transactionalIdPrefix": "x" * 201}, True, "transactionalIdPrefix"),
        ({"kafka__acks": "1"}, True, "kafka.acks"),
        ({"kafka__enable__idempotence": "false"}, True, "kafka.acks"),
        ({"kafka__transaction__timeout__ms": "0"}, True, "kafka.transaction.timeout.ms"),
        ({"topic": MARKERS}, True, "topic"),
        ({"offsetsInTransaction": "yes"}, True, "offsetsInTransaction"),
        ({"offsetsInTransaction": "true", "exactlyOnce": "off"}, True, "offsetsInTransaction"),
        ({"offsetsInTransaction": "true", "jobId": "a"}, False, "offsetsInTransaction"),
        ({"sourceGroup": " "}, True, "sourceGroup"),
        ({"runningBatch": "3f1c/run/4", "sink": "a"}, True, "runningBatch"),
        ({"runningBatch": "3f1c/run/4"}, False, "runningBatch"),
        ({"runningBatch": "3f1c/run/4", "sink": "a", "jobId": "a"}, False, "runningBatch"),
        ({"runningBatch": "3f1c/run", "sink": "a"}, False, "runningBatch"),
        ({"runningBatch": "3f/1c/run/4", "sink": "a"}, False, "runningBatch"),
    ],
)
def test_options_that_contradict_are_refused_by_name(options: dict[str, str], streaming: bool, name: str) -> None:
    with pytest.raises(BadOption) as caught:
        (stream_scope if streaming else batch_scope)(sink(**options))
    assert caught.value.name == name


def test_at_least_once_needs_none_of_this() -> None:
    assert stream_scope(sink(exactlyOnce="off", kafka__acks="1")) is None
    assert batch_scope(sink(kafka__acks="0")) is None


def test_names_are_those_of_query_sink_and_partition() -> None:
    assert TURN.name == "ottla-3f1c-sink-2"
    assert TURN._replace(batch=5).name == TURN.name


def test_a_marker_names_the_written_batch() -> None:
    found = marker_position(TURN, 17)
    assert found == OffsetAndMetadata(5, -1, '{"q":"3f1c","b":4,"n":17,"v":1}')
    assert parse_marker(found, TURN.name) == Marker("3f1c", 4, 17)
    assert parse_marker(None, TURN.name) is None


@pytest.mark.parametrize(
    "found",
    [
        OffsetAndMetadata(5),
        OffsetAndMetadata(5, -1, "[]"),
        OffsetAndMetadata(5, -1, '{"q":"3f1c"}'),
        OffsetAndMetadata(6, -1, '{"q":"3f1c","b":4,"n":17,"v":1}'),
        OffsetAndMetadata(5, -1, '{"q":"3f1c","b":4,"n":17,"v":2}'),
        OffsetAndMetadata(5, -1, '{"q":"3f1c","b":4,"n":17,"v":1,"f":501}'),
    ],
)
def test_a_position_of_another_program_is_not_a_marker(found: OffsetAndMetadata) -> None:
    with pytest.raises(BadCheckpoint, match="did not write"):
        parse_marker(found, TURN.name)


def test_the_marker_decides() -> None:
    assert not already_written(TURN, None)
    assert not already_written(TURN, Marker("3f1c", 3, 1))
    assert already_written(TURN, Marker("3f1c", 4, 1))
    assert not already_written(TURN, Marker("another query", 9, 1))
    with pytest.raises(StaleDriver, match="Two drivers use one checkpoint"):
        already_written(TURN, Marker("3f1c", 5, 1))


@pytest.mark.parametrize(
    ("settings", "streaming", "read_here", "stable"),
    [
        ({}, True, False, False),
        ({}, True, True, True),
        ({ADAPTIVE: "false"}, True, False, True),
        ({ADAPTIVE_STREAMS: "false"}, True, False, True),
        ({ADAPTIVE_STREAMS: "false"}, False, False, False),
        ({ADAPTIVE: "false"}, False, False, True),
        ({ADAPTIVE: "true", ADAPTIVE_STREAMS: "true"}, True, False, False),
    ],
)
def test_rows_of_a_shuffle_are_stable_only_without_adaptive_execution(
    settings: dict[str, str], streaming: bool, read_here: bool, stable: bool
) -> None:
    if stable:
        check_rows_are_stable(settings.get, streaming=streaming, parts=int(read_here))
        return
    with pytest.raises(UnstableRows, match=r"write with exactlyOnce=batch"):
        check_rows_are_stable(settings.get, streaming=streaming, parts=int(read_here))


def test_rows_of_several_partitions_in_one_task_are_not_stable() -> None:
    with pytest.raises(UnstableRows, match="coalesce"):
        check_rows_are_stable({}.get, streaming=True, parts=2)
    check_rows_are_stable({ADAPTIVE: "false"}.get, streaming=True, parts=2)


def test_notes_of_a_task_that_writes_outlive_any_number_of_other_tasks(tmp_path: Path) -> None:
    one = TaskPosition("c", None, TopicPartition("t", 0), 1)
    with hold_notes(tmp_path, 3):
        add_note(tmp_path, 3, one)
        for task in range(4, 4 + 2 * KEPT_NOTES):
            add_note(tmp_path, task, one)
        assert read_notes(tmp_path, 3) == [one]
    assert not read_notes(tmp_path, 3)


def test_reader_and_writer_of_one_task_find_each_other(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    assert read_notes(notes, 0) == []
    for task in (0, 7, 5000):
        add_note(notes, task, TaskPosition("c", None, TopicPartition("t", 0), task))
    assert [task for task in range(6000) if read_notes(notes, task)] == [0, 7, 5000]
    for task in range(8000, 13000):
        add_note(notes, task, TaskPosition(None, None, TopicPartition("t", 0), 1))
    assert len(list(notes.iterdir())) <= KEPT_NOTES + 512, "they do not become more and more"
    assert read_notes(notes, 12999)
    assert not read_notes(notes, 7)


def test_a_task_may_read_several_partitions(tmp_path: Path) -> None:
    """As with coalesce."""
    read = [TaskPosition("c", "readers of \u00fc", TopicPartition("t", number), 10 + number) for number in range(3)]
    read[2] = read[2]._replace(place=Place("scan", 2, 3))
    add_note(tmp_path, 5 + 4096, TaskPosition("c", "g", TopicPartition("earlier", 0), 1))
    for one in read:
        add_note(tmp_path, 5, one)
    assert read_notes(tmp_path, 5) == read
    with (tmp_path / "5").open("a") as file:
        file.write('["c", "g"')
    assert read_notes(tmp_path, 5) == read, "one that is being written is none yet"


def test_outside_of_a_task_no_note_is_left() -> None:
    write_note(TaskPosition("c", "g", TopicPartition("t", 0), 1))


def test_a_task_of_spark_connect_has_the_batch_from_the_options() -> None:
    """Its own properties have none."""
    settings = {ADAPTIVE: "false"}
    given = sink(runningBatch="3f1c/run-1/4", sink="a", exactlyOnce="partition")
    assert batch_scope(given) is Scope.PARTITION
    assert given.once.running is not None
    running = RunningBatch.parse(given.once.running)
    assert (running, str(running)) == (RunningBatch("3f1c", "run-1", 4), "3f1c/run-1/4")
    task = Task(0, settings.get, list).in_batch(running)
    assert task.query_batch() == ("3f1c", 4)
    assert (task.get(RUN), task.get(ADAPTIVE)) == ("run-1", "false")


def test_sessions_of_spark_connect_share_the_notes() -> None:
    shared = Path("/tmp/userFiles-1")
    found = notes_directory(shared, "default")
    assert found.parent == shared
    assert notes_directory(shared / "session-1", "session-1") == notes_directory(shared / "session-2", "session-2")
    assert notes_directory(shared / "session-1", "session-1") == found


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"id":3}', '{"id":"a/b"}', '{"id":""}', '{"id":"3f1c'])
def test_an_id_of_a_query_is_a_word_in_the_metadata_of_its_checkpoint(text: str) -> None:
    assert parse_query('{"id":"18705c8e-2dba-4e50-8a2a-77e19bb911d3"}') == "18705c8e-2dba-4e50-8a2a-77e19bb911d3"
    assert parse_query(text) is None


def test_a_write_within_foreach_batch_is_no_job() -> None:
    """Each batch after the first would be taken for a repetition of it."""
    with pytest.raises(BadOption, match=r"Option jobId is for df\.write"):
        write_batch(None, 0, {"jobid": "a"}, sink="a")
