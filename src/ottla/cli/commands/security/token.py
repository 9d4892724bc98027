"""`ottla token`: create, list, renew and expire delegation tokens.

Zone: real. Turns options into admin calls, and prints their results. The HMAC of a token, which is a password, is
written to a file and never printed; a token is named by its id.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from ottla.cli.commands.topic import confirm_action, exit_with_errors
from ottla.cli.options import client_settings, common_options, connect_cluster, output_option, print_note
from ottla.cli.security.acl_options import parse_principal
from ottla.cli.views.output import Json, time_text, write_documents, write_line, write_table

if TYPE_CHECKING:
    from ottla.client import ClientError, Cluster
    from ottla.client.admin.tokens import DelegationToken

_LOGIN = "org.apache.kafka.common.security.scram.ScramLoginModule"
_KEPT = ("bootstrap.servers", "security.protocol", "ssl.truststore.", "ssl.endpoint.", "ssl.enabled.")
"""Settings of the command that the user of the token needs as well: no key, and no login."""


@click.group()
def token() -> None:
    """Create, list, renew and expire delegation tokens."""


@token.command("create")
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--owner", metavar="USER", help="Whose token it is; by default of the user that is logged in.")
@click.option("--renewer", "renewers", multiple=True, metavar="USER", help="May renew and expire it too; may repeat.")
@click.option("--max-lifetime", metavar="TIME", help="30m, 2d …; by default delegation.token.max.lifetime.ms.")
@click.option("--mechanism", type=click.Choice(["SCRAM-SHA-256", "SCRAM-SHA-512"]), default="SCRAM-SHA-512",
              show_default=True, help="With which its user logs in.")  # fmt: skip
@output_option("table", "json", "jsonl", "name")
@common_options
def create_token(
    file: str, owner: str | None, renewers: tuple[str, ...], max_lifetime: str | None, mechanism: str, output: str
) -> None:
    """Create a token, and write FILE: a new properties file, which only you can read, with which clients log in."""
    import os

    from ottla.cli.security.secret_files import write_new_files
    from ottla.client.admin.tokens import BROKERS_DEFAULT, TokenAdmin

    if os.path.lexists(file):
        raise click.UsageError(f"{file} exists, and is not overwritten: name another file")
    with connect_cluster() as cluster:
        made = TokenAdmin(cluster).create_delegation_token(
            [parse_principal(name) for name in renewers],
            max_lifetime_ms=BROKERS_DEFAULT if max_lifetime is None else _parse_ms(max_lifetime),
            owner=None if owner is None else parse_principal(owner),
        )
    write_new_files({file: _properties_of(made, mechanism)})
    print_note(f"{file} is the login of the token: --command-config {file}")
    _write_tokens(output, [made])


def _properties_of(made: DelegationToken, mechanism: str) -> str:
    lines = {key: value for key, value in client_settings().items() if key.startswith(_KEPT)}
    lines["sasl.mechanism"] = mechanism
    lines["sasl.jaas.config"] = (
        f'{_LOGIN} required username="{made.token_id}" password="{made.password}" tokenauth="true";'
    )
    return "".join(f"{key}={value}\n" for key, value in lines.items())


@token.command("list")
@click.option("--owner", "owners", multiple=True, metavar="USER", help="Only tokens of this user; may repeat.")
@output_option("table", "json", "jsonl", "name")
@common_options
def list_tokens(owners: tuple[str, ...], output: str) -> None:
    """List the tokens that the user that is logged in may see."""
    from ottla.client.admin.tokens import TokenAdmin

    with connect_cluster() as cluster:
        named = [parse_principal(name) for name in owners] or None
        _write_tokens(output, TokenAdmin(cluster).describe_delegation_tokens(named))


@token.command("renew")
@click.argument("ids", nargs=-1, required=True, metavar="ID…")
@click.option("--for", "period", metavar="TIME", help="From now on; by default delegation.token.expiry.time.ms.")
@output_option("table", "json", "jsonl")
@common_options
def renew_tokens(ids: tuple[str, ...], period: str | None, output: str) -> None:
    """Let tokens live longer, at most until their maximum."""
    from ottla.client.admin.tokens import BROKERS_DEFAULT, TokenAdmin

    period_ms = BROKERS_DEFAULT if period is None else _parse_ms(period)
    with connect_cluster() as cluster:
        admin = TokenAdmin(cluster)
        results = _change_tokens(cluster, ids, lambda found: admin.renew_delegation_token(found, period_ms=period_ms))
    _write_expiries(output, results)


@token.command("expire")
@click.argument("ids", nargs=-1, required=True, metavar="ID…")
@click.option("--in", "period", metavar="TIME", help="After this time; by default now.")
@output_option("table", "json", "jsonl")
@common_options
def expire_tokens(ids: tuple[str, ...], period: str | None, output: str) -> None:
    """End tokens. Asks first in a terminal, needs --yes elsewhere. Open connections stay until they log in again."""
    from ottla.client.admin.tokens import TokenAdmin

    period_ms = -1 if period is None else _parse_ms(period)
    confirm_action(f"Expire {', '.join(ids)}?")
    with connect_cluster() as cluster:
        admin = TokenAdmin(cluster)
        results = _change_tokens(cluster, ids, lambda found: admin.expire_delegation_token(found, period_ms=period_ms))
    _write_expiries(output, results)


def _change_tokens(
    cluster: Cluster, ids: Sequence[str], change: Callable[[bytes], int]
) -> dict[str, int | ClientError]:
    """Change tokens by their ids, which are looked up: the calls want the HMAC. Returns expiries or errors by id."""
    from ottla.client import ClientError, RefusedError
    from ottla.client.admin.tokens import TokenAdmin
    from ottla.errors import ErrorCode

    secrets = {each.token_id: each.hmac for each in TokenAdmin(cluster).describe_delegation_tokens()}
    results: dict[str, int | ClientError] = {}
    for name in dict.fromkeys(ids):
        if name not in secrets:
            results[name] = RefusedError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND, f"delegation token {name}")
            continue
        try:
            results[name] = change(secrets[name])
        except ClientError as error:
            results[name] = error
    return results


def _write_expiries(output: str, results: Mapping[str, int | ClientError]) -> None:
    done = {name: expires for name, expires in results.items() if isinstance(expires, int)}
    if output in ("json", "jsonl"):
        write_documents(output, [{"token_id": name, "expires_ms": expires} for name, expires in done.items()])
    else:
        for name, expires in done.items():
            write_line(f"{name} expires at {time_text(expires)}")
    exit_with_errors(results)


def _write_tokens(output: str, tokens: Sequence[DelegationToken]) -> None:
    if output == "name":
        for each in tokens:
            write_line(each.token_id)
    elif output in ("json", "jsonl"):
        write_documents(output, [_token_document(each) for each in tokens])
    else:
        write_table(
            ("TOKEN", "OWNER", "REQUESTER", "RENEWERS", "ISSUED", "EXPIRES", "MAXIMUM"),
            [(each.token_id, each.owner, each.requester or None, ",".join(each.renewers) or None,
              *map(time_text, (each.issued_ms, each.expires_ms, each.max_ms))) for each in tokens],
        )  # fmt: skip


def _token_document(made: DelegationToken) -> Json:
    return {
        "token_id": made.token_id,
        "owner": made.owner,
        "requester": made.requester or None,
        "renewers": list(made.renewers),
        "issued_ms": made.issued_ms,
        "expires_ms": made.expires_ms,
        "max_ms": made.max_ms,
    }


def _parse_ms(text: str) -> int:
    from ottla.retry.policy import PolicyError, duration_ms

    try:
        return duration_ms(text)
    except PolicyError as error:
        raise click.UsageError(str(error)) from None
