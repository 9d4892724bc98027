"""Files of packaging/: units that systemd accepts, a compose file, alerts and a dashboard about metrics that exist.

`reference_test` compares docs/metrics.md, which names every metric, with a running broker.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from ottla.cli.main import cli
from ottla.config.broker import BrokerConfig
from ottla.config.rows import rows_of

ROOT = Path(__file__).resolve().parent.parent
PACKAGING = ROOT / "packaging"
UNITS = sorted(PACKAGING.glob("*.service"))
ALERTS = PACKAGING / "prometheus-alerts.yml"
DASHBOARD = PACKAGING / "grafana-dashboard.json"
NAME = re.compile(r"\b(?:kafka|ottla|process|python)_[a-z_0-9]+")
OPERATIONS = {"sum", "by", "rate", "increase", "max", "or", "up"}
WORD = re.compile(r"[a-z_][a-z_0-9]*")
PROGRAM = "/opt/ottla/bin/ottla"


def metrics() -> dict[str, set[str]]:
    """The labels of each metric."""
    rows = re.findall(
        r"^\| `(\w+)` \| .*?(?: by (`.*`)\.)? \|$", (ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE
    )
    return {name: set(re.findall(r"`(\w+)`", labels)) for name, labels in rows}


def alerts() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    return list(group["rules"])


def expressions() -> Iterator[str]:
    yield from (rule["expr"] for rule in alerts())
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))


@pytest.mark.parametrize("expression", sorted(set(expressions())))
def test_expressions_name_metrics_and_labels_that_exist(expression: str) -> None:
    known = metrics()
    named = NAME.findall(expression)
    assert set(named) <= set(known) or named == []
    grouped = {label for labels in re.findall(r" by \(([\w, ]+)\)", expression) for label in labels.split(", ")}
    own = {label for name in named for label in known[name]} | {"instance"}
    assert grouped <= own, f"{grouped - own} is not a label of {named}"
    plain = re.sub(r"\{.*?\}|\[.*?\]|\([a-z, ]+\)", " ", expression)
    assert set(WORD.findall(plain)) <= OPERATIONS | set(named)
    assert expression.count("(") == expression.count(")")


def test_counters_are_rates_and_gauges_are_not() -> None:
    for expression in expressions():
        for name in NAME.findall(expression):
            rated = re.search(rf"(?:rate|increase)\({name}\b", expression) is not None
            assert rated == name.endswith("_total"), expression


def test_each_alert_says_what_and_what_next() -> None:
    names = [rule["alert"] for rule in alerts()]
    assert len(set(names)) == len(names)
    for rule in alerts():
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert set(rule["annotations"]) == {"summary", "description"}
        assert rule["labels"]["severity"] in ("critical", "warning")


def test_panels_of_the_dashboard_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells


# -- commands --------------------------------------------------------------------------------------------------------


def check_command(words: list[str]) -> None:
    """The words are a command of `ottla` with options and broker keys that exist."""
    context = click.Context(cli, info_name="ottla")
    command: click.Command = cli
    while isinstance(command, click.Group):
        name, found, words = command.resolve_command(context, words)
        assert found is not None, name
        command = found
    parsed = command.make_context("command", words, resilient_parsing=False)
    keys = {row.name for row in rows_of(BrokerConfig)}
    for assignment in parsed.params.get("settings", ()):
        assert str(assignment).partition("=")[0] in keys


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_commands_of_units_exist(unit: Path, tmp_path: Path) -> None:
    text = unit.read_text()
    config = tmp_path / "server.properties"
    config.write_text("node.id=1\n")
    options = "".join(re.findall(r'^Environment=OTTLA_OPTIONS="(.*)"$', text, re.MULTILINE))
    for command in re.findall(rf"^Exec\w+={PROGRAM} (.*)$", text, re.MULTILINE):
        filled = command.replace("$OTTLA_OPTIONS", options).replace("${STATE_DIRECTORY}", str(tmp_path))
        check_command(filled.replace("/etc/ottla/server.properties", str(config)).split())


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_systemd_accepts_the_units(unit: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")
    installed = tmp_path / unit.name
    text = unit.read_text()
    assert text.count(PROGRAM) >= 1
    installed.write_text(text.replace(PROGRAM, "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", str(installed)], capture_output=True, text=True, check=False)
    assert (done.returncode, unit.name in done.stderr) == (0, False), done.stderr


def test_the_image_and_the_compose_file_run_commands_that_exist() -> None:
    image = (PACKAGING / "Containerfile").read_text()
    assert json.loads(re.findall(r"^ENTRYPOINT (.*)$", image, re.MULTILINE)[0]) == ["ottla"]
    check_command(json.loads(re.findall(r"^CMD (.*)$", image, re.MULTILINE)[0]))
    for source in re.findall(r"^COPY (.*) \S+$", image, re.MULTILINE)[0].split():
        assert (ROOT / source).exists()
    service = yaml.safe_load((PACKAGING / "compose.yml").read_text())["services"]["ottla"]
    assert (PACKAGING / service["build"]["context"] / service["build"]["dockerfile"]).exists()
    check_command(service["command"])
    kind, program, *words = service["healthcheck"]["test"]
    assert (kind, program) == ("CMD", "ottla")
    check_command(words)
    exposed = set(re.findall(r"^EXPOSE (.*)$", image, re.MULTILINE)[0].split())
    assert exposed == {"9092", "9093", "9094", "9095"}
