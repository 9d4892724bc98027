"""Limits of the operating system for this process.

Zone: real.
"""

from __future__ import annotations

import logging
import resource
from typing import Final

log = logging.getLogger(__name__)

ENOUGH: Final = 1_048_576
"""One broker does not use more descriptors than this; some systems become slow when the limit is higher."""


def raise_descriptor_limit() -> int:
    """Raise the limit of open files (`ulimit -n`) as far as the system allows; returns the limit in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return ENOUGH if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        log.warning("cannot raise `ulimit -n`, it stays at %d: %s", soft, error)
        return soft
    return wanted
