"""Errors of pipelines.

Zone: pure. The texts of errors of the source, the sink and the client are in StepFailed.
"""

from __future__ import annotations


class BadPipeline(ValueError):
    """A pipeline or a step is invalid; the text has what to change."""


class StepFailed(RuntimeError):
    """A step of a running pipeline failed. Records that it has read but not written are read again in the next run."""

    def __init__(self, step: str, reason: str) -> None:
        super().__init__(f"step {step}: {reason}")
        self.step = step
        self.reason = reason

    def __reduce__(self) -> tuple[type[StepFailed], tuple[str, str]]:
        return StepFailed, (self.step, self.reason)


class Poison(ValueError):
    """Raised by a step's function for a record that can never succeed: it becomes a dead letter without retries."""


class BadOutput(TypeError):
    """A step's function returned a value that is not a record."""


class RecordTooLarge(ValueError):
    """A record that a step made is larger than its limit."""


class NullField(ValueError):
    """A record that a step made has a null key or value that the step requires."""
