"""Running the command line: in this process, and as a process of its own.

Zone: real.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping

import pytest
from click.testing import CliRunner, Result
from testbench.retention import NO_RETENTION

from ottla.cli.main import cli
from ottla.server.embedded import EmbeddedBroker

Ottla = Callable[..., Result]


@pytest.fixture(scope="session")
def brokers() -> Iterator[str]:
    """The address of a broker."""
    config = {**NO_RETENTION, "num.partitions": "3", "group.initial.rebalance.delay.ms": "0"}
    with EmbeddedBroker(config=config) as broker:
        yield broker.bootstrap


@pytest.fixture(scope="session", autouse=True)
def no_contexts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing of the user who runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTTLA_CONFIG_DIR", str(tmp_path_factory.mktemp("config")))
        yield


@pytest.fixture
def ottla(brokers: str) -> Ottla:
    """Runs `ottla WORDS…` with input; `exit_code`, `stdout` and `stderr` come back."""

    def run(*words: str, stdin: bytes | str = b"", env: Mapping[str, str] | None = None) -> Result:
        return CliRunner().invoke(cli, list(words), input=stdin, env={"OTTLA_BROKERS": brokers, **(env or {})})

    return run


@pytest.fixture
def process(brokers: str) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts `ottla WORDS…` as a process, with pipes."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "ottla", *words]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started.append(subprocess.Popen(command, env={**os.environ, "OTTLA_BROKERS": brokers}, **pipes))
        return started[-1]

    yield start
    for child in started:
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout, child.stderr):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # what was not read yet
                pipe.close()


@pytest.fixture(autouse=True)
def _level() -> Iterator[None]:
    """The level of the log as it was: `ottla server` sets it for its process, here that of all tests."""
    logger = logging.getLogger("ottla")
    level = logger.level
    yield
    logger.setLevel(level)
