"""`ottla log verify` and `ottla log repair`: check a data directory, and repair what can be repaired.

Zone: real. Options and printing; the checks are in `ottla.storage.verify`, and for the metadata store's
journal in `ottla.znodes`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from ottla.cli.options import output_option
from ottla.cli.views.output import Json, write_json, write_line
from ottla.cli.views.progress import Progress

if TYPE_CHECKING:  # so that help does not import the storage
    from ottla.server.disks.data_dir_lock import DirectoryLock
    from ottla.storage.verify.findings import Finding, Report

DAMAGED = 1
UNREADABLE = 2


class _Unreadable(click.ClickException):
    exit_code = UNREADABLE


@click.command()
@click.argument("directories", nargs=-1, required=True, metavar="DIR…", type=click.Path())
@output_option("text", "json")
def verify(directories: tuple[str, ...], output: str) -> None:
    """Check log directories, or single partitions, of a stopped broker: every checksum, offset, epoch, index,
    producer snapshot and checkpoint.

    Writes nothing. The exit code is 0 when all is well, 1 when something is damaged, 2 when a directory cannot be
    read.
    """
    reports = {directory: _check_directory(directory) for directory in directories}
    if output == "json":
        write_json([_as_json(directory, report) for directory, report in reports.items()])
    else:
        for directory, report in reports.items():
            _show_directory(directory, report)
    if not all(report.is_clean for report in reports.values()):
        click.get_current_context().exit(DAMAGED)


@click.command()
@click.argument("directories", nargs=-1, required=True, metavar="DIR…", type=click.Path())
@click.option("--dry-run", is_flag=True, help="Show the repairs; change nothing.")
@output_option("text", "json")
def repair(directories: tuple[str, ...], dry_run: bool, output: str) -> None:
    """Repair what can be repaired from the log itself: cut torn tails, rebuild indexes, producer snapshots and leader
    epochs, remove unreadable checkpoints.

    Lost records are listed. Damage in the middle of a log is not repaired: if another replica has the partition,
    remove its directory here. The broker must be stopped. The exit code is 1 when damage is left.
    """
    from ottla.storage.verify.repair import repair_directory as carry_out

    answers: list[Json] = []
    left = False
    for directory in directories:
        # Locked before the check: what is found must be what is there when it is repaired.
        lock = None if dry_run else _lock_directory(directory)
        try:
            report = _check_directory(directory)
            done = [finding for finding in report.findings if finding.actions]
            if not dry_run:
                carry_out(directory, done)
        except OSError as error:
            raise _unreadable_error(directory, error) from error
        finally:
            if lock is not None:
                lock.release_lock()
        left = left or any(not finding.harmless and not finding.actions for finding in report.findings)
        answers.append({"dryRun": dry_run, **_as_json(directory, report)})
        if output != "json":
            _show_repairs(directory, report, dry_run=dry_run)
    if output == "json":
        write_json(answers)
    if left:
        click.get_current_context().exit(DAMAGED)


def _check_directory(directory: str) -> Report:
    from ottla.storage.verify.directory import verify_directory as check
    from ottla.storage.verify.source import OrdinaryDirectory

    try:
        with Progress("checked") as progress:
            report = check(OrdinaryDirectory(directory), progress.add_progress)
        report.findings += _check_journal(directory)
    except OSError as error:
        raise _unreadable_error(directory, error) from error
    return report


def _as_json(directory: str, report: Report) -> dict[str, Json]:
    return {"directory": directory, **report.json()}


def _check_journal(directory: str) -> list[Finding]:
    """Findings in the files of the embedded metadata store."""
    from ottla.storage.verify.findings import Finding
    from ottla.znodes.journal import DIRECTORY, check_files

    place = os.path.join(directory, DIRECTORY)
    if not os.path.isdir(place):
        return []
    contents = {}
    for name in sorted(os.listdir(place)):
        with open(os.path.join(place, name), "rb") as file:
            contents[name] = file.read()
    return [
        Finding(f"{DIRECTORY}/{name}", "metadata store", text, harmless=harmless)
        for name, text, harmless in check_files(contents)
    ]


def _lock_directory(directory: str) -> DirectoryLock:
    from ottla.seams import Failure
    from ottla.server.disks.data_dir_lock import DirectoryLock

    # The lock is that of the data directory, also if one partition inside of it is named.
    inside = os.path.exists(os.path.join(os.path.dirname(os.path.abspath(directory)), "meta.properties"))
    try:
        return DirectoryLock(os.path.dirname(os.path.abspath(directory)) if inside else directory)
    except Failure as failure:
        raise _Unreadable(failure.message) from failure


def _unreadable_error(directory: str, error: OSError) -> click.ClickException:
    return _Unreadable(f"{error.filename or directory}: {error.strerror}")


def _show_directory(directory: str, report: Report) -> None:
    for finding in report.findings:
        write_line(f"{_finding_path(directory, finding)}: {finding.kind}: {finding.message}{_lost_text(finding)}")
    damaged = sum(not finding.harmless for finding in report.findings)
    counts = f"{report.logs:,} logs, {report.segments:,} segments, {report.batches:,} batches, {report.bytes:,} bytes"
    verdict = f"{damaged} damaged" if damaged else "all well"
    write_line(f"{directory}: {counts}: {verdict}")


def _show_repairs(directory: str, report: Report, *, dry_run: bool) -> None:
    for finding in report.findings:
        if finding.actions:
            would = "would be " if dry_run else ""
            write_line(f"{_finding_path(directory, finding)}: {finding.kind}: {finding.message}")
            write_line(f"    {would}{finding.repair}{_lost_text(finding)}")
        elif not finding.harmless:
            write_line(
                f"{_finding_path(directory, finding)}: {finding.kind}: {finding.message}{_lost_text(finding)}; "
                "nothing done"
            )
    if not any(finding.actions or not finding.harmless for finding in report.findings):
        write_line(f"{directory}: nothing to repair")


def _finding_path(directory: str, finding: Finding) -> str:
    return os.path.join(directory, finding.path)


def _lost_text(finding: Finding) -> str:
    return "" if finding.lost is None else f" (records from offset {finding.lost[0]} to {finding.lost[1] - 1} are lost)"
