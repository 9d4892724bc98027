"""Definitions of pipelines in `ottla diff`, `ottla apply`, `ottla cluster export` and `ottla pipeline list`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ottla.cli.main import cli
from ottla.client import Producer

_numbers = count()
TWO = """\
version: 1
pipelines:
  shop: {file: shop.py, trigger: 5s}
  stock: {file: parts/stock.py, state: paused, max_restarts: 3}
"""
EMPTY = "version: 1\npipelines: {}\n"
NEWER = b'{"version":2,"file":"shop.py","cores":4}'


class Cluster:
    """Commands with a topic of definitions of its own."""

    def __init__(self, brokers: str) -> None:
        self.brokers = brokers
        self.topic = f"definitions-{next(_numbers)}"

    def __call__(self, *words: str, stdin: str = "") -> Result:
        option = () if words[0] == "topic" else ("--pipelines-topic", self.topic)
        return CliRunner().invoke(cli, [*words, *option], input=stdin, env={"OTTLA_BROKERS": self.brokers})

    def listed(self) -> dict[str, str]:
        """The states by name."""
        found = json.loads(self("pipeline", "list", "--from-cluster", "-o", "json").stdout)
        return {each["pipeline"]: each["state"] for each in found}

    def put(self, key: bytes, value: bytes | None, *, commit: bool | None = None) -> None:
        """A record; with `commit` in a transaction that is committed or aborted."""
        settings = {"bootstrap.servers": self.brokers}
        if commit is not None:
            settings["transactional.id"] = self.topic
        with Producer(settings) as producer:
            if commit is not None:
                producer.init_transactions()
                producer.begin_transaction()
            producer.send(self.topic, value, key=key).result()
            if commit is not None:
                (producer.commit_transaction if commit else producer.abort_transaction)()


@pytest.fixture
def run(brokers: str) -> Iterator[Cluster]:
    cluster = Cluster(brokers)
    yield cluster
    cluster("topic", "delete", cluster.topic, "--yes")


def test_definitions_are_applied_once_changed_and_pruned(run: Cluster) -> None:
    planned = run("diff", "-", stdin=TWO)
    assert (planned.exit_code, planned.stdout.splitlines()) == (2, [
        f"+ topic {run.topic}: partitions=1, cleanup.policy=compact",
        "+ pipeline shop: file=shop.py, state=running, trigger=5s",
        "+ pipeline stock: file=parts/stock.py, state=paused, max_restarts=3",
    ])  # fmt: skip
    assert run.listed() == {}, "a plan writes nothing"
    made = run("apply", "-", "--yes", stdin=TWO)
    assert (made.exit_code, made.stdout.count("done: ")) == (0, 3), made.stderr
    again = run("apply", "-", stdin=TWO)
    assert (again.exit_code, again.stdout) == (0, ""), again.stderr
    assert (
        "PIPELINE  FILE            STATE    TRIGGER  MAX RESTARTS" in run("pipeline", "list", "--from-cluster").stdout
    )
    for form in ("yaml", "json"):
        exported = run("cluster", "export", "--section", "pipelines", "-o", form).stdout
        assert run("diff", "-", "--prune", "pipelines", stdin=exported).exit_code == 0
    paused = TWO.replace("trigger: 5s", "state: paused")
    (plan,) = json.loads(run("diff", "-", "-o", "json", stdin=paused).stdout)
    assert (plan["before"], plan["after"]) == (
        {"state": "running", "trigger": "5s"}, {"state": "paused", "trigger": None},
    )  # fmt: skip
    assert run("apply", "-", "--yes", stdin=paused).exit_code == 0
    assert run.listed() == {"shop": "paused", "stock": "paused"}
    assert run("diff", "-", stdin=EMPTY).exit_code == 0, "nothing is deleted that is not pruned"
    refused = run("apply", "-", "--yes", "--prune", "pipelines", stdin="version: 1\n")
    assert "pipelines: the file has no such section, so --prune would delete all" in refused.stderr
    assert run("apply", "-", "--yes", "--prune", "pipelines", stdin=EMPTY).stdout.count("done: - pipeline") == 2
    assert run.listed() == {}


def test_an_unchanged_file_writes_no_record(run: Cluster) -> None:
    run("apply", "-", "--yes", stdin=TWO)
    before = run("topic", "describe", run.topic, "-o", "json").stdout
    end = CliRunner().invoke(cli, ["offsets", run.topic], env={"OTTLA_BROKERS": run.brokers}).stdout
    run("apply", "-", "--yes", stdin=TWO)
    assert CliRunner().invoke(cli, ["offsets", run.topic], env={"OTTLA_BROKERS": run.brokers}).stdout == end
    assert run("topic", "describe", run.topic, "-o", "json").stdout == before
    assert "compact" in before


def test_a_wrong_file_changes_nothing_and_its_lines_are_named(run: Cluster) -> None:
    text = """\
version: 1
pipelines:
  good: {file: good.py}
  up: {file: ../up.py}
  root:
    file: /etc/root.py
  odd:
    file: odd.txt
    state: on
    trigger: available_now
    max_restarts: true
    cores: 4
  "..": {file: a.py}
  none:
"""
    refused = run("apply", "-", "--yes", stdin=text)
    assert (refused.exit_code, refused.stdout) == (1, "")
    for line in (
        "line 4, pipelines.up.file: '../up.py' is not a path below the directory of the service",
        "line 6, pipelines.root.file: '/etc/root.py' is not a path below",
        "line 8, pipelines.odd.file: 'odd.txt' is not a Python file",
        "line 9, pipelines.odd.state: 'on' is not one of running, paused",
        "line 10, pipelines.odd.trigger: 'available_now' is not an interval",
        "line 11, pipelines.odd.max_restarts: True is not a whole number from 0",
        "line 12, pipelines.odd.cores: this key is not known: use file, state, trigger, max_restarts",
        "line 13, pipelines...: the pipeline's name '..' must be",
        "line 14, pipelines.none.file: write a path",
    ):
        assert f"standard input: {line}" in refused.stderr
    assert "good" not in refused.stderr
    assert run.listed() == {}


def test_records_of_others_are_named(run: Cluster) -> None:
    run("apply", "-", "--yes", stdin=TWO)
    for key, value in ((b"shop", NEWER), (b"odd", b"\xff"), (b"a/b", b"{}"), (b"..", b"{}")):
        run.put(key, value)
    assert run.listed() == {"stock": "paused"}
    exported = run("cluster", "export", "--section", "pipelines")
    assert "shop" not in exported.stdout
    assert "left out: pipeline shop: its record has version 2, and 1 is known: upgrade ottla" in exported.stderr
    assert f"left out: 2 records of {run.topic} whose keys name no pipeline" in exported.stderr
    other = TWO.replace("state: paused, ", "")
    for words in (("apply", "-", "--yes"), ("apply", "-", "--yes", "--prune", "pipelines")):
        refused = run(*words, stdin=other if len(words) == 3 else EMPTY)
        assert refused.exit_code == 1
        assert "pipelines.shop: the cluster's definition is not changed: its record has version 2" in refused.stderr
    assert run.listed() == {"stock": "paused"}, "a refused plan changes nothing"
    # One that no version has written is replaced.
    assert "~ pipeline odd" in run("apply", "-", "--yes", stdin="version: 1\npipelines: {odd: {file: odd.py}}\n").stdout
    assert run.listed() == {"odd": "running", "stock": "paused"}


def test_only_what_is_committed_is_read(run: Cluster) -> None:
    run("apply", "-", "--yes", stdin=TWO)
    run.put(b"shop", None, commit=False)
    run.put(b"stock", b'{"version":1,"file":"stock.py"}', commit=True)
    assert run.listed() == {"shop": "running", "stock": "running"}
    other = run("pipeline", "list", "--from-cluster", "-X", "isolation.level=read_uncommitted")
    assert "shop" in other.stdout, "whatever the user's settings are"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("-p", "3", "-c", "cleanup.policy=compact"), "has 3 partitions: definitions need the order of one"),
        (("-p", "1", "-c", "cleanup.policy=delete"), "has cleanup.policy=delete: its definitions would be deleted"),
        (("-p", "1", "-c", "cleanup.policy=compact,delete"), "has cleanup.policy=compact,delete"),
    ],
)
def test_a_topic_that_would_lose_definitions_is_refused(
    run: Cluster, tmp_path: Path, words: tuple[str, ...], text: str
) -> None:
    assert run("topic", "create", run.topic, *words).exit_code == 0
    refused = run("apply", "-", "--yes", stdin=TWO)
    assert refused.exit_code == 1
    assert text in refused.stderr
    assert "pipelines: the cluster cannot list these" in refused.stderr
    assert text in run("pipeline", "list", "--from-cluster").stderr
    assert run("cluster", "export").exit_code == 0, "the rest can be exported"
    served = run("pipeline", "serve", str(tmp_path), "--from-cluster", "--checkpoint", "no-such")
    assert (served.exit_code, text in served.stderr) == (1, True)


@pytest.mark.parametrize(("bound", "value"), [("RECORDS_MAX", 3), ("BYTES_MAX", 200)])
def test_reading_is_bounded(run: Cluster, monkeypatch: pytest.MonkeyPatch, bound: str, value: int) -> None:
    run("apply", "-", "--yes", stdin=TWO)
    for _ in range(2):
        run.put(b"shop", b'{"version":1,"file":"shop.py"}')
    assert run.listed() == {"shop": "running", "stock": "paused"}
    monkeypatch.setattr(f"ottla.pipeline.definitions.definitions_topic.{bound}", value)
    refused = run("pipeline", "list", "--from-cluster")
    assert refused.exit_code == 1
    assert f"the topic {run.topic} was not read to its end" in refused.stderr


def test_the_words_of_the_list(ottla: Callable[..., Result]) -> None:
    assert "name a file, or use --from-cluster" in ottla("pipeline", "list").stderr
