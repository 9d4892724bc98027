"""Names of topics and groups that a regular expression of a tool's option selects.

Zone: pure. As in Kafka, commas separate alternatives, and quotes around the expression are dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ottla.kafka_tools.options import ToolError


def matching_names(expression: str, names: Iterable[str]) -> list[str]:
    """The names that the expression matches as a whole. Raises ToolError for one that is not valid."""
    text = expression.strip().strip("\"'").replace(",", "|").replace(" ", "")
    try:
        pattern = re.compile(text)
    except (re.error, OverflowError, RecursionError):
        raise ToolError(f"{expression} is an invalid regex.", "java.lang.RuntimeException") from None
    return [name for name in names if pattern.fullmatch(name)]
