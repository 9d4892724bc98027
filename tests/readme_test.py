"""The README, followed literally: its code blocks, in order, on a clean checkout with an empty home."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OURS = ("OTTLA", "KAFKA", "PYTEST", "SPARK")
"""Beginnings of the names of variables that the tests, or a Spark of the reader, have set."""
SECONDS = 1_500
"""Three installations and a start of Spark, on a machine with other things to do."""


def blocks() -> list[tuple[str, str]]:
    return BLOCK.findall((ROOT / "README.md").read_text())


def as_script(directory: Path) -> str:
    """One shell runs all blocks, as a reader's terminal would; a python block is a file that `python` runs."""
    lines = ["set -euo pipefail"]
    for number, (language, text) in enumerate(blocks()):
        file = directory / f"block{number}.py"
        if language == "python":
            file.write_text(text)
        command = text if language == "bash" else f"python {file}\n"
        lines.append(f"echo '--- block {number}'\n{command}")
    return "\n".join(lines)


def environment_of_a_newcomer(home: Path) -> dict[str, str]:
    """An empty home and nothing of this project on the path. Only pip's cache of downloads is kept."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(OURS)}
    for name in ("VIRTUAL_ENV", "PYTHONPATH", "JAVA_HOME"):
        environment.pop(name, None)
    environment["HOME"] = str(home)
    environment["PATH"] = os.pathsep.join(each for each in environment["PATH"].split(os.pathsep) if ".venv" not in each)
    cache = subprocess.run([sys.executable, "-m", "pip", "cache", "dir"], capture_output=True, text=True, check=False)
    if cache.returncode == 0:
        environment["PIP_CACHE_DIR"] = cache.stdout.strip()
    return environment


def run(script: str, directory: Path, environment: dict[str, str]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr. If a block fails, its broker is killed with its whole session."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    shell = subprocess.Popen(
        ["bash", "-c", f"trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{script}"],
        cwd=directory, env=environment, text=True, start_new_session=True, **pipes,
    )  # fmt: skip
    try:
        said, complaints = shell.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(shell.pid, signal.SIGKILL)
        said, complaints = shell.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
    return shell.returncode, said, complaints


def port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.interop
@pytest.mark.timeout(SECONDS + 60)
def test_the_first_five_minutes(tmp_path: Path) -> None:
    assert port_is_free(9092), "the README's broker takes Kafka's port 9092, and something else listens there: stop it"
    clone, home = tmp_path / "ottla", tmp_path / "home"
    home.mkdir()
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    code, said, complaints = run(as_script(tmp_path), clone, environment_of_a_newcomer(home))
    assert code == 0, said + complaints
    _, start, use, client, _, spark, dump, three, killed = re.split(r"^--- block \d+\n", said, flags=re.MULTILINE)[1:]
    assert "ready bootstrap=127.0.0.1:9092" in start
    assert use.count('"key":') == 3
    assert use.count("orders") == 5, "created, three records, described"
    assert "['cake', 'coffee', 'tea']" in client
    assert sorted(re.findall(r"\| *(\w+)\| *(\w+)\|", spark)) == [
        ("anna", "cake"), ("anna", "tea"), ("bert", "coffee"), ("key", "value"),
    ]  # fmt: skip
    assert sorted(re.findall(r"payload: (\w+)", dump)) == ["cake", "coffee", "tea"]
    assert "ready bootstrap=127.0.0.1:9192 brokers=1,2,3" in three
    assert sorted(line for line in killed.splitlines() if line in ("one", "two", "three")) == ["one", "three", "two"]
    assert re.search(r"^Topics: +1 ", killed, flags=re.MULTILINE), "the remaining brokers describe the cluster"
    assert "Traceback" not in complaints
    assert not (clone / "ready").exists(), "the broker stopped in good order"
    assert port_is_free(9092)
