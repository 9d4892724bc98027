"""Names that are unique to a test, for brokers that several tests share.

Zone: real.
"""

from __future__ import annotations

import re

import pytest


def own_name(request: pytest.FixtureRequest, limit: int = 120) -> str:
    """The test's name as a topic, a group or a table of its own, legal for Kafka."""
    words, _, case = request.node.name.removeprefix("test_").partition("[")
    return re.sub(r"[^a-zA-Z0-9.]+", "-", f"{words[: limit // 2]}-{case}"[:limit]).strip("-.")
