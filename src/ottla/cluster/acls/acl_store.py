"""Keeps the authorizer's ACLs equal to those in the metadata store, and changes them there.

Zone: deterministic. `znodes.acl_nodes` has the layout, which is that of Apache Kafka 3.9.

1. In each new session, before the broker registers, all ACLs are read, some hundred nodes at a time. Before the first
   time everything is denied; later the ACLs that were known count until they are replaced. ACLs that a notification or
   a change by this broker adds meanwhile stay, though the names that were read before lack them.
2. The parents of the notifications are watched. A notification names a resource, whose node is read again. One that
   cannot be read, or was removed before this broker read it, causes all ACLs to be read again.
3. A node that cannot be read may contain a denial. So everything is denied at its resource, until it is repaired.
4. Without a session this broker decides by the ACLs that it has, as Apache Kafka does. Its records are then protected
   by the controller, which elects other leaders.

A change is a multi of the resource's node, on the condition of its version, and the notification.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from ottla.acls import AclEntry, ResourcePattern
from ottla.cluster.store.full_reads import FullReads
from ottla.cluster.store.notification_feed import NODES_AT_ONCE, NotificationFeed
from ottla.cluster.store.watches import WatchedStore
from ottla.cluster.store.workflow import Workflow, read_children, read_node, read_nodes, submit_multi
from ottla.errors import ApiError, ErrorCode
from ottla.purgatory.purgatory import Purgatory
from ottla.seams import Clock, Failure, Kind, Node, Op
from ottla.security.authorization.authorizer import Authorizer
from ottla.znodes.acl_nodes import (
    ACL_CHANGES,
    ACL_TYPE_PATHS,
    PERSISTENT_ACL_PATHS,
    acl_path,
    change_of,
    decode_acls,
    decode_change,
    encode_acls,
)

logger = logging.getLogger(__name__)

NODE_MAX: Final = 250_000
"""Most bytes of a node that is written: some thousand ACLs, which are decoded in one turn. ZooKeeper refuses 1 MiB."""
_TRIES: Final = 10
"""Attempts of a change before it fails because other brokers keep changing the same ACLs."""
_LANE: Final = "acl changes"

Entries = frozenset[AclEntry]
AclEdit = Callable[[Entries], Entries]
"""Computes the new ACLs of a resource from the present ones. Raises ApiError."""


class AclsChanged(NamedTuple):
    """The ACLs of a resource before and after a change."""

    before: Entries
    after: Entries


class AclStore:
    """The ACLs of the cluster as the metadata store has them."""

    def __init__(self, store: WatchedStore, authorizer: Authorizer, clock: Clock, purgatory: Purgatory) -> None:
        self._store = store
        self._authorizer = authorizer
        self._reads = FullReads[ResourcePattern]()
        self._feeds = [
            NotificationFeed(store, clock, purgatory, parent, self._apply_notifications) for parent in ACL_CHANGES
        ]

    # -- all of them -------------------------------------------------------------------------------------------------

    def read_all(self) -> Workflow[None]:
        """Read all ACLs, and begin to watch. Raises Failure."""
        yield from _ensure_parents()
        # The watches first: a change after this read causes a notification.
        for feed in self._feeds:
            yield from feed.start_watching()
        yield from self._read_resources()
        self._authorizer.mark_loaded()

    def _read_resources(self) -> Workflow[None]:
        found: set[ResourcePattern] = set()
        with self._reads.track_changes() as newer:
            for path, kind, pattern_type in ACL_TYPE_PATHS:
                names = yield from read_children(path)
                resources = [ResourcePattern(kind, name, pattern_type) for name in names]
                found.update(resources)
                yield from self._reload_resources(resources)
            # One that was created after its parent was read is not among the names, but among the newer ones.
            for resource in [known for known in self._authorizer.acls.select_resources() if known not in found]:
                if resource not in newer:
                    self._set_acls(resource, frozenset())

    def _reload_resources(self, resources: Sequence[ResourcePattern]) -> Workflow[None]:
        for begin in range(0, len(resources), NODES_AT_ONCE):
            some = resources[begin : begin + NODES_AT_ONCE]
            nodes = yield from read_nodes([acl_path(each) for each in some])
            for resource, node in zip(some, nodes, strict=True):
                self._apply_node(resource, node)

    def _apply_node(self, resource: ResourcePattern, node: Node | None) -> None:
        try:
            entries = _entries_in(resource, node)
        except ValueError as error:
            logger.error(
                "everything is denied at %s, whose ACLs cannot be read: %s; repair the node, or delete it and"
                " create the ACLs again", resource, error,
            )  # fmt: skip
            self._reads.note_set(resource)
            self._authorizer.deny_resource(resource)
        else:
            self._set_acls(resource, entries)

    def _set_acls(self, resource: ResourcePattern, entries: Entries) -> None:
        self._reads.note_set(resource)
        self._authorizer.replace_acls(resource, entries)

    # -- notifications -----------------------------------------------------------------------------------------------

    def _apply_notifications(self, paths: Sequence[str], nodes: Sequence[Node | None]) -> Workflow[None]:
        changed = [_resource_in(path, node) for path, node in zip(paths, nodes, strict=True)]
        if None in changed:
            yield from self._read_resources()
        else:
            yield from self._reload_resources(list(dict.fromkeys(each for each in changed if each is not None)))

    # -- changes -----------------------------------------------------------------------------------------------------

    def change_acls(self, resource: ResourcePattern, edit: AclEdit) -> Workflow[AclsChanged]:
        """Change the ACLs of a resource. Raises Failure; ApiError if they cannot be read, or keep changing.

        An attempt without an answer is repeated on what the store has then, because an edit that was made has no effect
        the second time.
        """
        path, first = acl_path(resource), None
        for _ in range(_TRIES):
            node = yield from read_node(path)
            try:
                present = _entries_in(resource, node)
            except ValueError as error:
                text = f"the ACLs of {resource} cannot be read, so they cannot be changed: {error}"
                raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, text) from None
            # `first` stays that of the first attempt: an attempt without an answer may have made the change, which then
            # belongs to what is reported.
            first, after = present if first is None else first, edit(present)
            if after == present or (yield from _submit_change(resource, _change_op(path, node, after))):
                # This broker does not wait for its own notification: the client may use the ACLs next.
                self._set_acls(resource, after)
                return AclsChanged(first, after)
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT, f"other brokers keep changing the ACLs of {resource}; try again")


def _ensure_parents() -> Workflow[None]:
    """Create the nodes that are missing. Another broker may do so at the same time."""
    for _ in range(_TRIES):
        present = yield from read_nodes(PERSISTENT_ACL_PATHS)
        missing = [Op("create", path) for path, node in zip(PERSISTENT_ACL_PATHS, present, strict=True) if node is None]
        if not missing:
            return
        try:
            yield from submit_multi(_LANE, missing)
        except Failure as failure:
            if failure.kind not in (Kind.CONFLICT, Kind.UNKNOWN):
                raise
    raise Failure(Kind.CONFLICT, "the nodes of ACLs are still missing")


def _entries_in(resource: ResourcePattern, node: Node | None) -> Entries:
    """The ACLs in a resource's node. Raises ValueError."""
    return frozenset() if node is None else decode_acls(acl_path(resource), node.data)


def _resource_in(path: str, node: Node | None) -> ResourcePattern | None:
    """The resource that a notification names; None: it is not known what has changed."""
    if node is None:  # removed as an old one before this broker read it
        return None
    try:
        return decode_change(path, node.data)
    except ValueError as error:
        logger.error("reading all ACLs again, because of a notification that cannot be read: %s", error)
        return None


def _change_op(path: str, node: Node | None, after: Entries) -> Op:
    """The operation that stores the ACLs. Raises ApiError POLICY_VIOLATION if they are too many for a node."""
    if node is not None and not after:
        return Op("delete", path, version=node.version)
    content = encode_acls(after)
    if len(content) > NODE_MAX:
        text = f"the ACLs of a resource may have {NODE_MAX} bytes in the metadata store, not {len(content)}"
        raise ApiError(ErrorCode.POLICY_VIOLATION, text)
    return Op("create", path, content) if node is None else Op("put", path, content, node.version)


def _submit_change(resource: ResourcePattern, op: Op) -> Workflow[bool]:
    """Submit a change and its notification. Returns False when another writer changed the node, or may have."""
    change = change_of(resource)
    try:
        yield from submit_multi(f"acl {op.path}", [op, Op("sequential", change.path_prefix, change.data)])
    except Failure as failure:
        if failure.kind in (Kind.CONFLICT, Kind.UNKNOWN):
            return False
        raise
    return True
