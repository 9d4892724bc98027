"""`ottla table maintain`: large files instead of small ones, and an end of old snapshots.

Zone: real. Needs no broker.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ottla.cli.options import common_options, output_option, parse_assignments, print_note, resolve_secrets
from ottla.cli.views.output import Json, write_json, write_line
from ottla.cli.views.progress import Progress

if TYPE_CHECKING:
    from ottla.tables.maintenance.plan import MaintenanceOptions, MaintenanceReport

F = TypeVar("F", bound=Callable[..., Any])


def catalog_options(command: F) -> F:
    """`--catalog` and `--property`."""
    command = click.option(
        "--property",
        "properties",
        multiple=True,
        metavar="KEY=VALUE",
        help="Property of the Iceberg catalog or of Delta's object store; repeat it for more.",
    )(command)
    return click.option(
        "--catalog", default="default", show_default=True, help="Iceberg catalog, as pyiceberg names it."
    )(command)


def resolve_properties(words: tuple[str, ...]) -> dict[str, str]:
    """The properties; `${env:NAME}` and other references are replaced, because a property may be a secret."""
    given = resolve_secrets({"config.providers": "file,env,dir", **parse_assignments(words)})
    return {key: str(value) for key, value in given.items() if key != "config.providers"}


@click.command("maintain")
@click.argument("location", metavar="TABLE")
@click.option(
    "--format", "kind", type=click.Choice(["iceberg", "delta", "parquet"]), required=True, help="Format of the table."
)
@catalog_options
@click.option(
    "--older-than",
    metavar="DURATION",
    help="Expire what is older: 7d, 12h. Default: the table's properties, or 5 days (Iceberg), 7 (Delta).",
)
@click.option(
    "--target-file-size",
    "target_mib",
    type=click.IntRange(1, 4096),
    default=128,
    show_default=True,
    metavar="MIB",
    help="Join files below three quarters of this.",
)
@click.option("--dry-run", is_flag=True, help="Change nothing; show what would be done.")
@output_option("text", "json")
@common_options
def maintain_table(location: str, output: str, **given: Any) -> None:
    """Join small files of TABLE, expire its old snapshots, and delete files that none names.

    TABLE is NAMESPACE.TABLE in the Iceberg catalog, or the path or URI of a Delta table. A copy may write it meanwhile.
    """
    from ottla.tables.formats import open_maintainer

    options = _options(given)
    maintainer = open_maintainer(
        given["kind"], location, catalog=given["catalog"], properties=resolve_properties(given["properties"])
    )
    with Progress("compacted") as progress:
        report = maintainer.maintain_table(options, progress.add_progress)
    if output == "json":
        counts: dict[str, Json] = asdict(report)
        write_json({"table": maintainer.name, "format": given["kind"], "dry_run": given["dry_run"], **counts})
    else:
        _print_report(maintainer.name, report, is_dry_run=given["dry_run"])


def _options(given: dict[str, Any]) -> MaintenanceOptions:
    from ottla.retry.policy import duration_ms
    from ottla.tables.maintenance.plan import MaintenanceOptions

    age_s = None if given["older_than"] is None else duration_ms(given["older_than"]) / 1000
    return MaintenanceOptions(age_s, given["target_mib"] << 20, given["dry_run"])


def _print_report(name: str, report: MaintenanceReport, *, is_dry_run: bool) -> None:
    if is_dry_run:
        print_note("nothing was changed: --dry-run")
    sizes = f"{report.bytes_compacted / 1e6:.1f} MB" + (
        "" if is_dry_run else f" to {report.bytes_written / 1e6:.1f} MB"
    )
    write_line(f"{name}:")
    write_line(f"  files compacted    {report.files_compacted} to {report.files_written} ({sizes})")
    write_line(f"  snapshots expired  {report.snapshots_expired}")
    write_line(f"  files deleted      {report.files_deleted}")
