"""The tutorials of docs/pipeline.md and docs/topic-to-table.md, followed literally: their files are written, their
commands are run, what they print is compared. Only the address of the broker is another one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.server.embedded import EmbeddedBroker

pytestmark = [pytest.mark.spark, pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "pipeline.md").read_text()
BLOCK = re.compile(r"(?:`([\w.]+)`[^`]*\n\n)?^```(console|python|json)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""A block of commands, or of a file whose name is the last one in the paragraph before."""
TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:]+Z")
PLACE = re.compile(r"^\d(?=:\d)|(?<=orders-)\d(?=@\d)", re.MULTILINE)
TUTORIALS = {
    "pipeline": PAGE[: PAGE.index("\n## Steps")],
    "topic-to-table": (ROOT / "docs" / "topic-to-table.md").read_text(),
}


def commands(block: str) -> Iterator[tuple[str, str]]:
    """Each command and what it prints."""
    for part in block.split("$ ")[1:]:
        command, _, printed = part.partition("\n")
        yield command, printed


def comparable(printed: str) -> str:
    """Without times, and without the partition that the producer chose."""
    return PLACE.sub("", TIME.sub("", printed))


@pytest.mark.parametrize("page", list(TUTORIALS))
def test_the_tutorial(page: str, tmp_path: Path) -> None:
    blocks = BLOCK.findall(TUTORIALS[page])
    assert [language for _, language, _ in blocks].count("console") >= 5
    ran = 0
    with EmbeddedBroker() as broker:
        environment = {**os.environ, "OTTLA_BROKERS": broker.bootstrap, "OTTLA_CONFIG_DIR": str(tmp_path)}
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        python = f'"{sys.executable}" -W ignore'
        shell = f'ottla() {{ {python} -m ottla "$@"; }}\npython() {{ {python} "$@"; }}\nset -o pipefail\n'
        for name, language, text in blocks:
            if language != "console":
                (tmp_path / name).write_text(text.replace("localhost:9092", broker.bootstrap))
                continue
            for command, printed in commands(text):
                done = subprocess.run(
                    ["bash", "-c", shell + command],
                    cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False,
                )  # fmt: skip
                assert (done.returncode, comparable(done.stdout)) == (0, comparable(printed)), command + done.stderr
                ran += 1
    assert ran >= 10


def test_the_other_examples_of_the_page_are_steps(tmp_path: Path) -> None:
    """They are added to the tutorial's pipeline, not run."""
    from ottla.pipeline import Pipeline

    (tmp_path / "shop.py").write_text(
        "\n".join(text for _, language, text in BLOCK.findall(PAGE) if language == "python")
    )
    scope: dict[str, object] = {"__file__": str(tmp_path / "shop.py"), "__name__": "shop"}
    exec(compile((tmp_path / "shop.py").read_text(), "shop.py", "exec"), scope)
    shop = scope["shop"]
    assert isinstance(shop, Pipeline)
    assert [(step.name, step.dead_topics) for step in shop.steps] == [
        ("price", ("orders.shop.dead",)), ("large", ("priced.odd",)),
    ]  # fmt: skip
