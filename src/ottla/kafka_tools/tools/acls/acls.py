"""kafka-acls: add, remove and list access control lists.

Zone: real. Asks and changes the cluster; `acl_options` reads the options.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final

from ottla.acls import AclBinding, AclEntry, AclFilter, EntryFilter, ResourcePattern
from ottla.client.admin.acls import AclAdmin
from ottla.client.errors import ClientError
from ottla.kafka_tools.connection import open_cluster
from ottla.kafka_tools.options import Options, Tool, WordsReport
from ottla.kafka_tools.tools.acls.acl_options import (
    ACL_OPTIONS,
    EntriesByResource,
    checked_action,
    listed_resources,
    wanted_entries,
)


def run_acls(options: Options) -> None:
    """Carry out the one action."""
    action = checked_action(options)
    entries = {} if action == "list" else wanted_entries(options, adding=action == "add")
    with open_cluster(options) as cluster:
        admin = AclAdmin(cluster)
        if action == "add":
            _add_acls(admin, entries)
        elif action == "remove":
            _remove_acls(admin, entries, force=options.has("force"))
        else:
            _list_acls(admin, options)


def _add_acls(admin: AclAdmin, entries: EntriesByResource) -> None:
    for resource, wanted in entries.items():
        pattern = ResourcePattern(resource.resource_type, resource.name or "", resource.pattern_type)
        # Kafka's tool also asks first, because the request does not show which ACLs were there.
        known = {binding.entry for binding in admin.describe_acls(AclFilter(resource))}
        for entry in wanted:
            if entry in known:
                print(f"Acl (pattern={resource_text(pattern)}, entry={entry_text(entry)}) already exists.")
        added = [entry for entry in wanted if entry not in known]
        if added:
            print(f"Adding ACLs for resource `{resource_text(pattern)}`: \n {_entry_lines(added)}\n", flush=True)
            _raise_first(admin.create_acls(AclBinding(pattern, entry) for entry in added).values())


def _remove_acls(admin: AclAdmin, entries: EntriesByResource, *, force: bool) -> None:
    for resource, unwanted in entries.items():
        pattern = ResourcePattern(resource.resource_type, resource.name or "*", resource.pattern_type)
        named = f"resource filter `{resource_text(pattern)}`"
        if unwanted:
            question = f"Are you sure you want to remove ACLs: \n {_entry_lines(unwanted)}\n from {named}? (y/n)"
            filters = [AclFilter(resource, EntryFilter(*entry)) for entry in unwanted]
        else:
            question = f"Are you sure you want to delete all ACLs for {named}? (y/n)"
            filters = [AclFilter(resource)]
        if not force and not _is_confirmed(question):
            continue
        for result in admin.delete_acls(filters).values():
            if isinstance(result, ClientError):
                raise result
            _raise_first(result.values())


def _is_confirmed(question: str) -> bool:
    print(question, flush=True)
    return sys.stdin.readline(100).strip().lower() == "y"


def _list_acls(admin: AclAdmin, options: Options) -> None:
    principals = options.values_of("principal")
    resources = listed_resources(options)
    found = sorted({binding for resource in resources for binding in admin.describe_acls(AclFilter(resource))})
    if not principals:
        _print_bindings(found)
    for principal in principals:
        print(f"ACLs for principal `{principal}`")
        _print_bindings([binding for binding in found if binding.entry.principal == principal])


def _print_bindings(bindings: Sequence[AclBinding]) -> None:
    for resource, group in groupby(bindings, key=lambda binding: binding.resource):
        entries = [binding.entry for binding in group]
        print(f"Current ACLs for resource `{resource_text(resource)}`:\n{_entry_lines(entries)}\n")


def resource_text(resource: ResourcePattern) -> str:
    """A resource as Java prints it."""
    kind, name, pattern_type = resource
    return f"ResourcePattern(resourceType={kind.name}, name={name}, patternType={pattern_type.name})"


def entry_text(entry: AclEntry) -> str:
    """An entry as Java prints it."""
    return (
        f"(principal={entry.principal}, host={entry.host}, operation={entry.operation.name}, "
        f"permissionType={entry.permission.name})"
    )


def _entry_lines(entries: Iterable[AclEntry]) -> str:
    return "\n".join(f"\t{entry_text(entry)}" for entry in entries)


def _raise_first(results: Iterable[ClientError | None]) -> None:
    for error in results:
        if error is not None:
            raise error


TOOL: Final = Tool(
    "This tool helps to manage acls on kafka.",
    ACL_OPTIONS,
    run_acls,
    prefix="Error while executing ACL command: ",
    to_stdout=True,
    all_to_stdout=True,
    wrap_refusals=True,
    wrong_words=WordsReport.WITH_USAGE,
)
