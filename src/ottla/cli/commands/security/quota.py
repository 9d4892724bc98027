"""`ottla quota`: show and change how much clients may do.

Zone: real. Turns options into admin calls, and prints their results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from ottla.cli.commands.topic import confirm_action, exit_with_errors
from ottla.cli.options import common_options, connect_cluster, output_option, parse_assignments
from ottla.cli.views.output import Json, write_documents, write_line, write_table

if TYPE_CHECKING:
    from ottla.client.admin.quotas import QuotaEntity, QuotaFilter

F = TypeVar("F", bound=Callable[..., Any])
_NAMES: Final = (
    "producer_byte_rate",
    "consumer_byte_rate",
    "request_percentage",
    "controller_mutation_rate",
    "connection_creation_rate",
)
_KINDS: Final = (("user", "user"), ("client_id", "client id"), ("ip", "address"))


@click.group()
def quota() -> None:
    """Show and change how much clients may do.

    The quota of a client is that of the first of these that has one: its user and client id, its user, its client id;
    each by name before the default.
    """


def _entity_options(command: F) -> F:
    for name, text in reversed(_KINDS):
        option = name.replace("_", "-")
        command = click.option(f"--default-{option}", f"default_{name}", is_flag=True,
                               help=f"Every {text} without a quota of its own.")(command)  # fmt: skip
        command = click.option(f"--{option}", name, metavar="NAME", help=f"This {text}.")(command)
    return command


@quota.command("set")
@_entity_options
@click.argument("values", nargs=-1, required=True, metavar="QUOTA=VALUE…")
@click.option("--dry-run", is_flag=True, help="Check whether it could be done; change nothing.")
@output_option("table", "json", "jsonl")
@common_options
def set_(values: tuple[str, ...], dry_run: bool, output: str, **given: Any) -> None:
    """Set quotas: producer_byte_rate, consumer_byte_rate, request_percentage, controller_mutation_rate; of an address
    connection_creation_rate.

    Bytes, partitions and connections are per second; the percentage is of one thread, so that 200 is two threads.
    """
    changes = {key: _parse_number(key, value) for key, value in parse_assignments(values).items()}
    _alter_quotas(given, changes, output, dry_run=dry_run)


@quota.command("remove")
@_entity_options
@click.argument("names", nargs=-1, metavar="QUOTA…")
@output_option("table", "json", "jsonl")
@common_options
def remove_quotas(names: tuple[str, ...], output: str, **given: Any) -> None:
    """Remove quotas; all that the entity has when none is named. Asks first in a terminal, needs --yes elsewhere."""
    from ottla.cli.failure import CommandFailed

    entity = _parse_entity(given)
    unknown = [name for name in names if name not in _NAMES]
    if unknown:
        raise click.UsageError(f"{unknown[0]!r} is not a quota: use one of {', '.join(_NAMES)}")
    there = _find_quotas(entity)
    wanted = names or tuple(there)
    missing = [name for name in wanted if name not in there]
    if missing or not wanted:
        what = f"no quota {missing[0]}" if missing else "no quota"
        raise CommandFailed(f"{entity} has {what}", exit_code=3)
    confirm_action(f"Remove {', '.join(wanted)} of {entity}?")
    _alter_quotas(given, dict.fromkeys(wanted), output, dry_run=False)


@quota.command("list")
@_entity_options
@output_option("table", "json", "jsonl")
@common_options
def list_quotas(output: str, **given: Any) -> None:
    """List quotas: all, or those of entities with these parts."""
    from ottla.client.admin.quotas import QuotaAdmin

    with connect_cluster() as cluster:
        found = QuotaAdmin(cluster).describe_client_quotas(_parse_filter(given))
    _write_quotas(output, found)


def _find_quotas(entity: QuotaEntity) -> Mapping[str, float]:
    from ottla.client.admin.quotas import QuotaAdmin, QuotaFilter

    with connect_cluster() as cluster:
        return QuotaAdmin(cluster).describe_client_quotas(QuotaFilter(*entity, strict=True)).get(entity, {})


def _alter_quotas(given: Mapping[str, Any], changes: Mapping[str, float | None], output: str, *, dry_run: bool) -> None:
    from ottla.client.admin.quotas import QuotaAdmin

    entity = _parse_entity(given)
    with connect_cluster() as cluster:
        results = QuotaAdmin(cluster).alter_client_quotas({entity: changes}, validate_only=dry_run)
    exit_with_errors({str(each): error for each, error in results.items()})
    if output in ("json", "jsonl"):
        write_documents(output, [_quota_document(entity, changes)])
        return
    for name, value in changes.items():
        outcome = "removed" if value is None else f"{'could be ' if dry_run else ''}set to {value:.15g}"
        write_line(f"{entity}: {name} {outcome}")


def _parse_filter(given: Mapping[str, Any]) -> QuotaFilter:
    from ottla.client.admin.quotas import QuotaFilter

    parts: dict[str, Any] = {}
    for name, text in _KINDS:
        if given[name] is not None and given[f"default_{name}"]:
            raise click.UsageError(f"name the {text}, or its default")
        if given[name] == "":
            raise click.UsageError(f"the {text} has no name")
        if given[name] is not None or given[f"default_{name}"]:
            parts[name] = given[name]
    return QuotaFilter(**parts)


def _parse_entity(given: Mapping[str, Any]) -> QuotaEntity:
    from ottla.client.admin.quotas import QuotaEntity

    selected = _parse_filter(given)
    parts = {name: getattr(selected, name) for name, _ in _KINDS if getattr(selected, name) != ""}
    if not parts:
        raise click.UsageError("name the entity: --user, --client-id or --ip, or their defaults")
    if "ip" in parts and len(parts) > 1:
        raise click.UsageError("an address is not combined with a user or a client id")
    return QuotaEntity(**parts)


def _parse_number(name: str, text: str) -> float:
    if name not in _NAMES:
        raise click.UsageError(f"{name!r} is not a quota: use one of {', '.join(_NAMES)}")
    try:
        return float(text)
    except ValueError:
        raise click.UsageError(f"{name}={text} is not a number") from None


def _write_quotas(output: str, quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> None:
    if output in ("json", "jsonl"):
        write_documents(output, [_quota_document(entity, values) for entity, values in quotas.items()])
        return
    rows = [
        (*_shown_parts(entity), name, f"{value:.15g}")
        for entity, values in quotas.items()
        for name, value in sorted(values.items())
    ]
    write_table(("USER", "CLIENT ID", "ADDRESS", "QUOTA", "VALUE"), rows)


def _shown_parts(entity: QuotaEntity) -> Sequence[str | None]:
    return ["(default)" if part is None else part or None for part in entity]


def _quota_document(entity: QuotaEntity, values: Mapping[str, float | None]) -> Json:
    """The JSON form: a part that is left out is not part of the entity, null is the default."""
    parts: dict[str, Json] = {name: part for name, part in entity._asdict().items() if part != ""}
    return {"entity": parts, "quotas": dict(values)}
