"""The files that snapshots of an Iceberg table name.

Zone: real. Reads manifests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from pyiceberg.manifest import DataFile, FileFormat, ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from ottla.tables.errors import TableError
from ottla.tables.maintenance.plan import MAX_FILES

_FORMAT_WITH_ROW_IDS: Final = 3


class LiveFile(NamedTuple):
    """A data file of the newest snapshot."""

    sequence: int
    """That of the commit which added it."""
    file: DataFile


def live_entries(table: Table, snapshot: Snapshot) -> Iterator[ManifestEntry]:
    """The data files of a snapshot. Raises TableError if it has files of deletions."""
    for manifest in snapshot.manifests(table.io):
        entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
        if entries and manifest.content == ManifestContent.DELETES:
            raise TableError(
                "the table has files that delete rows of other files (merge-on-read), which another program made",
                "Compact it with that program",
            )
        yield from entries


def small_files(table: Table, snapshot: Snapshot, limit: int) -> dict[object, list[LiveFile]]:
    """The files below a size that may be rewritten, by partition, oldest first. Raises TableError."""
    if table.format_version >= _FORMAT_WITH_ROW_IDS:
        raise TableError(
            f"the table has format version {table.format_version}, whose rows have ids that compaction would change",
            "Compact it with a program that keeps them",
        )
    spec, found = table.spec().spec_id, dict[object, list[LiveFile]]()
    count = 0
    for entry in live_entries(table, snapshot):
        file = entry.data_file
        # Files of an older partitioning keep it: there is no partition of the newer one that has all their rows.
        if file.spec_id == spec and file.file_format == FileFormat.PARQUET and file.file_size_in_bytes < limit:
            count = _require_count(count + 1)
            found.setdefault(file.partition, []).append(LiveFile(entry.sequence_number or 0, file))
    for files in found.values():
        files.sort(key=lambda each: (each.sequence, each.file.file_path))
    return found


def named_files(table: Table) -> set[str]:
    """The last parts of the paths of all files that a snapshot, or the metadata, names."""
    # Not the whole paths: those of one file may differ in their scheme. The last parts have UUIDs.
    metadata = table.metadata
    paths = [table.metadata_location, *(each.metadata_file for each in metadata.metadata_log)]
    paths += [each.statistics_path for each in [*metadata.statistics, *metadata.partition_statistics]]
    names = {last_part(each) for each in paths}
    for snapshot in metadata.snapshots:
        names.add(last_part(snapshot.manifest_list))
        for manifest in snapshot.manifests(table.io):
            if last_part(manifest.manifest_path) not in names:
                names.add(last_part(manifest.manifest_path))
                names.update(_paths_of(table, manifest))
                _require_count(len(names))
    return names


def _paths_of(table: Table, manifest: ManifestFile) -> Iterable[str]:
    return (last_part(each.data_file.file_path) for each in manifest.fetch_manifest_entry(table.io))


def last_part(path: str) -> str:
    """The name of a file without its folders."""
    return path.rpartition("/")[2]


def _require_count(count: int) -> int:
    if count > MAX_FILES:
        raise TableError(f"the table has more than {MAX_FILES} files", "Maintain it with a program for clusters")
    return count
