"""Whether a principal may do something, decided here by the ACLs that a cluster lists.

Zone: real. Asks a cluster through the client, and decides with the broker's own code; prints notes only.
"""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.acls import AclFilter, Operation, PatternType, ResourceFilter, ResourceType
from ottla.cli.options import print_note
from ottla.cli.views.output import Json
from ottla.config.broker_authorizer import split_principals
from ottla.security.authorization.authorizer import Authorizer, Decision

if TYPE_CHECKING:
    from ottla.client import Cluster

_SUPER_USERS: Final = "super.users"
_WITHOUT_ACL: Final = "allow.everyone.if.no.acl.found"


class Case(NamedTuple):
    """May this principal do that from there?"""

    principal: str
    host: str
    operation: Operation
    resource: tuple[ResourceType, str]

    def case_document(self) -> dict[str, Json]:
        """The JSON form."""
        return {
            "principal": self.principal,
            "host": self.host,
            "operation": self.operation.name,
            "resource_type": self.resource[0].name,
            "name": self.resource[1],
        }


def decide_case(cluster: Cluster, case: Case, super_users: str | None) -> Decision:
    """The decision of the cluster's brokers. super_users: in place of their `super.users`.

    Raises ClientError; click.UsageError for super users that are none.
    """
    import click

    from ottla.client.admin.acls import AclAdmin

    deciding = AclFilter(ResourceFilter(case.resource[0], case.resource[1], PatternType.MATCH))
    bindings = AclAdmin(cluster).describe_acls(deciding)
    disclosed = _read_settings(cluster, {_WITHOUT_ACL} | ({_SUPER_USERS} if super_users is None else set()))
    users = split_principals(disclosed.get(_SUPER_USERS, "") if super_users is None else super_users)
    wrong = next((user for user in users if ":" not in user), None)
    if wrong is not None:
        raise click.UsageError(f"super users: {wrong!r} is not of the form type:name")
    authorizer = Authorizer(users, allow_without_acl=disclosed.get(_WITHOUT_ACL, "false").lower() == "true")
    for resource, own in groupby(bindings, attrgetter("resource")):
        authorizer.replace_acls(resource, [binding.entry for binding in own])
    authorizer.mark_loaded()
    return authorizer.explain_decision(case.principal, case.host, case.operation, case.resource)


def _read_settings(cluster: Cluster, wanted: set[str]) -> dict[str, str]:
    """The settings of the authorizer, as far as a broker discloses them; a note names those that it hides."""
    from ottla.client import Admin, ClientError, Resource, ResourceType

    found: dict[str, str] = {}
    node = next(iter(sorted(cluster.refresh(()).nodes)), None)
    if node is not None:
        broker = Resource(ResourceType.BROKER, str(node))
        try:
            entries = Admin(cluster).describe_configs([broker])[broker]
        except ClientError as error:
            entries = error
        if isinstance(entries, list):
            found = {each.name: each.value for each in entries if each.name in wanted and each.value is not None}
    for name in sorted(wanted - set(found)):
        print_note(f"the brokers do not disclose {name}: taken as unset")
    return found
