"""The room's broker by hand.

Zone: real.
"""

from __future__ import annotations

import pytest
from tests.handnode import Node


@pytest.fixture
def node() -> Node:
    """A broker with the topic `t`."""
    made = Node()
    made.create("t")
    return made
