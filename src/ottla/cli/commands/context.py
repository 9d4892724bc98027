"""`ottla context`: client settings saved under a name.

Zone: real. Options and output; `saved_contexts` reads and writes the files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ottla.cli import saved_contexts
from ottla.cli.options import common_options, given_settings, output_option
from ottla.cli.views.output import Json, write_json, write_jsonl, write_line, write_table

if TYPE_CHECKING:
    from collections.abc import Mapping

_SECRET = ("password", "secret", "jaas", "private", "key.pem", "keystore.key")


@click.group()
def context() -> None:
    """Save the settings of clusters under names."""


def _complete_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001  # click's
    return [name for name in saved_contexts.list_contexts() if name.startswith(incomplete)]


@context.command()
@click.argument("name")
@click.option("--use", "used", is_flag=True, help="Use it from now on.")
@common_options
def add(name: str, used: bool) -> None:
    """Save the settings of -b, -X and --command-config as the context NAME; replaces an existing one."""
    settings = given_settings()
    if not settings:
        raise click.UsageError("nothing to save: add -b HOST:PORT, -X KEY=VALUE or --command-config FILE")
    saved_contexts.write_context(name, settings)
    if used:
        saved_contexts.use_context(name)


@context.command()
@click.argument("name", required=False, shell_complete=_complete_names)
@click.option("--none", "without", is_flag=True, help="Use no context.")
@common_options
def use(name: str | None, without: bool) -> None:
    """Use the context NAME for commands that name no other cluster."""
    if (name is None) != without:
        raise click.UsageError("name a context, or add --none")
    saved_contexts.use_context(name)


@context.command()
@click.argument("name", shell_complete=_complete_names)
@common_options
def remove(name: str) -> None:
    """Delete the context NAME."""
    saved_contexts.remove_context(name)


@context.command("list")
@output_option("table", "json", "jsonl", "name")
@common_options
def list_(output: str) -> None:
    """List contexts."""
    current = saved_contexts.current_context()
    found = [
        (name, name == current, saved_contexts.read_context(name).get("bootstrap.servers"))
        for name in saved_contexts.list_contexts()
    ]
    if output == "name":
        for name, _, _ in found:
            write_line(name)
    elif output == "table":
        write_table(("NAME", "IN USE", "BROKERS"), [(name, "*" if used else "", at) for name, used, at in found])
    else:
        documents: list[Json] = [{"name": name, "in_use": used, "brokers": at} for name, used, at in found]
        if output == "json":
            write_json(documents)
        else:
            write_jsonl(documents)


@context.command()
@click.argument("name", required=False, shell_complete=_complete_names)
@output_option("text", "json")
@common_options
def show(name: str | None, output: str) -> None:
    """Show the settings of a context without passwords; by default of the one in use."""
    chosen = name or saved_contexts.current_context()
    if chosen is None:
        raise click.UsageError("no context is in use: name the one to show")
    settings: Mapping[str, str] = {
        key: "[hidden]" if any(word in key for word in _SECRET) else value
        for key, value in saved_contexts.read_context(chosen).items()
    }
    if output == "json":
        write_json({"name": chosen, "settings": settings})
        return
    for key, value in settings.items():
        write_line(f"{key}={value}")
