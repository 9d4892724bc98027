"""The pauses of attempts that claim one transactional id at the same time, and so fence each other.

Zone: real.
"""

from __future__ import annotations

import random
import time
from typing import Final

TRIES: Final = 100
"""Maximum of attempts at one claim."""
_FIRST_S: Final = 0.02
_MOST_S: Final = 2.0
"""Several times what a claim takes on a busy cluster."""


def pause_after(attempt: int) -> None:
    """Wait after attempt number `attempt` (from 0) was fenced."""
    time.sleep(random.random() * longest_pause_s(attempt))


def longest_pause_s(attempt: int) -> float:
    """The pause is drawn from 0 to this. It doubles: attempts leave each other the time of a claim only when pauses are
    longer than a claim takes, which is not known before."""
    return float(min(_MOST_S, _FIRST_S * 2.0 ** min(attempt, 30)))
