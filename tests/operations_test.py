"""docs/operations.md: its tested blocks, in order, in one shell; docs/troubleshooting.md: messages as they are."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from testbench.ports import free_port

from ottla.cli.main import cli
from ottla.server.embedded import EmbeddedBroker

DOCS = Path(__file__).resolve().parent.parent / "docs"
BLOCK = re.compile(r"^```bash\n# tested\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SECONDS = 240


def session(directory: Path) -> str:
    """All tested blocks, with places and ports of this test."""
    port, pages = free_port(), free_port()
    text = "\n".join(
        f"echo '--- block {number}'\n{block}"
        for number, block in enumerate(BLOCK.findall((DOCS / "operations.md").read_text()))
    )
    for written, used in {
        "/var/lib/": f"{directory}/lib/",
        "/backup/": f"{directory}/backup/",
        "ottla up --brokers": f"ottla up --port {port} --brokers",
        "127.0.0.1:9200": f"127.0.0.1:{pages}",
        "127.0.0.1:9201": f"127.0.0.1:{pages + 1}",
    }.items():
        text = text.replace(written, used)
    program = f'ottla() {{ "{sys.executable}" -m ottla "$@"; }}\nexport OTTLA_BROKERS=127.0.0.1:{port}'
    return f"set -euo pipefail\nmkdir -p {directory}/lib {directory}/backup\n{program}\n{text}"


@pytest.mark.slow
def test_the_session_of_operations(tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    shell = subprocess.Popen(
        ["bash", "-c", session(tmp_path)], cwd=tmp_path, text=True, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        out, errors = shell.communicate(timeout=SECONDS)
    finally:
        os.killpg(shell.pid, signal.SIGKILL)
    logs = "".join(path.read_text() for path in tmp_path.glob("*.log"))
    assert shell.returncode == 0, out + errors + logs
    run, made, watched, rolled, saved, restored = re.split(r"^--- block \d+\n", out, flags=re.MULTILINE)[1:]
    assert '"status": "ready"' in run
    assert "done: + topic orders: partitions=3" in made
    assert sorted(made.split()[-3:]) == ["cake", "coffee", "tea"]
    assert "kafka_server_replicamanager_underreplicatedpartitions 0" in watched
    assert "rolled" in rolled
    assert "all well" in saved
    assert sorted(restored.split()[:3]) == ["cake", "coffee", "tea"]
    assert "nothing to do" in errors
    assert "Traceback" not in errors + logs


# -- troubleshooting -------------------------------------------------------------------------------------------------

PAGE = re.sub(r"\s+", " ", (DOCS / "troubleshooting.md").read_text())
PLACEHOLDERS = (
    (r"127\.0\.0\.1:\d+", "127.0.0.1:9092"),
    (r"/\S*/data\b", "/var/lib/ottla"),
    (r"process \d+", "process 1234"),
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address and the directory of a broker with a topic."""
    data = tmp_path_factory.mktemp("trouble") / "data"
    with EmbeddedBroker(data, config={"auto.create.topics.enable": "false"}) as running:
        settings = ["-p", "1", "-c", "max.message.bytes=100"]
        made = CliRunner().invoke(cli, ["topic", "create", "orders", *settings, "-b", running.bootstrap])
        assert made.exit_code == 0, made.stderr
        yield running.bootstrap, data


@pytest.mark.parametrize(
    ("words", "stdin"),
    [
        (["topic", "list", "-X", "security.protocol=SSL"], ""),
        (["topic", "list", "-X", "security.protocol=SASL_PLAINTEXT", "-X", "sasl.mechanism=PLAIN",
          "-X", "sasl.username=ann", "-X", "sasl.password=x"], ""),
        (["topic", "describe", "nope"], ""),
        (["topic", "create", "wide", "-r", "3"], ""),
        (["topic", "create", "orders"], ""),
        (["topic", "create", "a b"], ""),
        (["topic", "alter", "orders", "-c", "retention.mss=1"], ""),
        (["topic", "alter", "orders", "-c", "retention.ms=soon"], ""),
        (["produce", "orders"], "a" * 1000),
        (["group", "describe", "nope"], ""),
        (["acl", "list"], ""),
        (["topic", "list", "-X", "bootstrap.server=x"], ""),
        (["topci"], ""),
    ],
    ids=lambda value: "-".join(value)[:40] if isinstance(value, list) else "",
)  # fmt: skip
def test_messages_on_the_page_are_those_of_the_tools(broker, words: list[str], stdin: str) -> None:
    address, data = broker
    result = CliRunner().invoke(cli, [*words, "--timeout", "5"], input=stdin, env={"OTTLA_BROKERS": address})
    assert result.exit_code != 0
    message = result.stderr.strip().splitlines()[-1].replace(str(data), "/var/lib/ottla")
    for pattern, text in PLACEHOLDERS:
        message = re.sub(pattern, text, message)
    message = re.sub(r"^(?:ottla|Error): (?:line 1 of the input was not written: )?", "", message).rstrip(".")
    assert message.partition(". 0 lines")[0] in PAGE


def test_a_directory_in_use_and_a_taken_port_are_on_the_page(broker) -> None:
    from ottla.seams import Failure

    address, data = broker
    for settings, directory in (({}, data), ({"listeners": f"PLAINTEXT://{address}"}, None)):
        with pytest.raises(Failure) as caught:
            EmbeddedBroker(directory, config=settings).start()
        message = str(caught.value).partition(": ")[2].replace(str(data), "/var/lib/ottla")
        for pattern, text in PLACEHOLDERS:
            message = re.sub(pattern, text, message)
        assert message in PAGE
