"""What a start finds in the directory of a log beside its segments.

Zone: deterministic. A file that is damaged counts as missing: what it has is computed from the log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from ottla.storage.checkpoints import CorruptCheckpoint, parse_checksums, parse_epochs, parse_partition_metadata
from ottla.storage.indexes.leader_epochs import EpochEntry
from ottla.storage.indexes.txn_index import IndexChecksum
from ottla.storage.layout import (
    INCOMPLETE,
    LEADER_EPOCHS,
    LOG,
    PARTITION_METADATA,
    TXN_INDEX,
    TXN_SUMS,
    parse_file_name,
)
from ottla.storage.log_dir_context import LogDirContext
from ottla.storage.log_loss import IncompleteLog, format_loss, parse_loss
from ottla.storage.recovery.interrupted_operations import finish_interrupted
from ottla.storage.segments.scan import read_file
from ottla.types import ZERO_UUID

T = TypeVar("T")
_logger = logging.getLogger(__name__)


class StoredFiles:
    """The small files of one log, as they were found."""

    def __init__(self, home: LogDirContext, directory: str, is_new: bool) -> None:
        """Finishes operations on segments that a stop has interrupted. Raises Failure."""
        self._home = home
        self._directory = directory
        self.names = [] if is_new else finish_interrupted(home, directory)
        """Names of all files in the directory."""
        self.epochs: list[EpochEntry] = self._read_file(LEADER_EPOCHS, parse_epochs, [])
        self.txn_sums: dict[str, IndexChecksum] = self._read_file(TXN_SUMS, parse_checksums, {})
        self.loss: IncompleteLog | None = self._read_file(INCOMPLETE, parse_loss, None)
        """The mark of a log that has lost records, this time (`note_loss`) or before."""

    def _read_file(self, name: str, parse: Callable[[bytes], T], without: T) -> T:
        """The content of a file; `without` for one that is missing or cannot be parsed."""
        if name not in self.names:
            return without
        try:
            return parse(read_file(self._home.disk, f"{self._directory}/{name}"))
        except CorruptCheckpoint as error:
            _logger.warning("ignoring %s/%s, which is damaged: %s", self._directory, name, error)
            return without

    def read_topic_id(self) -> bytes:
        """The topic id in `partition.metadata`; zeros without one. Raises Failure."""
        return self._read_file(PARTITION_METADATA, parse_partition_metadata, ZERO_UUID)

    def segment_bases(self) -> list[int]:
        """The base offsets of the segments, in order."""
        return sorted(file.base_offset for name in self.names if (file := parse_file_name(name)) and file.kind == LOG)

    @property
    def has_aborted(self) -> bool:
        """Whether a segment has a transaction index, so that it has aborted transactions."""
        return any(name.endswith(TXN_INDEX) for name in self.names)

    def note_loss(self, lack: IncompleteLog) -> None:
        """Record durably, before anything else changes, that durable or committed records are lost. Raises Failure."""
        # The worse loss is kept: END lets a log continue where it ends, WITHIN has it fetched again.
        if self.loss is None or lack > self.loss:
            self.loss = lack
            self._home.disk.replace_now(f"{self._directory}/{INCOMPLETE}", format_loss(lack))
