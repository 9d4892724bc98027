"""Maintenance of a Delta table, by delta-rs: the offsets are application transactions, which compaction keeps.

Zone: real.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import ceil
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from ottla.tables.errors import CommitConflict, TableError
from ottla.tables.maintenance.plan import ATTEMPTS, MAX_FILES, MaintenanceOptions, MaintenanceReport, plan_groups

_TRANSACTION_RETENTION: Final = "delta.setTransactionRetentionDuration"
_HOUR_S: Final = 3600


class DeltaMaintainer:
    """A table by its path or URI, which must be there."""

    def __init__(self, uri: str, properties: Mapping[str, str]) -> None:
        """properties: of the object store, as delta-rs documents them. Raises TableError."""
        self.name = f"Delta table {uri}"
        with self._table_errors():
            self._table = DeltaTable(uri, storage_options=dict(properties))
        kept = self._table.metadata().configuration.get(_TRANSACTION_RETENTION)
        if kept is not None:
            raise TableError(
                f"{self.name}: {_TRANSACTION_RETENTION} is {kept}: a checkpoint then drops the offsets of partitions "
                "without new records for this long, and the topic would be copied again",
                f"Remove the property: ALTER TABLE … UNSET TBLPROPERTIES ('{_TRANSACTION_RETENTION}')",
            )

    def maintain_table(
        self, options: MaintenanceOptions, on_compacted: Callable[[int, int], object]
    ) -> MaintenanceReport:
        """Compact and vacuum. Raises TableError."""
        report = MaintenanceReport()
        with self._table_errors():
            self._compact_files(options, report)
            on_compacted(0, report.bytes_written)
            age_s = options.older_than_s
            hours = None if age_s is None else ceil(age_s / _HOUR_S)
            files = self._table.vacuum(retention_hours=hours, dry_run=options.is_dry_run, full=True)
        report.files_deleted = len(files)
        return report

    def _compact_files(self, options: MaintenanceOptions, report: MaintenanceReport) -> None:
        if options.is_dry_run:
            self._plan_compaction(options, report)
            return
        for _ in range(ATTEMPTS):
            try:
                # An append that came first is no conflict: delta-rs repeats the commit on top of it.
                # One task, so that memory has the rows of one group of files; they are read in batches.
                found = self._table.optimize.compact(
                    target_size=options.target_bytes,
                    max_concurrent_tasks=1,
                    min_commit_interval=max(1, ceil(options.commit_s)),
                )
                _count_compacted(found, report)
                return
            except CommitFailedError:
                self._table.update_incremental()
        raise CommitConflict(
            f"{self.name}: {ATTEMPTS} commits of compacted files lost against those of other writers",
            "Start again when fewer programs write the table",
        )

    def _plan_compaction(self, options: MaintenanceOptions, report: MaintenanceReport) -> None:
        found = pa.table(self._table.get_add_actions())
        if found.num_rows > MAX_FILES:
            raise TableError(f"{self.name} has more than {MAX_FILES} files", "Maintain it with a program for clusters")
        by_folder: dict[str, list[int]] = {}
        for path, size in zip(found["path"].to_pylist(), found["size_bytes"].to_pylist(), strict=True):
            by_folder.setdefault(path.rpartition("/")[0], []).append(size)
        for sizes in by_folder.values():
            for group in plan_groups(sizes, int, options.target_bytes):
                report.files_compacted += len(group)
                report.files_written += 1
                report.bytes_compacted += sum(group)

    @contextmanager
    def _table_errors(self) -> Iterator[None]:
        try:
            yield
        except TableNotFoundError as error:
            raise TableError(f"{self.name} is not there: {error}", "Check its path and --property") from error
        except DeltaError as error:
            raise TableError(f"{self.name}: {error}", "Check the location, --older-than and --property") from error


def _count_compacted(found: Mapping[str, Any], report: MaintenanceReport) -> None:
    report.commits += 1 if found["numFilesAdded"] else 0
    report.files_written += found["numFilesAdded"]
    report.files_compacted += found["numFilesRemoved"]
    report.bytes_written += json.loads(found["filesAdded"])["totalSize"]
    report.bytes_compacted += json.loads(found["filesRemoved"])["totalSize"]
