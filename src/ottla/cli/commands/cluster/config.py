"""`ottla config`: settings of topics, brokers, their loggers, groups and client metrics.

Zone: real. The broker judges values; typing errors in names are found here, because a request with them may wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ottla.cli.name_options import complete_entities
from ottla.cli.options import common_options, connect_cluster, output_option, print_note
from ottla.cli.views.output import TABLE_AND_DOCUMENTS, Json, write_document, write_documents, write_line, write_table

if TYPE_CHECKING:
    from ottla.client import ConfigChange, ConfigEntry, Resource

F = TypeVar("F", bound=Callable[..., Any])
_HIDDEN = "(hidden)"


def _dry_run(command: F) -> F:
    return click.option("--dry-run", is_flag=True, help="Let the broker check the change; change nothing.")(command)


@click.group()
def config() -> None:
    """Show, change and compare settings.

    ENTITY is topic/NAME, broker/ID, broker/default (all brokers), logger/ID (log levels of a broker), group/NAME or
    client-metrics/NAME.
    """


@config.command("list")
@click.argument("entity", required=False, shell_complete=complete_entities)
@click.option("--all", "everything", is_flag=True, help="Show defaults as well, not only what is set.")
@click.option("--synonyms", is_flag=True, help="Show where else the value is set, the strongest source first.")
@output_option(*TABLE_AND_DOCUMENTS)
@common_options
def list_settings(entity: str | None, everything: bool, synonyms: bool, output: str) -> None:
    """Show what is set for ENTITY, or with --all every setting. Without ENTITY: list the entities."""
    from ottla.cli import entities

    if entity is None:
        with connect_cluster() as cluster:
            _write_entities(output, entities.list_entities(cluster))
        return
    resource = entities.parse_entity(entity)
    with connect_cluster() as cluster:
        found = entities.read_settings(cluster, [resource])[resource]
    _write_settings(output, [each for each in found if everything or not each.is_default], synonyms=synonyms)


@config.command("get")
@click.argument("entity", shell_complete=complete_entities)
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@output_option("value", *TABLE_AND_DOCUMENTS)
@common_options
def get(entity: str, keys: tuple[str, ...], output: str) -> None:
    """Print the values of settings, one per line; other formats have sources and synonyms. Exit code 3: no such key."""
    from ottla.cli import entities

    resource = entities.parse_entity(entity)
    with connect_cluster() as cluster:
        found = {each.name: each for each in entities.read_settings(cluster, [resource])[resource]}
    entities.require_keys(resource, keys, list(found))
    wanted = [found[key] for key in dict.fromkeys(keys)]
    if output == "value":
        for each in wanted:
            write_line(_value_text(each) or "")
    else:
        _write_settings(output, wanted, synonyms=True)


@config.command("set")
@click.argument("entity", shell_complete=complete_entities)
@click.argument("words", nargs=-1, required=True, metavar="KEY=VALUE...")
@_dry_run
@output_option(*TABLE_AND_DOCUMENTS)
@common_options
def set_(entity: str, words: tuple[str, ...], dry_run: bool, output: str) -> None:
    """Set keys of ENTITY; KEY+=VALUE appends to a list, KEY-=VALUE removes from it. All are changed, or none."""
    from ottla.cli import entities
    from ottla.client import ResourceType

    resource, changes = entities.parse_entity(entity), entities.parse_changes(words)
    _alter(resource, changes, dry_run, output, check_keys=resource.kind is ResourceType.BROKER_LOGGER)


@config.command()
@click.argument("entity", shell_complete=complete_entities)
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@_dry_run
@output_option(*TABLE_AND_DOCUMENTS)
@common_options
def unset(entity: str, keys: tuple[str, ...], dry_run: bool, output: str) -> None:
    """Remove keys of ENTITY, so that the next weaker source or the default is in force."""
    from ottla.cli import entities
    from ottla.client import ConfigChange, ConfigOp

    entities.refuse_repeated(keys)
    changes = [ConfigChange(key, None, ConfigOp.DELETE) for key in keys]
    _alter(entities.parse_entity(entity), changes, dry_run, output, check_keys=True)


@config.command()
@click.argument("one", metavar="ENTITY", shell_complete=complete_entities)
@click.argument("other", metavar="OTHER", shell_complete=complete_entities)
@output_option(*TABLE_AND_DOCUMENTS)
@common_options
def diff(one: str, other: str, output: str) -> None:
    """Show the settings in which two entities of a kind differ. Exit code 0: they are equal; 1: they differ."""
    from ottla.cli import entities

    pair = [entities.parse_entity(one), entities.parse_entity(other)]
    if pair[0].kind is not pair[1].kind:
        raise click.UsageError(f"{one} and {other} are of two kinds, which have no settings in common")
    with connect_cluster() as cluster:
        found = entities.read_settings(cluster, pair)
    left, right = ({each.name: each for each in found[resource]} for resource in pair)
    # Secrets come without a value, so that two different ones would look equal.
    hidden = sorted(key for key in {**left, **right} if _is_hidden(left.get(key)) or _is_hidden(right.get(key)))
    if hidden:
        print_note(f"not compared, because brokers do not show them: {', '.join(hidden)}")
    differing = sorted(
        key for key in {**left, **right} if key not in hidden and _value_of(left.get(key)) != _value_of(right.get(key))
    )
    _write_differences(output, [(key, left.get(key), right.get(key)) for key in differing], (one, other))
    raise click.exceptions.Exit(1 if differing else 0)


def _alter(
    resource: Resource, changes: Sequence[ConfigChange], dry_run: bool, output: str, *, check_keys: bool
) -> None:
    """Make the changes, all or none. check_keys: refuse keys that the owner cannot have, with the nearest one."""
    from ottla.cli import entities
    from ottla.client import Admin

    keys = [change.name for change in changes]
    with connect_cluster() as cluster:
        entities.require_brokers(cluster, [resource])
        if check_keys:
            entities.require_keys(resource, keys, entities.known_keys(cluster, resource))
        results = Admin(cluster).alter_configs({resource: changes}, validate_only=dry_run)
    # Before anything is printed: a change that was refused has no line that says `altered`.
    entities.changed_error(resource, results[resource])
    name = entities.entity_text(resource)
    if output == "table":
        write_line(f"{name} {'could be altered' if dry_run else 'altered'}: {', '.join(keys)}")
    else:
        write_document(output, {"entity": name, "keys": keys, "dry_run": dry_run})


def _write_entities(output: str, resources: Sequence[Resource]) -> None:
    from ottla.cli.entities import entity_text

    if output == "table":
        write_table(("ENTITY",), [(entity_text(each),) for each in resources])
        return
    documents: list[Json] = [
        {"entity": entity_text(each), "type": each.kind.name, "name": each.name} for each in resources
    ]
    write_documents(output, documents)


def _write_settings(output: str, entries: Sequence[ConfigEntry], *, synonyms: bool) -> None:
    if output != "table":
        write_documents(output, [_setting_document(each) for each in entries])
        return
    header = ("SETTING", "VALUE", "SOURCE", "DYNAMIC", *(("SYNONYMS",) if synonyms else ()))
    rows = [
        (each.name, _value_text(each), each.source.name, "no" if each.read_only else "yes",
         *((_synonyms_text(each),) if synonyms else ()))
        for each in entries
    ]  # fmt: skip
    write_table(header, rows)


def _setting_document(entry: ConfigEntry) -> Json:
    return {
        "name": entry.name,
        "value": entry.value,
        "source": entry.source.name,
        "dynamic": not entry.read_only,
        "sensitive": entry.sensitive,
        "synonyms": [{"name": name, "value": value, "source": source.name} for name, value, source in entry.synonyms],
    }


def _synonyms_text(entry: ConfigEntry) -> str | None:
    texts = [f"{source.name}:{name}={value if value is not None else ''}" for name, value, source in entry.synonyms]
    return ", ".join(texts) or None


def _write_differences(
    output: str, rows: Sequence[tuple[str, ConfigEntry | None, ConfigEntry | None]], names: tuple[str, str]
) -> None:
    if output == "table":
        if rows:
            write_table(
                ("SETTING", *names), [(key, _value_text(left), _value_text(right)) for key, left, right in rows]
            )
        return
    documents: list[Json] = [
        {"name": key, "left": _side_document(left), "right": _side_document(right)} for key, left, right in rows
    ]
    write_documents(output, documents)


def _side_document(entry: ConfigEntry | None) -> Json:
    return None if entry is None else {"value": entry.value, "source": entry.source.name}


def _value_of(entry: ConfigEntry | None) -> str | None:
    return None if entry is None else entry.value


def _is_hidden(entry: ConfigEntry | None) -> bool:
    return entry is not None and entry.sensitive and entry.value is None


def _value_text(entry: ConfigEntry | None) -> str | None:
    return _HIDDEN if _is_hidden(entry) else _value_of(entry)
