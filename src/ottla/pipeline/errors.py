"""What a pipeline raises, for people.

Zone: pure. Errors of the source, the sink and the client pass through by their text in StepFailed.
"""

from __future__ import annotations


class BadPipeline(ValueError):
    """A pipeline or a step that cannot run as it is written; the text says what to change."""


class StepFailed(RuntimeError):
    """A step of a running pipeline stopped. What it had read and not written is read again at the next run."""

    def __init__(self, step: str, reason: str) -> None:
        super().__init__(f"step {step}: {reason}")
        self.step = step
        self.reason = reason

    def __reduce__(self) -> tuple[type[StepFailed], tuple[str, str]]:
        return StepFailed, (self.step, self.reason)


class Poison(ValueError):
    """Raised by a step's function: this record will never succeed; it goes to the dead letters without retries."""


class BadOutput(TypeError):
    """A step's function returned what is no record."""


class RecordTooLarge(ValueError):
    """A record that a step made is larger than topics take."""


class NullField(ValueError):
    """A record that a step made has null where the step says that there must be something."""
