"""The tutorial of docs/pipeline.md, followed literally: its file is written, its commands are run, what they print is
compared. Only the address of the broker is another one."""

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
BLOCK = re.compile(r"^```(console|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TUTORIAL = PAGE[: PAGE.index("\n## Steps")]


def commands(block: str) -> Iterator[tuple[str, str]]:
    """Each command and what it prints."""
    for part in block.split("$ ")[1:]:
        command, _, printed = part.partition("\n")
        yield command, printed


def test_the_tutorial(tmp_path: Path) -> None:
    blocks = BLOCK.findall(TUTORIAL)
    assert [language for language, _ in blocks].count("console") >= 5
    ran = 0
    with EmbeddedBroker() as broker:
        environment = {**os.environ, "OTTLA_BROKERS": broker.bootstrap, "OTTLA_CONFIG_DIR": str(tmp_path)}
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        shell = f'ottla() {{ "{sys.executable}" -W ignore -m ottla "$@"; }}\nset -o pipefail\n'
        for language, text in blocks:
            if language == "python":
                (tmp_path / "shop.py").write_text(text.replace("localhost:9092", broker.bootstrap))
                continue
            for command, printed in commands(text):
                done = subprocess.run(
                    ["bash", "-c", shell + command],
                    cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False,
                )  # fmt: skip
                assert (done.returncode, done.stdout) == (0, printed), command + done.stderr
                ran += 1
    assert ran >= 10


def test_the_other_examples_of_the_page_are_steps(tmp_path: Path) -> None:
    """They are added to the tutorial's pipeline, not run."""
    from ottla.pipeline import Pipeline

    (tmp_path / "shop.py").write_text("\n".join(text for language, text in BLOCK.findall(PAGE) if language == "python"))
    scope: dict[str, object] = {"__file__": str(tmp_path / "shop.py"), "__name__": "shop"}
    exec(compile((tmp_path / "shop.py").read_text(), "shop.py", "exec"), scope)
    shop = scope["shop"]
    assert isinstance(shop, Pipeline)
    assert [(step.name, step.dead_topics) for step in shop.steps] == [
        ("price", ("orders.shop.dead",)), ("large", ("priced.odd",)),
    ]  # fmt: skip
