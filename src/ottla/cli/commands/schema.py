"""`ottla schema`: subjects and versions of a schema registry, Ottla's or Confluent's.

Zone: real. Turns options into requests to the registry, and prints their answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from ottla.cli.commands.topic import confirm_action
from ottla.cli.failure import CommandFailed
from ottla.cli.options import common_options, output_option, parse_regex, resolve_secrets
from ottla.cli.views.output import write_document, write_documents, write_line, write_table

if TYPE_CHECKING:
    from ottla.client.schemas.registry import Schema, SchemaRegistry

F = TypeVar("F", bound=Callable[..., Any])

_FILE_MAX: Final = 4 * 1024 * 1024
"""Most bytes of a file with a schema."""
_TYPES: Final = {".proto": "PROTOBUF", ".json": "JSON"}
"""By the end of a file's name; others are Avro."""


@click.group()
def schema() -> None:
    """List, show, check, register and delete schemas of a registry."""


def _registry_option(command: F) -> F:
    return click.option(
        "--schema-registry",
        "url",
        metavar="URL",
        envvar="OTTLA_SCHEMA_REGISTRY",
        default="http://localhost:8081",
        show_default=True,
        help="The registry; also OTTLA_SCHEMA_REGISTRY.",
    )(command)


def _file_options(command: F) -> F:
    kinds = click.Choice(["AVRO", "JSON", "PROTOBUF"], case_sensitive=False)
    text = "By default by the name: .proto, .json, else Avro."
    command = click.option("--type", "kind", type=kinds, help=text)(command)
    return click.argument("file", type=click.Path(exists=True, dir_okay=False))(command)


@contextmanager
def _open_registry(url: str) -> Iterator[SchemaRegistry]:
    """A client of the registry. Raises CommandFailed with exit code 3 for what the registry does not have."""
    from ottla.client.schemas.registry import RegistryRequestError, SchemaRegistry

    text = resolve_secrets({"config.providers": "file,env,dir", "--schema-registry": url})
    try:
        yield SchemaRegistry(str(text["--schema-registry"]))
    except RegistryRequestError as error:
        if str(error.code).startswith("404"):
            raise CommandFailed(f"{error}. ottla schema list shows the subjects", exit_code=3) from error
        raise


def _read_schema(file: str, kind: str | None) -> Schema:
    """The schema in a file. Raises click.UsageError, OSError."""
    from ottla.client.schemas.registry import Schema

    with open(file, "rb") as opened:
        content = opened.read(_FILE_MAX + 1)
    if len(content) > _FILE_MAX:
        raise click.UsageError(f"{file} is larger than {_FILE_MAX:,} bytes: it is not a schema")
    try:
        return Schema(content.decode(), kind or _TYPES.get(Path(file).suffix, "AVRO"))
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{file} is not UTF-8: {error}") from error


@schema.command("list")
@click.option("--include", metavar="REGEX", help="Subjects whose whole name matches.")
@_registry_option
@output_option("name", "json", "jsonl")
@common_options
def list_subjects(include: str | None, url: str, output: str) -> None:
    """List subjects."""
    pattern = parse_regex(".*" if include is None else include)
    with _open_registry(url) as registry:
        subjects = [name for name in registry.list_subjects() if pattern.fullmatch(name)]
    if output == "name":
        for name in subjects:
            write_line(name)
    else:
        write_documents(output, [{"subject": name} for name in subjects])


@schema.command()
@click.argument("subject")
@click.option("--version", "number", type=click.IntRange(min=1), help="The latest by default.")
@_registry_option
@output_option("text", "json")
@common_options
def show(subject: str, number: int | None, url: str, output: str) -> None:
    """Print the schema of a subject."""
    with _open_registry(url) as registry:
        schema_id, found = registry.find_version(subject, number or "latest")
    if output == "text":
        write_line(found.text)
    else:
        write_document(output, {"subject": subject, "id": schema_id, "type": found.type, "schema": found.text})


@schema.command()
@click.argument("subject")
@_file_options
@_registry_option
@output_option("text", "json")
@common_options
def register(subject: str, file: str, kind: str | None, url: str, output: str) -> None:
    """Register the schema in FILE in SUBJECT, unless it is there, and print its id."""
    with _open_registry(url) as registry:
        registered = registry.register_schema(subject, _read_schema(file, kind))
    if output == "text":
        write_line(str(registered.id))
    else:
        write_document(output, {"subject": subject, "id": registered.id, "guid": registered.guid})


@schema.command()
@click.argument("subject")
@_file_options
@_registry_option
@output_option("text", "json")
@common_options
def check(subject: str, file: str, kind: str | None, url: str, output: str) -> None:
    """Whether the schema in FILE may be registered in SUBJECT. Exit code 1: it may not; the reasons are printed."""
    with _open_registry(url) as registry:
        reasons = registry.check_compatibility(subject, _read_schema(file, kind))
    if output == "text":
        for line in reasons or ["compatible"]:
            write_line(line)
    else:
        write_document(output, {"subject": subject, "compatible": not reasons, "reasons": reasons})
    if reasons:
        raise click.exceptions.Exit(1)


@schema.command()
@click.argument("subjects", nargs=-1, required=True)
@click.option("--permanent", is_flag=True, help="Delete for good what was deleted before.")
@_registry_option
@output_option("table", "json", "jsonl")
@common_options
def delete(subjects: tuple[str, ...], permanent: bool, url: str, output: str) -> None:
    """Delete subjects with all versions. Asks first in a terminal, needs --yes elsewhere."""
    confirm_action(f"Delete all schemas of {', '.join(subjects)}?")
    with _open_registry(url) as registry:
        gone = {name: registry.delete_subject(name, permanent=permanent) for name in subjects}
    if output == "table":
        write_table(("SUBJECT", "VERSIONS"), [(name, ",".join(map(str, found))) for name, found in gone.items()])
    else:
        write_documents(output, [{"subject": name, "versions": found} for name, found in gone.items()])
