"""`ottla pipeline` without Spark: files, plans, status; running is in tests/spark/pipeline_page_test.py."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from ottla.cli.commands.pipelines.loading import PipelineLoader
from ottla.client.admin.admin import Admin
from ottla.client.admin.groups import GroupAdmin
from ottla.client.cluster import Cluster
from ottla.client.settings import ClientConfig
from ottla.pipeline import BadPipeline, Pipeline, supervision
from ottla.pipeline.definitions.definition import PipelineDefinition
from ottla.types import TopicPartition

FILE = """
from dataclasses import dataclass
from ottla.pipeline import Pipeline, map_rows
from helper import PLACE

@dataclass
class Order:
    item: str

shop = Pipeline("{name}", "{brokers}")

@shop.step("{name}.orders", to="{name}.priced", retries=["30s", "90m"])
@map_rows
def price(record):
    return Order(record.value.decode()).item

@shop.step("{name}.priced", to="{name}.large", name="second")
def large(frame):
    return frame
"""
Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path, brokers: str) -> Write:
    """Writes a file with a pipeline of this name; other text can be appended."""

    def put(name: str, more: str = "", bootstrap: str = brokers) -> str:
        (tmp_path / "helper.py").write_text("PLACE = 1\n")
        (tmp_path / f"{name}.py").write_text(FILE.format(name=name, brokers=bootstrap) + more)
        return str(tmp_path / f"{name}.py")

    return put


def test_the_steps_of_a_file_are_listed(ottla: Any, write: Write) -> None:
    found = json.loads(ottla("pipeline", "list", write("listed"), "-o", "json").stdout)
    assert found == [
        {"pipeline": "shop", "name": "listed", "step": "price", "reads": ["listed.orders"], "writes": "listed.priced"},
        {"pipeline": "shop", "name": "listed", "step": "second", "reads": ["listed.priced"], "writes": "listed.large"},
    ]
    assert "second" in ottla("pipeline", "list", write("listed")).stdout


def test_a_dry_run_shows_steps_and_topics_and_changes_nothing(ottla: Any, write: Write) -> None:
    file = write("dry")
    missing = ottla("pipeline", "run", file, "--dry-run")
    assert (missing.exit_code, missing.stdout) == (2, "")
    assert "the topic dry.orders does not exist: create it" in missing.stderr
    ottla("topic", "create", "dry.orders", "--partitions", "4")
    before = ottla("topic", "list", "-o", "json").stdout
    for words in ((file,), (f"{file}:shop",)):
        plan = json.loads(ottla("pipeline", "run", *words, "--dry-run", "-o", "json").stdout)
        assert [(step["step"], step["scope"]) for step in plan["steps"]] == [("price", "partition"), ("second", "auto")]
        assert [step["offsets"] for step in plan["steps"]] == [True, False], "of the second, Spark's plan decides"
        assert plan["steps"][0]["retries"] == {"dry.orders.dry.retry-1": 30_000, "dry.orders.dry.retry-2": 5_400_000}
        topics = {topic["name"]: (topic["role"], topic["exists"], topic["partitions"]) for topic in plan["topics"]}
        assert topics["dry.orders"] == ("source", True, 4)
        assert topics["dry.priced"] == ("output", False, 4)
        assert topics["dry.large"] == ("output", False, 4)
        assert topics["dry.orders.dry.retry-2"] == ("retry", False, 4)
        assert topics["dry.orders.dry.dead"] == ("dead", False, 4)
    shown = ottla("pipeline", "run", file, "--dry-run").stdout
    assert "dry.orders.dry.retry-1 after 30s" in shown
    assert "  partition, with offsets\n" in shown
    assert ottla("topic", "list", "-o", "json").stdout == before


def test_the_brokers_of_the_command_line_win(ottla: Any, write: Write, brokers: str) -> None:
    ottla("topic", "create", "elsewhere.orders")
    file = write("elsewhere", bootstrap="127.0.0.1:1")
    assert ottla("pipeline", "run", file, "--dry-run", "-b", brokers).exit_code == 0


def test_the_status_is_asked_of_the_brokers(ottla: Any, write: Write, brokers: str) -> None:
    file = write("asked")
    ottla("topic", "create", "asked.orders", "--partitions", "1")
    ottla("produce", "asked.orders", stdin="1\n2\n3\n")
    shown = ottla("pipeline", "status", file)
    assert shown.stdout.split() == ["STEP", "LAG", "WAITING", "DEAD", "price", "3", "0", "0", "second", "0", "0", "0"]
    assert "step price: topics that do not exist yet: asked.orders.asked.dead" in shown.stderr
    pipeline = Pipeline("asked", brokers)
    pipeline.step("asked.orders", to="asked.priced", retries=["30s"], name="price")(lambda frame: frame)
    assert sorted(pipeline.make_topics()) == ["asked.orders.asked.dead", "asked.orders.asked.retry-1", "asked.priced"]
    assert pipeline.make_topics() == []
    for topic, lines in (("asked.orders.asked.retry-1", "a\nb\n"), ("asked.orders.asked.dead", "c\n")):
        ottla("produce", topic, stdin=lines)
    with Cluster(ClientConfig.from_mapping({"bootstrap.servers": brokers})) as cluster:
        GroupAdmin(cluster).alter_group_offsets("asked", {TopicPartition("asked.orders", 0): 2})
        Admin(cluster).delete_records({TopicPartition("asked.orders", 0): 1})
    (step,) = pipeline.status()
    assert (step.lag, step.waiting, step.dead, step.missing) == (1, 2, 1, ())


def test_topics_that_are_made_fit_their_purpose(ottla: Any, brokers: str) -> None:
    ottla("topic", "create", "made.orders", "--partitions", "2")
    pipeline = Pipeline("made", brokers)
    pipeline.step("made.orders", to="made.out", retries=["5d"], partitions=5, name="one")(lambda frame: frame)
    pipeline.make_topics()
    found = json.loads(ottla("topic", "describe", "made.orders.made.retry-1", "-o", "json").stdout)
    text = json.dumps(found)
    assert "LogAppendTime" in text
    assert str(10 * 86_400_000) in text
    assert {topic.partitions for topic in pipeline.plan().topics} == {2, 5}


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("run", "no-such.py", "--dry-run"), "no-such.py does not exist: name a Python file"),
        (("run", "FILE:wrong", "--dry-run"), "has no pipeline wrong; it has shop"),
        (("run", "FILE"), "--checkpoint"),
        (("list", "no-such.py"), "does not exist"),
        (("serve", "FILE", "FILE", "--checkpoint", "c"), "two pipelines are called words"),
        (("serve", "FILE", "--checkpoint", "c", "--trigger", "available_now"), "name an interval such as 5s"),
        (("serve", "FILE", "--checkpoint", "c", "--http", "nowhere"), "'nowhere' is not host:port"),
        (("replay", "FILE", "--from", "noon", "--into", "x", "--checkpoint", "c"), "--from noon is not a time"),
        (("serve", "FILE", "--from-cluster", "--checkpoint", "c"), "is not a directory: name that of the pipelines"),
        (("serve", ".", ".", "--from-cluster", "--checkpoint", "c"), "--from-cluster takes one directory"),
        (
            ("replay", "FILE", "--from", "@-1d", "--into", "words", "--checkpoint", "c"),
            "must be another one than words",
        ),
    ],
)
def test_wrong_words_are_explained(ottla: Any, write: Write, words: tuple[str, ...], text: str) -> None:
    file = write("words")
    done = ottla("pipeline", *(word.replace("FILE", file) for word in words))
    assert done.exit_code == 2
    assert text in done.stderr


def test_files_that_are_none_are_explained(ottla: Any, write: Write, tmp_path: Path) -> None:
    two = write("two", "other = Pipeline('other')\n")
    assert "has several pipelines: name one" in ottla("pipeline", "run", two, "--dry-run").stderr
    empty = tmp_path / "empty.py"
    empty.write_text("x = 1\n")
    assert "has no Pipeline" in ottla("pipeline", "status", str(empty)).stderr
    broken = write("broken", "1 / 0\n")
    done = ottla("pipeline", "list", broken)
    assert done.exit_code == 1
    assert "cannot be loaded: ZeroDivisionError" in done.stderr
    text = tmp_path / "notes.txt"
    text.write_text("x")
    assert "is not a Python file" in ottla("pipeline", "list", str(text)).stderr
    wrong = write("wrong", "shop.step('a', to='a')(large)\n")
    assert "BadPipeline: step large: to=a is read by this step" in ottla("pipeline", "list", wrong).stderr


SHOP = PipelineDefinition("shop.py")
TWO = """
from ottla.pipeline import Pipeline
import sys

one = Pipeline("one", "127.0.0.1:1")
same = one
two = Pipeline("two")
GREETING = "first"
"""


@pytest.fixture
def load(tmp_path: Path) -> Callable[[str], Pipeline]:
    """Loads the pipeline of a name from shop.py; settings are those of a command line."""
    with click.Context(click.Command("serve")) as context:
        context.meta["ottla.cli.brokers"] = "127.0.0.1:2"
        loader = PipelineLoader(str(tmp_path))
    return lambda name: loader.load_definition(name, SHOP)


def test_a_definition_chooses_a_pipeline_by_its_name(load: Callable[[str], Pipeline], tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(TWO)
    one = load("one")
    assert (one.name, one.settings["bootstrap.servers"]) == ("one", "127.0.0.1:2")
    assert load("two").name == "two"
    assert load("one") is not one, "each start loads the file"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "shop.py does not exist in "),
        (TWO, 'shop.py has no pipeline with the name "shop"; it has one, two'),
        ("x = 1", 'has no pipeline with the name "shop"; it has none'),
        (TWO.replace('"one"', '"shop"').replace('"two"', '"shop"'), "has several pipelines with the name"),
        (TWO + "1 / 0", "cannot be loaded: ZeroDivisionError: division by zero"),
        (TWO + "sys.exit()", "shop.py cannot be loaded: it ends the process"),
        (TWO + "(", "cannot be loaded: SyntaxError"),
        ("import no_such_module", "No module named 'no_such_module'"),
    ],
)
def test_a_definition_that_cannot_be_loaded_has_a_reason(
    load: Callable[[str], Pipeline], tmp_path: Path, text: str | None, reason: str
) -> None:
    if text is not None:
        (tmp_path / "shop.py").write_text(text)
    with pytest.raises(Exception, match=re.escape(reason)) as caught:
        load("shop")
    assert not supervision.is_permanent(caught.value), "the file may be put there, or mended"


def test_a_pipeline_without_steps_is_refused(brokers: str) -> None:
    with pytest.raises(BadPipeline, match="no step"):
        Pipeline("empty", brokers).plan()
