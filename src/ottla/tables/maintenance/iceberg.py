"""Maintenance of an Iceberg table: each snapshot that it commits has the offsets of the one below.

Zone: real. So the offsets survive the expiry of all older snapshots.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Final

from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchNamespaceError,
    NoSuchTableError,
    RESTError,
)
from pyiceberg.table.snapshots import Operation, Summary, ancestors_of
from pyiceberg.table.update.snapshot import _OverwriteFiles
from pyiceberg.typedef import EMPTY_DICT
from sqlalchemy.exc import SQLAlchemyError

from ottla.tables.errors import CommitConflict, TableError
from ottla.tables.iceberg import (
    BATCH,
    MODE,
    OFFSETS,
    UPSERT,
    batches_of,
    has_upserts,
    summaries_of,
    without_retries,
)
from ottla.tables.maintenance.iceberg_files import live_entries, small_files
from ottla.tables.maintenance.iceberg_rewriting import Rewritten, delete_written, rewrite_group
from ottla.tables.maintenance.iceberg_unnamed import delete_unnamed
from ottla.tables.maintenance.plan import ATTEMPTS, DAY_S, MaintenanceOptions, MaintenanceReport, plan_groups

_OWN: Final = "ottla."
_MAX_AGE_MS: Final = "history.expire.max-snapshot-age-ms"
_LEAST_KEPT: Final = "history.expire.min-snapshots-to-keep"
_MAX_EXPIRED: Final = 2000
"""Snapshots per commit: the time that pyiceberg takes grows with their square."""


class IcebergMaintainer:
    """A table of a catalog, which must be there."""

    def __init__(self, identifier: str, catalog: str, properties: Mapping[str, str]) -> None:
        """properties: of the catalog, as pyiceberg documents them. Raises TableError."""
        self.name = f"Iceberg table {identifier}"
        with self._table_errors():
            self._table = load_catalog(catalog, **properties).load_table(identifier)

    def maintain_table(
        self, options: MaintenanceOptions, on_compacted: Callable[[int, int], object]
    ) -> MaintenanceReport:
        """Compact, expire and delete. Raises TableError, OSError."""
        report = MaintenanceReport()
        with self._table_errors():
            self._compact_files(options, report, on_compacted)
            self._expire_snapshots(options, report)
            report.files_deleted = delete_unnamed(self._table, self._age_s(options), is_dry_run=options.is_dry_run)
        return report

    def _age_s(self, options: MaintenanceOptions) -> float:
        if options.older_than_s is not None:
            return options.older_than_s
        return self._number_of(_MAX_AGE_MS, 5 * DAY_S * 1000) / 1000

    def _number_of(self, key: str, default: int) -> int:
        text = self._table.metadata.properties.get(key, str(default))
        if not text.isdecimal():
            raise TableError(f"{self.name}: {key} is not a number: {text[:50]!r}", "Correct the table's property")
        return int(text)

    def _compact_files(
        self, options: MaintenanceOptions, report: MaintenanceReport, on_compacted: Callable[[int, int], object]
    ) -> None:
        pending: list[Rewritten] = []
        due = time.monotonic() + options.commit_s
        try:
            for rewritten in self._rewrite_files(options, report):
                pending.append(rewritten)
                on_compacted(rewritten.new.record_count, rewritten.new.file_size_in_bytes)
                if time.monotonic() >= due:
                    self._commit_rewritten(pending, report)
                    due = time.monotonic() + options.commit_s
            self._commit_rewritten(pending, report)
        except BaseException:
            self._delete_uncommitted(pending)
            raise

    def _rewrite_files(self, options: MaintenanceOptions, report: MaintenanceReport) -> Iterator[Rewritten]:
        snapshot = self._table.current_snapshot()
        if snapshot is None:
            return
        for files in small_files(self._table, snapshot, options.target_bytes).values():
            for group in plan_groups(files, lambda each: each.file.file_size_in_bytes, options.target_bytes):
                if options.is_dry_run:
                    report.files_compacted += len(group)
                    report.files_written += 1
                    report.bytes_compacted += sum(each.file.file_size_in_bytes for each in group)
                else:
                    yield from rewrite_group(self._table, [each.file for each in group])

    def _commit_rewritten(self, pending: list[Rewritten], report: MaintenanceReport) -> None:
        """Replace the files in one snapshot on top of the newest; empties `pending`. Raises TableError."""
        # Not in `pending` from here on: if the outcome of a commit is unknown a snapshot may name the files, so that
        # they are not deleted after an error. If none does, a later maintenance deletes them.
        replaced = pending.copy()
        pending.clear()
        for _ in range(ATTEMPTS):
            self._drop_stale(replaced, report)
            if not replaced:
                return
            try:
                self._replace_files(replaced)
            except CommitFailedException:
                continue
            _count_rewritten(replaced, report)
            return
        raise CommitConflict(
            f"{self.name}: {ATTEMPTS} commits of compacted files lost against those of other writers",
            "Start again when fewer programs write the table",
        )

    def _drop_stale(self, pending: list[Rewritten], report: MaintenanceReport) -> None:
        """Leave out files whose rows another writer changed since they were read."""
        self._table.refresh()
        snapshot = self._table.current_snapshot()
        if snapshot is None or not pending:
            return
        live = {each.data_file.file_path for each in live_entries(self._table, snapshot)}
        # The earlier attempt took effect, although its answer was an error: the table has these files.
        if done := [each for each in pending if each.new.file_path in live]:
            _count_rewritten(done, report)
        for each in pending.copy():
            if each in done or not all(old.file_path in live for old in each.old):
                pending.remove(each)
                if each not in done:
                    delete_written(self._table, each)

    def _replace_files(self, pending: list[Rewritten]) -> None:
        # pyiceberg's own retry would commit on a newer snapshot with the offsets of the older one: a copy would then
        # add the rows of the newer one again. So there is no retry below this one, which reads the offsets again.
        without_retries(self._table)
        with self._table.transaction() as transaction:
            producer = _ReplaceFiles(
                Operation.OVERWRITE, transaction, self._table.io, snapshot_properties=self._own_properties()
            )
            for each in pending:
                producer.append_data_file(each.new)
                for old in each.old:
                    producer.delete_data_file(old)
            producer.commit()

    def _own_properties(self) -> dict[str, str]:
        """The offsets of the topic, and whatever else a copy wrote with them; the last batch of each query."""
        summary = next((each for each in summaries_of(self._table) if OFFSETS in each), {})
        copied = {key: value for key, value in summary.items() if key.startswith(_OWN)}
        mode = {MODE: UPSERT} if has_upserts(self._table) else {}
        # The snapshot with the offsets may have older batches than one above it.
        return copied | mode | batches_of(self._table)

    def _delete_uncommitted(self, pending: list[Rewritten]) -> None:
        for each in pending:
            delete_written(self._table, each)

    def _expire_snapshots(self, options: MaintenanceOptions, report: MaintenanceReport) -> None:
        before_ms = int((time.time() - self._age_s(options)) * 1000)
        conflicts = 0
        while conflicts < ATTEMPTS:
            self._table.refresh()
            expired = self._expired_ids(before_ms)
            if options.is_dry_run or not expired:
                report.snapshots_expired += len(expired)
                return
            try:
                self._table.maintenance.expire_snapshots().by_ids(expired[:_MAX_EXPIRED]).commit()
                report.snapshots_expired += len(expired[:_MAX_EXPIRED])
            except CommitFailedException:
                conflicts += 1
        raise CommitConflict(
            f"{self.name}: {ATTEMPTS} commits of expired snapshots lost against those of other writers", "Start again"
        )

    def _expired_ids(self, before_ms: int) -> list[int]:
        kept = {ref.snapshot_id for ref in self._table.metadata.refs.values()} | set(self._snapshots_with_offsets())
        newest = ancestors_of(self._table.current_snapshot(), self._table.metadata)
        kept.update(each.snapshot_id for each in islice(newest, self._number_of(_LEAST_KEPT, 1)))
        return [
            each.snapshot_id
            for each in self._table.metadata.snapshots
            if each.timestamp_ms < before_ms and each.snapshot_id not in kept
        ]

    def _snapshots_with_offsets(self) -> Iterator[int]:
        """The newest snapshot with the offsets, that with the batches, and those above: they are found by parents."""
        above: list[int] = []
        missing = {OFFSETS, BATCH}
        for each in ancestors_of(self._table.current_snapshot(), self._table.metadata):
            above.append(each.snapshot_id)
            keys = each.summary.additional_properties if each.summary else {}
            found = {name for name in missing if any(key.startswith(name) for key in keys)}
            if found:
                yield from above
                above.clear()
                missing -= found
            if not missing:
                return

    @contextmanager
    def _table_errors(self) -> Iterator[None]:
        try:
            yield
        except (NoSuchTableError, NoSuchNamespaceError) as error:
            raise TableError(f"{self.name} is not there: {error}", "Check its name and --property") from error
        except CommitStateUnknownException as error:
            raise CommitConflict(
                f"{self.name}: the outcome of a commit is unknown: {error}",
                "Start again: the table is whole either way",
            ) from error
        except (RESTError, SQLAlchemyError, ValueError) as error:
            raise TableError(f"{self.name}: the catalog or the table refused: {error}", "Check --property") from error


class _ReplaceFiles(_OverwriteFiles):
    """An overwrite that says that it changes no row, so that readers of changes pass it over."""

    def _summary(self, snapshot_properties: Mapping[str, str] = EMPTY_DICT) -> Summary:
        found = super()._summary(dict(snapshot_properties))
        return Summary(Operation.REPLACE, **found.additional_properties)


def _count_rewritten(pending: list[Rewritten], report: MaintenanceReport) -> None:
    report.commits += 1
    report.files_written += len(pending)
    report.files_compacted += sum(len(each.old) for each in pending)
    report.bytes_written += sum(each.new.file_size_in_bytes for each in pending)
    report.bytes_compacted += sum(old.file_size_in_bytes for each in pending for old in each.old)
