"""A reserve of room in a log directory, which clients' records do not get (ottla.log.dir.reserve.bytes).

Zone: deterministic. A disk that is full to the last byte takes no checkpoint, no committed offset, no end of a
transaction; so clients are told earlier that there is no space, and what is left serves to go on, to delete, to stop.
How much is free is looked at from time to time: the more often the less there is.
"""

from __future__ import annotations

import logging
from typing import Final

from ottla.seams import Failure
from ottla.storage.log_dir_context import LogDirContext

SHORT_LOOK_MS: Final = 250
"""How often it is looked while there is too little."""
SELDOM_MS: Final = 5000
BYTES_PER_MS: Final = 1_000_000
"""What clients write at most, as far as the time of the next look is concerned."""
_logger = logging.getLogger(__name__)


class DiskReserve:
    """The room of one log directory."""

    __slots__ = ("_home",)

    def __init__(self, home: LogDirContext) -> None:
        self._home = home

    def check_free_space(self, reserve: int) -> int:
        """See how much is free; `home.short` says whether it is too little. Returns when to look again, in ms."""
        home = self._home
        if home.offline is not None:
            return SELDOM_MS
        try:
            free = home.disk.free_bytes()
        except Failure:
            return SELDOM_MS  # whoever writes will see what is wrong
        # Not at once when a byte is free again: what frees a little would be used up before it frees much.
        short = free < (reserve + reserve // 8 if home.short else reserve)
        if short != home.short:
            home.short = short
            if short:
                _logger.error("%s has %d bytes left, %d are kept: clients' records are refused", home.disk.name, free,
                              reserve)  # fmt: skip
            else:
                _logger.info("%s has room again: %d bytes are free", home.disk.name, free)
            home.rearm()
        return SHORT_LOOK_MS if short else min(SELDOM_MS, max(1, (free - reserve) // BYTES_PER_MS))
