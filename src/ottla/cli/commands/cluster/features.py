"""`ottla cluster features`: the finalized features of a cluster, shown, raised and lowered.

Zone: real. Turns options into admin calls, and prints their results.
"""

from __future__ import annotations

from collections.abc import Sequence

import click

from ottla.cli.options import common_options, connect_cluster, output_option, print_note
from ottla.cli.views.output import TABLE_AND_DOCUMENTS, Json, write_document, write_line, write_table


@click.group()
def features() -> None:
    """Show and change the levels of features that all brokers follow."""


@features.command()
@output_option(*TABLE_AND_DOCUMENTS)
@common_options
def describe(output: str) -> None:
    """Show which levels the brokers support, and which ones the cluster has finalized."""
    from ottla.client.admin.features import FeatureAdmin

    with connect_cluster() as cluster:
        found = FeatureAdmin(cluster).describe_features()
    if output == "table":
        write_table(("FEATURE", "MIN", "MAX", "FINALIZED"), found.features)
        write_line(f"Epoch: {found.epoch}")
    else:
        views: list[Json] = [each._asdict() for each in found.features]
        write_document(output, {"epoch": found.epoch, "features": views})


@features.command()
@click.argument("levels", nargs=-1, required=True, metavar="FEATURE=LEVEL…")
@click.option("--dry-run", is_flag=True, help="Check only; change nothing.")
@output_option(*TABLE_AND_DOCUMENTS)
@common_options
def upgrade(levels: Sequence[str], dry_run: bool, output: str) -> None:
    """Finalize higher levels, when all brokers support them."""
    from ottla.client.admin.features import UpgradeType

    _update_levels(_parse_levels(levels), UpgradeType.UPGRADE, dry_run, output)


@features.command()
@click.argument("levels", nargs=-1, required=True, metavar="FEATURE=LEVEL…")
@click.option("--unsafe", is_flag=True, help="Also if the brokers would lose metadata.")
@click.option("--dry-run", is_flag=True, help="Check only; change nothing.")
@output_option(*TABLE_AND_DOCUMENTS)
@common_options
def downgrade(levels: Sequence[str], unsafe: bool, dry_run: bool, output: str) -> None:
    """Finalize lower levels; 0 removes a feature."""
    from ottla.client.admin.features import UpgradeType

    kind = UpgradeType.UNSAFE_DOWNGRADE if unsafe else UpgradeType.SAFE_DOWNGRADE
    _update_levels(_parse_levels(levels), kind, dry_run, output)


def _update_levels(levels: dict[str, int], kind: int, dry_run: bool, output: str) -> None:
    from ottla.client.admin.features import FeatureAdmin, UpgradeType

    with connect_cluster() as cluster:
        FeatureAdmin(cluster).update_features(levels, UpgradeType(kind), validate_only=dry_run)
    if output == "table":
        verb = "Can finalize" if dry_run else "Finalized"
        print_note(f"{verb} {', '.join(f'{name}={level}' for name, level in levels.items())}.")
    else:
        write_document(output, {"levels": dict(levels), "dry_run": dry_run})


def _parse_levels(texts: Sequence[str]) -> dict[str, int]:
    levels: dict[str, int] = {}
    for text in texts:
        name, _, number = text.partition("=")
        if not (name and number.isascii() and number.isdecimal() and int(number[:6]) <= 32767 and len(number) < 6):
            raise click.BadParameter(f"{text!r} is not FEATURE=LEVEL, as transaction.version=2", param_hint="LEVEL")
        if name in levels:
            raise click.BadParameter(f"{name} occurs twice", param_hint="LEVEL")
        levels[name] = int(number)
    return levels
