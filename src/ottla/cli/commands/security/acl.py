"""`ottla acl`: show and change who may do what, and check a case.

Zone: real. Turns options into admin calls, and prints their results.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.commands.topic import confirm_action, exit_with_errors
from ottla.cli.options import common_options, connect_cluster, output_option, print_note
from ottla.cli.security.acl_options import (
    acl_document,
    bindings_of,
    check_operation,
    entry_options,
    filters_of,
    parse_operation,
    parse_principal,
    pattern_option,
    resource_options,
    resources_of,
)
from ottla.cli.views.output import write_documents, write_json, write_line, write_table

if TYPE_CHECKING:
    from ottla.acls import AclBinding
    from ottla.client import ClientError


@click.group()
def acl() -> None:
    """Show and change who may do what, and check a case."""


@acl.command("add")
@entry_options
@resource_options(repeated=True)
@pattern_option("literal", "prefixed", default="literal")
@output_option("table", "json", "jsonl")
@common_options
def add_acls(output: str, **given: Any) -> None:
    """Add ACLs: every user gets every operation on every resource that is named."""
    from ottla.client.admin.acls import AclAdmin

    bindings = bindings_of(given)
    with connect_cluster() as cluster:
        results = AclAdmin(cluster).create_acls(bindings)
    _write_acls(output, [binding for binding, error in results.items() if error is None])
    exit_with_errors({str(binding): error for binding, error in results.items()})


@acl.command("list")
@click.option("--principal", "users", multiple=True, metavar="USER", help="Only ACLs of this user; may repeat.")
@resource_options(repeated=True)
@pattern_option("match", "literal", "prefixed", "any", default="match")
@output_option("table", "json", "jsonl")
@common_options
def list_acls(users: tuple[str, ...], output: str, **given: Any) -> None:
    """List ACLs: all, or those of users, or those that decide about resources."""
    from ottla.acls import AclFilter, EntryFilter, ResourceFilter
    from ottla.client.admin.acls import AclAdmin

    who = [EntryFilter(parse_principal(name)) for name in users] or [EntryFilter()]
    where = resources_of(given) or [ResourceFilter()]
    with connect_cluster() as cluster:
        admin = AclAdmin(cluster)
        found = {each for entry in who for place in where for each in admin.describe_acls(AclFilter(place, entry))}
    _write_acls(output, sorted(found))


@acl.command("remove")
@entry_options
@resource_options(repeated=True)
@pattern_option("literal", "prefixed", "match", "any", default="literal")
@click.option("--all", "everything", is_flag=True, help="All ACLs of the cluster, if nothing else is named.")
@output_option("table", "json", "jsonl")
@common_options
def remove_acls(everything: bool, output: str, **given: Any) -> None:
    """Remove the ACLs that have everything that is named. Asks first in a terminal, needs --yes elsewhere."""
    from ottla.acls import AclFilter
    from ottla.cli.failure import CommandFailed
    from ottla.client.admin.acls import AclAdmin

    filters = filters_of(given)
    if (AclFilter() in filters) != everything:
        raise click.UsageError("name a user, a resource or an operation; or --all, and nothing else")
    with connect_cluster() as cluster:
        admin = AclAdmin(cluster)
        found = sorted({each for selected in filters for each in admin.describe_acls(selected)})
        if not found:
            raise CommandFailed("the cluster has no such ACL; ottla acl list shows all", exit_code=3)
        for binding in found:
            print_note(str(binding))
        confirm_action(f"Remove {'this ACL' if len(found) == 1 else f'these {len(found)} ACLs'}?")
        results = _remove_exactly(admin.delete_acls(map(_filter_of, found)).values())
    _write_acls(output, [binding for binding, error in results.items() if error is None])
    exit_with_errors({str(binding): error for binding, error in results.items()})


def _filter_of(binding: AclBinding) -> Any:
    """Selects this ACL only, so that nothing is removed that was not shown."""
    from ottla.acls import AclFilter, EntryFilter, ResourceFilter

    return AclFilter(ResourceFilter(*binding.resource), EntryFilter(*binding.entry))


def _remove_exactly(
    results: Iterable[dict[AclBinding, ClientError | None] | ClientError],
) -> dict[AclBinding, ClientError | None]:
    removed: dict[AclBinding, ClientError | None] = {}
    for result in results:
        if not isinstance(result, dict):
            raise result
        removed |= result
    return removed


@acl.command("check")
@click.argument("user")
@click.argument("operation")
@resource_options(repeated=False)
@click.option("--host", default="*", metavar="IP", help="From this address; by default from one that no ACL names.")
@click.option("--super-users", metavar="USER;…",
              help="Take these for super users; by default those that the cluster discloses.")  # fmt: skip
@output_option("text", "json")
@common_options
def check_case(user: str, operation: str, host: str, super_users: str | None, output: str, **given: Any) -> None:
    """Whether USER may do OPERATION with a resource, and which rule decides. Exit code 1: no.

    Evaluates the ACLs of the cluster here, as its brokers do; nothing is tried.
    """
    from ottla.acls import normalize_host
    from ottla.cli.security.acl_check import Case, decide_case

    resources = resources_of({**given, "pattern": "literal"})
    if len(resources) != 1:
        raise click.UsageError("name one resource: --topic, --group, --cluster …")
    (resource,) = resources
    wanted = parse_operation(operation)
    check_operation(wanted, resource.resource_type)
    case = Case(parse_principal(user), normalize_host(host), wanted, (resource.resource_type, resource.name or ""))
    with connect_cluster() as cluster:
        decision = decide_case(cluster, case, super_users)
    if output == "json":
        write_json({**case.case_document(), "allowed": decision.allowed, "reason": decision.reason,
                    "acl": None if decision.acl is None else acl_document(decision.acl)})  # fmt: skip
    else:
        write_line(f"{'yes' if decision.allowed else 'no'}: {decision.reason}")
    if not decision.allowed:
        raise click.exceptions.Exit(1)


def _write_acls(output: str, bindings: Sequence[AclBinding]) -> None:
    documents = [acl_document(binding) for binding in bindings]
    if output in ("json", "jsonl"):
        write_documents(output, documents)
        return
    header = ("RESOURCE", "NAME", "PATTERN", "PERMISSION", "PRINCIPAL", "HOST", "OPERATION")
    write_table(header, [tuple(document.values()) for document in documents])
