"""Options of the commands of `ottla schema`, and the client of the registry.

Zone: real. Reads files with schemas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from ottla.cli.failure import CommandFailed
from ottla.cli.options import resolve_secrets

if TYPE_CHECKING:  # so that help does not import the client
    from ottla.client.schemas.registry import Schema, SchemaReference, SchemaRegistry

F = TypeVar("F", bound=Callable[..., Any])

_FILE_MAX: Final = 4 * 1024 * 1024
"""Most bytes of a file with a schema."""
_TYPES: Final = {".proto": "PROTOBUF", ".json": "JSON"}
"""By the end of a file's name; others are Avro."""


def registry_option(command: F) -> F:
    """`--schema-registry URL`, as `url`."""
    return click.option(
        "--schema-registry",
        "url",
        metavar="URL",
        envvar="OTTLA_SCHEMA_REGISTRY",
        default="http://localhost:8081",
        show_default=True,
        help="The registry; also OTTLA_SCHEMA_REGISTRY.",
    )(command)


def file_options(command: F) -> F:
    """FILE, `--type` and `--reference`: the arguments of `read_schema`."""
    kinds = click.Choice(["AVRO", "JSON", "PROTOBUF"], case_sensitive=False)
    text = "By default by the name: .proto, .json, else Avro."
    command = click.option(
        "--reference",
        "references",
        metavar="NAME=SUBJECT:VERSION",
        multiple=True,
        help="A schema that FILE refers to by NAME; repeat it.",
    )(command)
    command = click.option("--type", "kind", type=kinds, help=text)(command)
    return click.argument("file", type=click.Path(exists=True, dir_okay=False))(command)


@contextmanager
def open_registry(url: str) -> Iterator[SchemaRegistry]:
    """A client of the registry. Raises CommandFailed with exit code 3 for what the registry does not have."""
    from ottla.client.schemas.registry import RegistryRequestError, SchemaRegistry

    text = resolve_secrets({"config.providers": "file,env,dir", "--schema-registry": url})
    try:
        yield SchemaRegistry(str(text["--schema-registry"]))
    except RegistryRequestError as error:
        if str(error.code).startswith("404"):
            raise CommandFailed(f"{error}. ottla schema list shows the subjects", exit_code=3) from error
        raise


def read_schema(file: str, kind: str | None, references: Sequence[str]) -> Schema:
    """The schema in a file. Raises click.UsageError, OSError."""
    from ottla.client.schemas.registry import Schema

    with open(file, "rb") as opened:
        content = opened.read(_FILE_MAX + 1)
    if len(content) > _FILE_MAX:
        raise click.UsageError(f"{file} is larger than {_FILE_MAX:,} bytes: it is not a schema")
    found = [_parse_reference(each) for each in references]
    try:
        return Schema(content.decode(), kind or _TYPES.get(Path(file).suffix, "AVRO"), found)
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{file} is not UTF-8: {error}") from error


def _parse_reference(text: str) -> SchemaReference:
    from ottla.client.schemas.registry import SchemaReference

    name, _, target = text.rpartition("=")  # a name may be a URL
    subject, _, version = target.rpartition(":")  # a subject may be in a context: `:.context:subject`
    if not (name and subject and version.isascii() and version.isdecimal() and len(version) < 10):
        raise click.BadParameter(f"{text!r} is not NAME=SUBJECT:VERSION", param_hint="--reference")
    return SchemaReference(name, subject, int(version))
