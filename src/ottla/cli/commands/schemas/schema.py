"""`ottla schema`: subjects and versions of a schema registry, Ottla's or Confluent's.

Zone: real. Turns options into requests to the registry, and prints their answers.
"""

from __future__ import annotations

import click

from ottla.cli.commands.schemas.options import file_options, open_registry, read_schema, registry_option
from ottla.cli.commands.schemas.settings import compatibility, mode
from ottla.cli.commands.topic import confirm_action
from ottla.cli.options import common_options, output_option, parse_regex
from ottla.cli.views.output import write_document, write_documents, write_line, write_table


@click.group()
def schema() -> None:
    """List, show, check, register and delete schemas of a registry."""


schema.add_command(compatibility)
schema.add_command(mode)


@schema.command("list")
@click.option("--include", metavar="REGEX", help="Subjects whose whole name matches.")
@registry_option
@output_option("name", "json", "jsonl")
@common_options
def list_subjects(include: str | None, url: str, output: str) -> None:
    """List subjects."""
    pattern = parse_regex(".*" if include is None else include)
    with open_registry(url) as registry:
        subjects = [name for name in registry.list_subjects() if pattern.fullmatch(name)]
    if output == "name":
        for name in subjects:
            write_line(name)
    else:
        write_documents(output, [{"subject": name} for name in subjects])


@schema.command()
@click.argument("subject")
@click.option("--version", "number", type=click.IntRange(min=1), help="The latest by default.")
@registry_option
@output_option("text", "json")
@common_options
def show(subject: str, number: int | None, url: str, output: str) -> None:
    """Print the schema of a subject."""
    with open_registry(url) as registry:
        schema_id, found = registry.find_version(subject, number or "latest")
    if output == "text":
        write_line(found.text)
    else:
        write_document(output, {"subject": subject, "id": schema_id, "type": found.type, "schema": found.text})


@schema.command()
@click.argument("subject")
@file_options
@registry_option
@output_option("text", "json")
@common_options
def register(subject: str, file: str, kind: str | None, references: tuple[str, ...], url: str, output: str) -> None:
    """Register the schema in FILE in SUBJECT, unless it is there, and print its id."""
    with open_registry(url) as registry:
        registered = registry.register_schema(subject, read_schema(file, kind, references))
    if output == "text":
        write_line(str(registered.id))
    else:
        write_document(output, {"subject": subject, "id": registered.id, "guid": registered.guid})


@schema.command()
@click.argument("subject")
@file_options
@registry_option
@output_option("text", "json")
@common_options
def check(subject: str, file: str, kind: str | None, references: tuple[str, ...], url: str, output: str) -> None:
    """Whether the schema in FILE may be registered in SUBJECT. Exit code 1: it may not; the reasons are printed."""
    with open_registry(url) as registry:
        reasons = registry.check_compatibility(subject, read_schema(file, kind, references))
    if output == "text":
        for line in reasons or ["compatible"]:
            write_line(line)
    else:
        write_document(output, {"subject": subject, "compatible": not reasons, "reasons": reasons})
    if reasons:
        raise click.exceptions.Exit(1)


@schema.command()
@click.argument("subjects", nargs=-1, required=True)
@click.option("--version", "number", type=click.IntRange(min=1), help="Only this version.")
@click.option("--permanent", is_flag=True, help="Delete for good what was deleted before.")
@registry_option
@output_option("table", "json", "jsonl")
@common_options
def delete(subjects: tuple[str, ...], number: int | None, permanent: bool, url: str, output: str) -> None:
    """Delete subjects with all versions. Asks first in a terminal, needs --yes elsewhere."""
    confirm_action(f"Delete {'all schemas' if number is None else f'version {number}'} of {', '.join(subjects)}?")
    with open_registry(url) as registry:
        gone = {
            name: registry.delete_subject(name, permanent=permanent)
            if number is None
            else [registry.delete_version(name, number, permanent=permanent)]
            for name in subjects
        }
    if output == "table":
        write_table(("SUBJECT", "VERSIONS"), [(name, ",".join(map(str, found))) for name, found in gone.items()])
    else:
        write_documents(output, [{"subject": name, "versions": found} for name, found in gone.items()])
