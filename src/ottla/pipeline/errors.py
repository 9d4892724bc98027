"""Errors of pipelines, and the check of their names.

Zone: pure. The texts of errors of the source, the sink and the client are in StepFailed.
"""

from __future__ import annotations

import re
from typing import Final

_PIPELINE_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,100}")


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


def fault_of_pipeline_name(name: str) -> str:
    """Why a text cannot be the name of a pipeline; "" if it can."""
    # The name is also that of the checkpoint's directory in a service.
    if _PIPELINE_NAME.fullmatch(name) and name not in (".", ".."):
        return ""
    return f"the pipeline's name {name[:120]!r} must be 1 to 100 letters, digits, '.', '_' and '-'"
