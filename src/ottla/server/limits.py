"""Limits of the operating system for this process.

Zone: real.
"""

from __future__ import annotations

import logging
import resource
from typing import Final

log = logging.getLogger(__name__)

ENOUGH: Final = 1_048_576
"""Descriptors beyond this are of no use to one broker; some systems get slow when the limit is higher."""


def raise_descriptor_limit() -> int:
    """Raise the number of open files (`ulimit -n`) as far as it goes; returns the number in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return ENOUGH if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        log.warning("ulimit -n stays at %d: %s", soft, error)
        return soft
    return wanted
