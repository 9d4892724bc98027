"""`ottla user`: create, list and delete users that log in with SCRAM.

Zone: real. Turns options into admin calls, and prints their results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ottla.cli.commands.topic import confirm_action, exit_with_errors
from ottla.cli.options import common_options, connect_cluster, output_option, print_note
from ottla.cli.security.passwords import password_options, read_password
from ottla.cli.views.output import Json, write_documents, write_line, write_table

if TYPE_CHECKING:
    from ottla.client import ClientError
    from ottla.client.admin.scram import ScramAdmin, ScramCredentialInfo, ScramDeletion, ScramMechanism, ScramUpsertion

_MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_MECHANISM = click.option(
    "--mechanism",
    "mechanisms",
    type=click.Choice(_MECHANISMS, case_sensitive=False),
    multiple=True,
    help="Only this mechanism; by default both.",
)


@click.group()
def user() -> None:
    """Create, list and delete users that log in with SCRAM."""


@user.command("create")
@click.argument("name")
@_MECHANISM
@click.option("--iterations", type=click.IntRange(4096, 16384), default=4096, show_default=True,
              help="How often the password is hashed.")  # fmt: skip
@click.option("--replace", is_flag=True, help="Give an existing user this password.")
@password_options
@output_option("table", "json", "jsonl", "name")
@common_options
def create_user(
    name: str,
    mechanisms: tuple[str, ...],
    iterations: int,
    replace: bool,
    password_file: str | None,
    password_env: str | None,
    generated_file: str | None,
    output: str,
) -> None:
    """Create a user. Asks for the password, unless an option names its source."""
    from ottla.cli.security.secret_files import new_files
    from ottla.client.admin.scram import ScramAdmin, ScramUpsertion

    password = read_password(name, password_file, password_env, generated_file)
    kinds = _parse_mechanisms(mechanisms)
    changes = [ScramUpsertion(name, kind, password, iterations) for kind in kinds]
    with connect_cluster() as cluster:
        admin = ScramAdmin(cluster)
        if not replace:
            _refuse_existing(admin, name)
        # The file first: a password that cannot be kept must not be set.
        with new_files({} if generated_file is None else {generated_file: f"{password}\n"}):
            refused = _alter_users(admin, changes)[name]
            if refused is not None:
                raise refused
    if generated_file is not None:
        print_note(f"the password of {name} is in {generated_file}")
    document: Json = {"user": name, "mechanisms": [kind.title for kind in kinds], "iterations": iterations}
    _write_done(output, [name], [document], "has the new password" if replace else "created")


def _alter_users(admin: ScramAdmin, changes: Sequence[ScramUpsertion | ScramDeletion]) -> dict[str, ClientError | None]:
    """Make the changes of one mechanism after those of the other: brokers refuse a user twice in a request."""
    results: dict[str, ClientError | None] = {}
    for kind in sorted({change.mechanism for change in changes}):
        of_kind = [change for change in changes if change.mechanism is kind]
        results |= {user: results.get(user) or e for user, e in admin.alter_user_scram_credentials(of_kind).items()}
    return results


def _refuse_existing(admin: ScramAdmin, name: str) -> None:
    from ottla.cli.failure import CommandFailed

    found = admin.describe_user_scram_credentials([name])[name]
    if isinstance(found, list) and found:
        raise CommandFailed(f"user {name} exists: --replace gives it a new password")


@user.command("list")
@click.argument("names", nargs=-1)
@output_option("table", "json", "jsonl", "name")
@common_options
def list_users(names: tuple[str, ...], output: str) -> None:
    """List users with their mechanisms; all of them when none is named."""
    from ottla.client.admin.scram import ScramAdmin

    with connect_cluster() as cluster:
        results = ScramAdmin(cluster).describe_user_scram_credentials(list(names) or None)
    found = {name: infos for name, infos in results.items() if isinstance(infos, list)}
    if output == "name":
        for name in found:
            write_line(name)
    elif output in ("json", "jsonl"):
        write_documents(output, [_user_document(name, infos) for name, infos in found.items()])
    else:
        rows = [(name, info.mechanism.title, info.iterations) for name, infos in found.items() for info in infos]
        write_table(("USER", "MECHANISM", "ITERATIONS"), rows)
    exit_with_errors(results)


def _user_document(name: str, infos: Sequence[ScramCredentialInfo]) -> Json:
    credentials: list[Json] = [{"mechanism": each.mechanism.title, "iterations": each.iterations} for each in infos]
    return {"user": name, "credentials": credentials}


@user.command("delete")
@click.argument("names", nargs=-1, required=True)
@_MECHANISM
@click.option("--if-exists", is_flag=True, help="Do not fail when a user does not exist.")
@output_option("table", "json", "jsonl", "name")
@common_options
def delete_users(names: tuple[str, ...], mechanisms: tuple[str, ...], if_exists: bool, output: str) -> None:
    """Delete the credentials of users. Asks first in a terminal, needs --yes elsewhere.

    Their ACLs and quotas stay, and so do their open connections until they log in again.
    """
    from ottla.client.admin.scram import ScramAdmin

    confirm_action(f"Delete the credentials of {', '.join(names)}?")
    with connect_cluster() as cluster:
        admin = ScramAdmin(cluster)
        deletions, results = _deletions_of(admin, names, _parse_mechanisms(mechanisms))
        if deletions:
            results |= _alter_users(admin, deletions)
    if if_exists:
        results = _without_missing(results)
    done = [name for name, error in results.items() if error is None]
    _write_done(output, done, [{"user": name} for name in done], "deleted")
    exit_with_errors(results)


def _deletions_of(
    admin: ScramAdmin, names: Sequence[str], kinds: Sequence[ScramMechanism]
) -> tuple[list[ScramDeletion], dict[str, ClientError | None]]:
    """(credentials of these kinds that exist, errors of the users without any)."""
    from ottla.client import RefusedError
    from ottla.client.admin.scram import ScramDeletion
    from ottla.errors import ErrorCode

    deletions: list[ScramDeletion] = []
    results: dict[str, ClientError | None] = {}
    for name, infos in admin.describe_user_scram_credentials(names).items():
        if not isinstance(infos, list):
            results[name] = infos
            continue
        own = [ScramDeletion(name, info.mechanism) for info in infos if info.mechanism in kinds]
        deletions += own
        if not own:
            results[name] = RefusedError(ErrorCode.RESOURCE_NOT_FOUND, f"user {name}", "it has no such credential")
    return deletions, results


def _without_missing(results: dict[str, ClientError | None]) -> dict[str, ClientError | None]:
    from ottla.client import RefusedError
    from ottla.errors import ErrorCode

    return {
        name: error
        for name, error in results.items()
        if not (isinstance(error, RefusedError) and error.code is ErrorCode.RESOURCE_NOT_FOUND)
    }


def _parse_mechanisms(given: tuple[str, ...]) -> list[ScramMechanism]:
    from ottla.client.admin.scram import ScramMechanism

    chosen = given or _MECHANISMS
    return [kind for kind in ScramMechanism if kind.title in chosen]


def _write_done(output: str, names: Sequence[str], documents: Sequence[Json], done: str) -> None:
    if output in ("json", "jsonl"):
        write_documents(output, documents)
    else:
        for name in names:
            write_line(name if output == "name" else f"{name} {done}")
