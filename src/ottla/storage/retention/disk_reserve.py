"""A reserve of space in a log directory that clients' records may not use (ottla.log.dir.reserve.bytes).

Zone: deterministic. On a disk that is full to the last byte, no checkpoint, no committed offset and no end of a
transaction can be written; so clients' records are refused earlier, and the reserve is left to continue, delete, or
stop. Free space is checked periodically, and more often when there is less.
"""

from __future__ import annotations

import logging
from typing import Final

from ottla.seams import Failure
from ottla.storage.log_dir_context import LogDirContext

SHORT_LOOK_MS: Final = 250
"""The interval of checks while there is too little space."""
SELDOM_MS: Final = 5000
BYTES_PER_MS: Final = 1_000_000
"""The most that clients write, as an assumption for the time of the next check."""
_logger = logging.getLogger(__name__)


class DiskReserve:
    """The reserve of one log directory."""

    __slots__ = ("_home",)

    def __init__(self, home: LogDirContext) -> None:
        self._home = home

    def check_free_space(self, reserve: int) -> int:
        """Check the free space and set `home.is_short` if it is too little. Returns the ms until the next check."""
        home = self._home
        if home.offline is not None:
            return SELDOM_MS
        try:
            free = home.disk.free_bytes()
        except Failure:
            return SELDOM_MS  # the next write reports the failure
        # Writes resume only with an eighth more than the reserve: a little free space would be used up at once.
        short = free < (reserve + reserve // 8 if home.is_short else reserve)
        if short != home.is_short:
            if short:
                text = "log directory %s has %d bytes free, below its reserve of %d: refusing clients' records"
                _logger.error(text, home.disk.name, free, reserve)
            else:
                text = "log directory %s has %d bytes free again: taking clients' records"
                _logger.info(text, home.disk.name, free)
            home.set_short(short)
        return SHORT_LOOK_MS if short else min(SELDOM_MS, max(1, (free - reserve) // BYTES_PER_MS))
