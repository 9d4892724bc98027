"""kafka-reassign-partitions: states, throttles and files that a comparison on healthy brokers does not show.

The expected lines are those that Apache Kafka's own tool prints.
"""

from __future__ import annotations

import json

import pytest

from ottla.client.admin.partitions import Reassignment
from ottla.client.admin.types import Replica
from ottla.kafka_tools.main import load_tool, run_tool
from ottla.kafka_tools.options import ToolError
from ottla.kafka_tools.tools.reassignment.log_dir_moves import Place, move_text
from ottla.kafka_tools.tools.reassignment.plan_files import check_plan, parse_brokers, parse_plan
from ottla.kafka_tools.tools.reassignment.reassign_partitions import find_moves
from ottla.kafka_tools.tools.reassignment.throttles import Move
from ottla.types import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
OFFLINE = "There is likely an offline log directory on the broker."


@pytest.mark.parametrize(
    ("place", "line"),
    [
        (None, "Partition t-0 cannot be found in any live log directory on broker 1."),
        (Place("", ""), f"Partition t-0 is not found in any live log dir on broker 1. {OFFLINE}"),
        (Place("/one", ""), "Partition t-0 on broker 1 is not being moved from log dir /one to /two."),
        (Place("/two", ""), "Reassignment of replica t-0-1 completed successfully."),
        (Place("/one", "/two"), "Reassignment of replica t-0-1 is still in progress."),
        (Place("/one", "/x"), "Partition t-0 on broker 1 is being moved to log dir /x instead of /two."),
    ],
)
def test_moves_between_log_dirs(place: Place | None, line: str) -> None:
    assert move_text(Replica(T0, 1), place, "/two") == line


def plan_of(**replicas: object) -> str:
    return json.dumps({"partitions": [{"topic": "t", "partition": 0, **replicas}]})


def test_a_plan_takes_the_place_of_an_active_move() -> None:
    active = {T0: Reassignment((2, 3, 1), (3,), (1,)), T1: Reassignment((2, 3), (3,), (2,))}
    # Nothing is copied to 3 any more; the throttle of the other partition is kept.
    moves = find_moves(parse_plan(plan_of(replicas=[1])), {T0: (2, 3, 1)}, active)
    assert moves == {T0: Move(frozenset({1, 2}), frozenset()), T1: Move(frozenset({2}), frozenset({3}))}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "The input string shouldn't be empty"),
        ("[" * 200_000, "The input string is not a valid JSON"),
        (plan_of(replicas=3), "Expected `JSON array` value, received 3"),
        (plan_of(replicas=[1], log_dirs=3), "Expected `JSON array` value, received 3"),
        (plan_of(replicas=[2, 1, 2, 1]), "may not contain duplicate entries: t-0 contains multiple entries for 1,2"),
    ],
)
def test_files_that_are_refused(text: str, message: str) -> None:
    with pytest.raises(ToolError) as error:
        check_plan(parse_plan(text))
    assert error.value.message.endswith(message)


@pytest.mark.parametrize("word", [" 1", "1_0", "", "٣", "3000000000"])
def test_ids_of_brokers_are_read_as_java_reads_numbers(word: str) -> None:
    with pytest.raises(ToolError) as error:
        parse_brokers(f"+1,{word}")
    assert error.value.message == f'For input string: "{word}"'


def test_errors_are_on_standard_output(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--bootstrap-server", "127.0.0.1:1", "--verify", "--reassignment-json-file", str(tmp_path / "absent")]
    assert run_tool(load_tool("kafka-reassign-partitions"), words) == 1
    message = f"Unable to read file {tmp_path}/absent"
    assert capsys.readouterr() == (f"Error: {message}\njava.io.IOException: {message}\n", "")
