"""`ottla schema compatibility` and `ottla schema mode`: settings of subjects, and of all that have none of their own.

Zone: real. Sends requests to the registry, and prints what counts afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from ottla.cli.commands.schemas.options import open_registry, registry_option
from ottla.cli.options import common_options, output_option
from ottla.cli.views.output import write_documents, write_table

if TYPE_CHECKING:  # so that help does not import the client
    from ottla.client.schemas.registry import RegistrySetting, SchemaRegistry

_LEVELS: Final = click.Choice(
    ["BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE", "NONE"],
    case_sensitive=False,
)
_MODES: Final = click.Choice(["READWRITE", "READONLY", "READONLY_OVERRIDE", "IMPORT"], case_sensitive=False)
_subjects = click.argument("subjects", nargs=-1)
_named_subjects = click.argument("subjects", nargs=-1, required=True)


@click.group()
def compatibility() -> None:
    """Show and change which schemas a subject accepts after those it has."""


@click.group()
def mode() -> None:
    """Show and change whether schemas may be registered."""


@compatibility.command("get")
@_subjects
@registry_option
@output_option("table", "json", "jsonl")
@common_options
def get_compatibility(subjects: tuple[str, ...], url: str, output: str) -> None:
    """Show the level of subjects, or without a name the default level."""
    with open_registry(url) as registry:
        _write_settings(registry, _setting("COMPATIBILITY"), subjects, output)


@compatibility.command("set")
@click.argument("level", type=_LEVELS)
@_subjects
@registry_option
@output_option("table", "json", "jsonl")
@common_options
def set_compatibility(level: str, subjects: tuple[str, ...], url: str, output: str) -> None:
    """Set the level of subjects, or without a name the default level."""
    with open_registry(url) as registry:
        for subject in subjects or (None,):
            registry.set_setting(_setting("COMPATIBILITY"), level, subject)
        _write_settings(registry, _setting("COMPATIBILITY"), subjects, output)


@compatibility.command("unset")
@_named_subjects
@registry_option
@output_option("table", "json", "jsonl")
@common_options
def unset_compatibility(subjects: tuple[str, ...], url: str, output: str) -> None:
    """Remove the levels of subjects, so that the default level counts."""
    with open_registry(url) as registry:
        _unset(registry, _setting("COMPATIBILITY"), subjects, output)


@mode.command("get")
@_subjects
@registry_option
@output_option("table", "json", "jsonl")
@common_options
def get_mode(subjects: tuple[str, ...], url: str, output: str) -> None:
    """Show the mode of subjects, or without a name the default mode."""
    with open_registry(url) as registry:
        _write_settings(registry, _setting("MODE"), subjects, output)


@mode.command("set")
@click.argument("value", metavar="MODE", type=_MODES)
@_subjects
@click.option("--force", is_flag=True, help="IMPORT also where there are schemas.")
@registry_option
@output_option("table", "json", "jsonl")
@common_options
def set_mode(value: str, subjects: tuple[str, ...], force: bool, url: str, output: str) -> None:
    """Set the mode of subjects, or without a name the default mode."""
    with open_registry(url) as registry:
        for subject in subjects or (None,):
            registry.set_setting(_setting("MODE"), value, subject, force=force)
        _write_settings(registry, _setting("MODE"), subjects, output)


@mode.command("unset")
@_named_subjects
@registry_option
@output_option("table", "json", "jsonl")
@common_options
def unset_mode(subjects: tuple[str, ...], url: str, output: str) -> None:
    """Remove the modes of subjects, so that the default mode counts."""
    with open_registry(url) as registry:
        _unset(registry, _setting("MODE"), subjects, output)


def _setting(name: str) -> RegistrySetting:
    from ottla.client.schemas.registry import RegistrySetting

    return RegistrySetting[name]


def _unset(registry: SchemaRegistry, setting: RegistrySetting, subjects: tuple[str, ...], output: str) -> None:
    for subject in subjects:
        if registry.find_setting(setting, subject) is not None:
            registry.delete_setting(setting, subject)
    _write_settings(registry, setting, subjects, output)


def _write_settings(registry: SchemaRegistry, setting: RegistrySetting, subjects: tuple[str, ...], output: str) -> None:
    name, default = setting.name.lower(), registry.find_setting(setting)
    rows: list[tuple[str | None, str | None, str]] = [(None, default, "default")] if not subjects else []
    for subject in subjects:
        own = registry.find_setting(setting, subject)
        rows.append((subject, own or default, "default" if own is None else "subject"))
    if output == "table":
        write_table(("SUBJECT", name.upper(), "SOURCE"), [(subject or "(default)", *rest) for subject, *rest in rows])
    else:
        write_documents(
            output, [{"subject": subject, name: value, "source": source} for subject, value, source in rows]
        )
