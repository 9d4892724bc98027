"""What a pipeline's checkpoint holds, and how steps continue over it.

tests/spark/checkpoint_plan_test.py has real checkpoints.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.pipeline import Pipeline, PipelinePlan
from ottla.pipeline.checkpoint_changes import Session, explain_changes, explain_checkpoint
from ottla.pipeline.checkpoint_files import LocalFiles, StepCheckpoint, files_of, read_step
from ottla.spark.errors import BadCheckpoint


def steps_of(name: str = "shop", **steps: dict[str, Any]) -> Any:
    found = Pipeline(name)
    for step, arguments in steps.items():
        found.step(**{"name": step, "source": "orders", "to": "priced", **arguments})(lambda frame: frame)
    return found.steps


def kept(*topics: str, planned: int = 4, ended: int = 4, operators: Any = (), partitions: int = 200) -> StepCheckpoint:
    return StepCheckpoint(planned, ended, frozenset(topics), operators, partitions)


def write_batch(root: Path, step: str, batch: int, *offsets: Any, conf: Any = None) -> Path:
    directory = root / step / "offsets"
    directory.mkdir(parents=True, exist_ok=True)
    lines = ["v1", json.dumps({"conf": conf or {}}), *(each if each == "-" else json.dumps(each) for each in offsets)]
    (directory / str(batch)).write_text("\n".join(lines))
    (directory / f".{batch}.crc").write_bytes(b"crc")
    (directory / f".{batch + 1}.0a1b.tmp").write_bytes(b"unfinished")
    return directory / str(batch)


def test_a_checkpoint_is_read_as_spark_writes_it(tmp_path: Path) -> None:
    plan = {"$plan": {"ids": {"orders": "00"}}}
    write_batch(tmp_path, "one", 9, {"gone": {"0": 1}})
    write_batch(
        tmp_path, "one", 10, {"orders": {"0": 5, "1": 7}, **plan}, "-", 7, {"other": "source"},
        conf={"spark.sql.shuffle.partitions": "20"},
    )  # fmt: skip
    (tmp_path / "one/commits").mkdir()
    (tmp_path / "one/commits/9").write_text("v1\n{}")
    for number, name in enumerate(["stateStoreSave", "dedupe"]):
        place = tmp_path / f"one/state/{number}/_metadata"
        place.mkdir(parents=True)
        (place / "metadata").write_text(f'v1\n{{"operatorInfo":{{"operatorId":{number},"operatorName":"{name}"}}}}')
    found = read_step(LocalFiles(str(tmp_path)), "one")
    assert found == StepCheckpoint(10, 9, frozenset({"orders"}), ("dedupe", "stateStoreSave"), 20)
    assert read_step(files_of(tmp_path.as_uri()), "one") == found
    assert read_step(LocalFiles(str(tmp_path)), "none") is None
    (place / "metadata").write_text("v3\n[]")
    found = read_step(LocalFiles(str(tmp_path)), "one")
    assert found is not None
    assert found.operators is None


@pytest.mark.parametrize(
    "text", ["v1\n[]", "v1\n{", 'v1\n{"conf": {}}\n{"a"', "v1\n" + "[" * 100_000, b"\xff\xfe", 'v1\n{"con": 1}']
)
def test_files_that_spark_did_not_write_are_named(tmp_path: Path, text: str | bytes) -> None:
    file = write_batch(tmp_path, "one", 3)
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(BadCheckpoint, match="one/offsets/3"):
        read_step(LocalFiles(str(tmp_path)), "one")


def test_damage_in_a_directory_of_no_step_is_passed_over(tmp_path: Path) -> None:
    write_batch(tmp_path, "other", 3).write_text("damaged")
    write_batch(tmp_path, "other", 4).write_text("v1\n[]")
    write_batch(tmp_path, "one", 3, {"orders": {"0": 5}})
    (found,) = explain_checkpoint(steps_of(one={}), str(tmp_path), None, {})
    assert (found.step, found.effect) == ("one", "continues")
    with pytest.raises(BadCheckpoint, match="other/offsets/4"):
        explain_checkpoint(steps_of(other={}), str(tmp_path), None, {})


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    with write_batch(tmp_path, "one", 3).open("ab") as file:
        file.truncate(33 << 20)
    with pytest.raises(BadCheckpoint, match="one/offsets/3 is larger than any file of a checkpoint"):
        read_step(LocalFiles(str(tmp_path)), "one")


def test_a_remote_checkpoint_needs_a_session() -> None:
    with pytest.raises(BadCheckpoint, match="only Spark can read it: give the session"):
        files_of("s3a://bucket/checkpoint")
    with pytest.raises(BadCheckpoint, match="cannot be looked at in a Spark Connect session"):
        files_of("s3a://bucket/checkpoint", object())


RETRIED = {"retries": ["1s", "1m"]}


@pytest.mark.parametrize(
    ("arguments", "stored", "effects"),
    [
        ({}, None, {"begins": "no checkpoint: it begins with the earliest records"}),
        ({"start": "group"}, None, {"begins": "it begins where its consumer group stands"}),
        ({}, kept("orders"), {"continues": "the last batch that has ended is 4"}),
        ({}, kept("orders", planned=5), {"continues": "batch 5 has not ended: .* the function as it is now"}),
        ({}, kept("bills"), {"refused": "BadCheckpoint: it is of a query that read bills"}),
        (RETRIED, kept("orders"), {"continues": "", "changes": "orders.shop.retry-1, orders.shop.retry-2 is new to"}),
        ({}, kept("orders", "bills"), {"refused": "DataLoss: bills was read until now: .* failOnDataLoss=false"}),
        ({"options": {"failondataloss": "FALSE"}}, kept("orders", "bills"),
         {"continues": "", "changes": "bills is not read any more"}),
        ({}, kept("orders", operators=("stateStoreSave",)), {"refused": "state is that of Aggregate, .* of nothing"}),
        ({}, kept("orders", operators=("other",)), {"continues": ""}),
        ({}, kept("orders", operators=None), {"continues": ""}),
    ],
)  # fmt: skip
def test_each_change_has_its_effect(arguments: Any, stored: Any, effects: dict[str, str]) -> None:
    found = explain_changes(steps_of(one=arguments), {"one": stored}, Session(200, {"one": ()}))
    assert [each.effect for each in found] == list(effects)
    for each, text in zip(found, effects.values(), strict=True):
        assert re.search(text, each.reason), each


def test_state_is_compared_with_the_plan() -> None:
    def effects(nodes: tuple[str, ...], *operators: str, shuffle: int = 200) -> list[str]:
        stored = {"one": kept("orders", operators=operators)}
        return [each.effect for each in explain_changes(steps_of(one={}), stored, Session(shuffle, {"one": nodes}))]

    assert effects(("Aggregate",), "stateStoreSave") == ["continues"]
    assert effects(("Aggregate",), "stateStoreSave", shuffle=8) == ["continues", "changes"]
    assert effects(("Aggregate",)) == ["refused"]
    assert effects(("Aggregate",), "dedupe") == ["refused"]
    assert effects(("Aggregate", "Aggregate"), "stateStoreSave") == ["refused"]
    assert effects(("GlobalLimit",)) == ["refused"]
    complete = explain_changes(steps_of(one={"output_mode": "complete"}), {"one": kept("orders")},
                               Session(200, {"one": ("GlobalLimit",)}))  # fmt: skip
    assert [each.effect for each in complete] == ["continues"]
    assert effects(("Join",), *["symmetricHashJoin"] * 4) == ["continues"]
    assert effects(("Join", "Aggregate"), *["symmetricHashJoin"] * 4) == ["refused"]
    found = explain_changes(steps_of(one={}), {"one": kept("orders", operators=("dedupe",))}, Session())
    assert [each.effect for each in found] == ["continues"]  # Spark was not asked


def test_a_step_under_another_name_is_found() -> None:
    found = explain_changes(steps_of(new={}), {"new": None, "old": kept("orders"), "far": kept("bills")}, Session())
    assert [(each.step, each.effect) for each in found] == [("new", "begins"), ("far", "unused"), ("old", "unused")]
    assert "if it is old under another name, it writes again what that has written" in found[0].reason


@given(st.sets(st.sampled_from(["orders", "orders.shop.retry-1", "bills"])), st.booleans())
def test_a_run_is_refused_when_a_topic_that_was_read_is_named_no_more(topics: set[str], ignores: bool) -> None:
    """The source's own rule (`Reader._finished_offsets`, `_new_partitions`), written again."""
    options = {"options": {"failOnDataLoss": "false"}} if ignores else {}
    steps = steps_of(one={"retries": ["1s"], **options})
    effects = {each.effect for each in explain_changes(steps, {"one": kept(*topics)}, Session())}
    reads = {"orders", "orders.shop.retry-1"}
    other = bool(topics) and not topics & reads
    assert ("refused" in effects) == (other or (bool(topics - reads) and not ignores))


def test_the_table_and_the_document_show_the_changes(capsys: pytest.CaptureFixture[str]) -> None:
    from ottla.cli.commands.pipelines.pipeline import show_plan

    changes = explain_changes(steps_of(one={}), {"one": kept("bills")}, Session())
    show_plan(PipelinePlan("shop", [], [], changes), "table")
    assert re.search(r"STEP +CHECKPOINT +REASON\none +refused +BadCheckpoint: ", capsys.readouterr().out)
    show_plan(PipelinePlan("shop", [], [], changes), "json")
    assert json.loads(capsys.readouterr().out)["checkpoint"] == [changes[0]._asdict()]
