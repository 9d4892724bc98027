"""The tutorial of docs/retry.md, followed literally.

Zone: real.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from testbench.ottla_node import OttlaNode

pytestmark = pytest.mark.slow
PAGE = Path(__file__).resolve().parents[2] / "docs" / "retry.md"
EXAMPLE = re.compile(r"^```(python|console)\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)


def ran(bootstrap: str, words: list[str]) -> str:
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=300, check=False, env={**os.environ, "OTTLA_BROKERS": bootstrap}
    )
    assert done.returncode == 0, (words, done.stderr)
    return done.stdout


def test_the_tutorial_of_the_page(tmp_path: Path) -> None:
    found = EXAMPLE.findall(PAGE.read_text())
    assert [kind for kind, *_ in found] == ["python", "python", "console", "console"]
    said: dict[str, str] = {}
    with OttlaNode(tmp_path / "broker", {"group.initial.rebalance.delay.ms": "0"}) as node:
        for kind, text, output in found:
            if kind == "python":
                program = text.replace("localhost:9092", node.bootstrap)
                assert ran(node.bootstrap, [sys.executable, "-W", "error", "-c", program]) == output
            else:
                for line in text.splitlines():
                    words = shlex.split(line.removeprefix("$ ottla "))
                    said[line] = ran(node.bootstrap, [sys.executable, "-m", "ottla", *words])
        consumer = found[1][1].replace("localhost:9092", node.bootstrap)
        again = ran(node.bootstrap, [sys.executable, "-W", "error", "-c", consumer])
        made = ran(node.bootstrap, [sys.executable, "-m", "ottla", "consume", "made", "--from-beginning", "-e",
                                    "--isolation", "read_committed"])  # fmt: skip
    assert sorted(made.split()) == ["COFFEE", "TEA"]
    assert again == "b'rubbish' Dead(topic='orders.dead', why='not an error to retry')\n", "it was sent back, in vain"
    run, listed, shown, dry, sent = said.values()
    assert json.loads(run.splitlines()[-1])["returned"] == 1
    assert listed.splitlines()[1].split()[:4] == ["orders.dead", "builtins.KeyError", "orders", "1"]
    assert "rubbish" in shown
    assert dry.splitlines()[1].split() == sent.splitlines()[1].split() == ["orders", "1"]
