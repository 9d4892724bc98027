"""Prints the records that pass the filters to stdout, up to a count.

Zone: real.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.cli.reading.filters import Filter
    from ottla.cli.views.record_text import Piece, Shown


class Printer:
    """Writes records in one form."""

    def __init__(
        self, most: int | None, chosen: Filter, render: Piece, decode: Callable[[Shown], Shown] | None = None
    ) -> None:
        """most: how many to write; None: no limit. decode: makes the record that is filtered and shown."""
        self._left = most
        self._chosen = chosen
        self._render = render
        self._decode = decode
        self.written = 0
        """How many records were written."""

    @property
    def is_full(self) -> bool:
        """Whether the wanted count is reached."""
        return self._left == 0

    def print_record(self, topic: str, partition: int, record: Shown) -> None:
        """Write the record, if it passes the filters."""
        from ottla.cli.views.record_text import Placed

        if self._decode is not None:
            record = self._decode(record)
        if self._chosen(record):
            sys.stdout.buffer.write(self._render(Placed(topic, partition, record)))
            self.written += 1
            self._left = None if self._left is None else self._left - 1

    def flush_output(self) -> None:
        """Write buffered records out."""
        sys.stdout.buffer.flush()
