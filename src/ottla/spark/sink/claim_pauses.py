"""How long attempts that claim one transactional id wait: those that fence each other pause, and the transaction of
one that has died is aborted soon, since others wait for it.

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
_TIMEOUT_MS: Final = 10_000


def claim_timeout_ms(timeout_ms: int) -> int:
    """The timeout of the transaction of a claim. timeout_ms: that of the transactions of rows.

    A claim is one request and a commit: a longer timeout would only hold up the next run of a query whose driver died
    between the two. An attempt that takes longer finds that it is fenced, and tries again.
    """
    return min(timeout_ms, _TIMEOUT_MS)


def pause_after(attempt: int) -> None:
    """Wait after attempt number `attempt` (from 0) was fenced."""
    time.sleep(random.random() * longest_pause_s(attempt))


def longest_pause_s(attempt: int) -> float:
    """The pause is drawn from 0 to this. It doubles: attempts leave each other the time of a claim only when pauses are
    longer than a claim takes, which is not known before."""
    return float(min(_MOST_S, _FIRST_S * 2.0 ** min(attempt, 30)))
