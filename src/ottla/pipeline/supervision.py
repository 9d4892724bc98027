"""When a pipeline of a service is started again, and when it is given up.

Zone: pure. `service` runs the pipelines; the time and the random number come in as arguments.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final

from ottla.client.backoff import backoff_ms
from ottla.pipeline.errors import BadPipeline, StepFailed

FIRST_S: Final = 1.0
LONGEST_S: Final = 300.0
MAX_RESTARTS: Final = 20
"""Restarts without a finished batch between them, after which a pipeline is given up: more than an hour."""
ALARMING: Final = 3
"""Failures in a row that turn the health red: fewer are a broker that restarts."""
_REASON_CHARS: Final = 2_000
_PERMANENT: Final = re.compile(
    r"(BadOption|BadCheckpoint|ChangedUnit|DataLoss|MarkersGone|OtherCheckpoint|SharedGroup|AnalysisException|"
    r"ColumnConflictError|OffsetsLostError)\b"
)
"""Errors of source, sink and tables that a restart cannot mend: the pipeline or its topics have to be changed."""


class State(Enum):
    """The state of a pipeline in a service."""

    STARTING = "starting"
    RUNNING = "running"
    WAITING = "waiting"
    """It has failed, and is started again when its back-off is over."""
    FAILED = "failed"
    """It is not started again."""
    STOPPED = "stopped"
    PAUSED = "paused"
    """Its definition in the cluster has it paused."""


def is_permanent(error: BaseException) -> bool:
    """Whether another start would fail in the same way."""
    if isinstance(error, StepFailed):
        return _PERMANENT.match(error.reason) is not None
    return isinstance(error, BadPipeline)


class Supervision:
    """The state of one pipeline, and the decision after each failure."""

    def __init__(self, max_restarts: int = MAX_RESTARTS) -> None:
        """max_restarts: without a finished batch between them."""
        self.state = State.STARTING
        self.restarts = 0
        """All of them."""
        self.failures = 0
        """In a row, without a finished batch between them."""
        self.reason: str | None = None
        """Of the last failure; None after a finished batch."""
        self._max_restarts = max_restarts

    @property
    def is_healthy(self) -> bool:
        """Whether it runs, or has failed so rarely that it is likely to run soon."""
        return self.state is not State.FAILED and self.failures < ALARMING

    def on_starting(self) -> None:
        """It is started, for the first time or again."""
        # Only a start after a failure is a restart; the first one comes from STARTING.
        self.restarts += self.state is State.WAITING
        self.state = State.STARTING

    def on_running(self) -> None:
        """All its steps were started. That is no success yet: a step may fail at its first record."""
        self.state = State.RUNNING

    def on_batch(self) -> None:
        """A step has finished a batch."""
        # A finished batch is the proof that the cause is gone. A query that merely runs may fail at its first record.
        self.failures = 0
        self.reason = None

    def on_stopped(self) -> None:
        """It has ended in order."""
        self.state = State.STOPPED

    def on_paused(self) -> None:
        """It is not to run."""
        self.state = State.PAUSED

    def on_refused(self, reason: str) -> None:
        """It cannot be started at all."""
        self.state, self.reason = State.FAILED, reason[:_REASON_CHARS]

    def on_failed(self, error: BaseException, draw: float) -> float | None:
        """It has failed. Seconds until the next start; None if it is given up. draw: a random number in [0, 1)."""
        self.reason = (str(error) or type(error).__name__)[:_REASON_CHARS]
        self.failures += 1
        # 1. Another start would fail in the same way, or has failed so often that a person has to look.
        if is_permanent(error) or self.failures > self._max_restarts:
            self.state = State.FAILED
            return None
        # 2. Later starts wait longer, each by another draw, so that pipelines of one cause do not start at one moment.
        self.state = State.WAITING
        return backoff_ms(FIRST_S * 1000, LONGEST_S * 1000, self.failures - 1, draw) / 1000
