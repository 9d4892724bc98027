"""ZooKeeper's data model: a tree of versioned nodes and the sessions that own some of them, changed by atomic multis.

Zone: pure. `draft_changes` computes the changes of a multi without mutating anything. `apply` is the only mutator, in
service and when a journal is replayed. `store` writes the journal and informs clients.
"""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from collections.abc import Sequence
from enum import Enum, IntEnum
from typing import Final, NamedTuple

from ottla.seams import Kind, Node, Op

MAX_REQUEST: Final = 1024 * 1024 - 1
"""Limit in bytes of one multi, with _OP_BYTES per operation besides path and data. It is ZooKeeper's default limit
(jute.maxbuffer)."""
MAX_PATH: Final = 4096
_FORBIDDEN: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff]")
_OP_BYTES: Final = 64
_NUMBERED: Final = ("sequential", "ephemeral_sequential")
_OWNED: Final = ("ephemeral", "ephemeral_sequential")
_CREATES: Final = ("create", *_OWNED, "sequential")


class Verb(IntEnum):
    """The kind of a change; the numbers are written to the journal."""

    CREATE = 1
    PUT = 2
    DELETE = 3
    OPEN = 4
    """A session begins; `owner` is its id, `data` its grant (`ottla.znodes.sessions.Grant`)."""
    CLOSE = 5
    """A session ends; the deletions of its ephemeral nodes are before this in the same transaction."""


class Change(NamedTuple):
    """One step of a transaction. `owner`: the session of an ephemeral node, or of OPEN and CLOSE; else 0."""

    verb: Verb
    path: str
    data: bytes = b""
    owner: int = 0


class EventKind(IntEnum):
    """The kind of an event, by ZooKeeper's number."""

    CREATED = 1
    DELETED = 2
    CHANGED = 3
    CHILD = 4


class Event(NamedTuple):
    """An event that fires watches. `get_children`: watches on the list of children, else those on the node."""

    path: str
    children: bool
    kind: EventKind


class Reason(Enum):
    """The reason for refusing a multi."""

    ABSENT = "does not exist"
    EXISTS = "exists already"
    VERSION = "has another version"
    NOT_EMPTY = "has children"
    EPHEMERAL_PARENT = "its parent is ephemeral"
    TOO_LARGE = "is too large"
    ROOT = "is the root"


class Refused(Exception):
    """A multi whose condition does not hold. It has no effect. `index` is the operation that failed."""

    def __init__(self, index: int, path: str, reason: Reason, details: str = "") -> None:
        super().__init__(f"{path}: {details or reason.value}")
        self.index = index
        self.path = path
        self.reason = reason

    @property
    def kind(self) -> Kind:
        """The kind of the Failure that clients of the seam receive."""
        return Kind.NOT_DONE if self.reason is Reason.TOO_LARGE else Kind.CONFLICT


class BadPath(Exception):
    """A path that cannot name a node."""


class Znode:
    """A node with ZooKeeper's metadata. czxid, mzxid, pzxid: zxids of its creation, last data and last child change."""

    __slots__ = (
        "_sorted",
        "children",
        "ctime",
        "cversion",
        "czxid",
        "data",
        "mtime",
        "mzxid",
        "owner",
        "pzxid",
        "version",
    )

    def __init__(self, data: bytes, zxid: int, wall_ms: int, owner: int) -> None:
        self.data = data
        self.version = 0
        self.cversion = 0
        self.czxid = self.mzxid = self.pzxid = zxid
        self.ctime = self.mtime = wall_ms
        self.owner = owner
        self.children: dict[str, None] = {}
        """Changed only by `add_child` and `remove_child` once the node is in use."""
        self._sorted: list[str] | None = None
        """The sorted names, from their first use: a node may have ten thousand children, which change one by one."""

    def add_child(self, name: str) -> None:
        """Add a child that was created."""
        self.children[name] = None
        if self._sorted is not None:
            insort(self._sorted, name)

    def remove_child(self, name: str) -> None:
        """Remove a child that was deleted."""
        del self.children[name]
        if self._sorted is not None:
            del self._sorted[bisect_left(self._sorted, name)]

    def sorted_children(self) -> list[str]:
        """The names of the children, sorted."""
        if self._sorted is None:
            self._sorted = sorted(self.children)
        return list(self._sorted)


class _Face(NamedTuple):
    """The state of a node after the operations drafted so far; version -1: absent."""

    version: int
    cversion: int
    children: int
    owner: int


_ABSENT: Final = _Face(-1, 0, 0, 0)


class Tree:
    """All nodes and sessions."""

    def __init__(self) -> None:
        self.nodes: dict[str, Znode] = {"/": Znode(b"", 0, 0, 0)}
        self.ephemerals: dict[int, dict[str, None]] = {}
        """Open sessions and their ephemeral nodes."""
        self.grants: dict[int, bytes] = {}
        """Open sessions and their grants."""

    def get_node(self, path: str) -> Node | None:
        """The node in the form of the seam, None if it does not exist."""
        found = self.nodes.get(path)
        return None if found is None else Node(found.data, found.version, found.czxid, found.owner, found.mzxid)

    def get_children(self, path: str) -> Sequence[str]:
        """The sorted names of the children; empty for an absent node."""
        found = self.nodes.get(path)
        return [] if found is None else found.sorted_children()

    def draft_changes(self, ops: Sequence[Op], session: int) -> tuple[list[Change], list[tuple[str, int]]]:
        """The changes of a multi, and its results: (path, version) per operation.

        The version is the new one for a put (create: 0), the expected one for a check, -1 for a delete.
        Raises Refused (a condition does not hold) or BadPath.
        """
        return _Draft(self, session).draft_ops(ops)

    def closing_changes(self, session: int) -> list[Change]:
        """The changes that end a session: the deletions of its ephemeral nodes, ordered by path, and the end."""
        owned = sorted(self.ephemerals.get(session, ()))
        return [Change(Verb.DELETE, path) for path in owned] + [Change(Verb.CLOSE, "", owner=session)]

    def apply(self, changes: Sequence[Change], zxid: int, wall_ms: int) -> list[Event]:
        """Apply changes. They come from `draft_changes` in the same state, or from the journal."""
        events: list[Event] = []
        for change in changes:
            if change.verb is Verb.CREATE:
                self._create_node(change, zxid, wall_ms, events)
            elif change.verb is Verb.PUT:
                self._put_data(change, zxid, wall_ms, events)
            elif change.verb is Verb.DELETE:
                self._delete_path(change.path, zxid, events)
            elif change.verb is Verb.OPEN:
                self.ephemerals[change.owner] = {}
                self.grants[change.owner] = change.data
            else:
                del self.grants[change.owner]
                left = self.ephemerals.pop(change.owner)
                assert not left, f"session {change.owner} ends while it owns {sorted(left)}"
        return events

    def _create_node(self, change: Change, zxid: int, wall_ms: int, events: list[Event]) -> None:
        assert change.path not in self.nodes, f"{change.path} is created twice"
        parent, name = split_path(change.path)
        self._count_child_change(parent, zxid).add_child(name)
        self.nodes[change.path] = Znode(change.data, zxid, wall_ms, change.owner)
        if change.owner:
            self.ephemerals[change.owner][change.path] = None
        events += (Event(change.path, False, EventKind.CREATED), Event(parent, True, EventKind.CHILD))

    def _put_data(self, change: Change, zxid: int, wall_ms: int, events: list[Event]) -> None:
        node = self.nodes[change.path]
        node.data = change.data
        node.version = next_version(node.version)
        node.mzxid = zxid
        node.mtime = wall_ms
        events.append(Event(change.path, False, EventKind.CHANGED))

    def _delete_path(self, path: str, zxid: int, events: list[Event]) -> None:
        node = self.nodes.pop(path)
        assert not node.children, f"{path} is deleted with children"
        parent, name = split_path(path)
        self._count_child_change(parent, zxid).remove_child(name)
        if node.owner:
            del self.ephemerals[node.owner][path]
        # A watch on the node's data and one on its children both fire; `Watches` makes one event of the two for a
        # client.
        events += (
            Event(path, False, EventKind.DELETED),
            Event(path, True, EventKind.DELETED),
            Event(parent, True, EventKind.CHILD),
        )

    def _count_child_change(self, parent: str, zxid: int) -> Znode:
        node = self.nodes[parent]
        node.cversion = next_version(node.cversion)
        node.pzxid = zxid
        return node


class _Draft:
    """The draft of one multi: the states of the nodes that it has changed so far."""

    def __init__(self, tree: Tree, session: int) -> None:
        self._tree = tree
        self._session = session
        self._node_states: dict[str, _Face] = {}
        self._changes: list[Change] = []

    def draft_ops(self, ops: Sequence[Op]) -> tuple[list[Change], list[tuple[str, int]]]:
        check_ops(ops)
        results = [self._apply_op(index, op) for index, op in enumerate(ops)]
        return self._changes, results

    def _apply_op(self, index: int, op: Op) -> tuple[str, int]:
        if op.verb in _CREATES:
            return self._draft_create(index, op)
        # Conditions are checked against the draft, so that later operations of a multi see the earlier ones.
        face = self._node_state(op.path)
        if face.version < 0:
            raise Refused(index, op.path, Reason.ABSENT)
        if op.version not in (-1, face.version):
            raise Refused(index, op.path, Reason.VERSION, f"has version {face.version}, not {op.version}")
        if op.verb == "check":
            return op.path, op.version
        if op.verb == "put":
            self._changes.append(Change(Verb.PUT, op.path, op.data))
            self._node_states[op.path] = face._replace(version=next_version(face.version))
            return op.path, next_version(face.version)
        return self._draft_delete(index, op.path, face)

    def _draft_create(self, index: int, op: Op) -> tuple[str, int]:
        parent, _ = split_path(op.path)
        above = self._node_state(parent)
        if above.version < 0:
            raise Refused(index, op.path, Reason.ABSENT, f"its parent {parent} does not exist")
        if above.owner:
            raise Refused(index, op.path, Reason.EPHEMERAL_PARENT)
        # ZooKeeper numbers sequential nodes by the parent's counter of child changes, not by the children that exist.
        path = f"{op.path}{above.cversion:010d}" if op.verb in _NUMBERED else op.path
        if self._node_state(path).version >= 0:
            raise Refused(index, path, Reason.EXISTS)
        owner = self._session if op.verb in _OWNED else 0
        self._changes.append(Change(Verb.CREATE, path, op.data, owner))
        self._node_states[path] = _Face(0, 0, 0, owner)
        self._count_child(parent, 1)
        return path, 0

    def _draft_delete(self, index: int, path: str, face: _Face) -> tuple[str, int]:
        if face.children:
            raise Refused(index, path, Reason.NOT_EMPTY)
        if path == "/":
            raise Refused(index, path, Reason.ROOT)
        self._changes.append(Change(Verb.DELETE, path))
        self._node_states[path] = _ABSENT
        self._count_child(split_path(path)[0], -1)
        return path, -1

    def _count_child(self, parent: str, step: int) -> None:
        face = self._node_state(parent)
        self._node_states[parent] = face._replace(children=face.children + step, cversion=next_version(face.cversion))

    def _node_state(self, path: str) -> _Face:
        found = self._node_states.get(path)
        if found is not None:
            return found
        node = self._tree.nodes.get(path)
        return _ABSENT if node is None else _Face(node.version, node.cversion, len(node.children), node.owner)


def check_ops(ops: Sequence[Op]) -> None:
    """Raise BadPath or Refused (TOO_LARGE) for a multi that every store would refuse in any state.

    ZooKeeper closes the connection after a request that is too large. The client would take that for a lost connection
    and send the request again and again.
    """
    size = 0
    for op in ops:
        check_path(op.path, sequential=op.verb in _NUMBERED)
        size += len(op.path) + len(op.data) + _OP_BYTES
    if size > MAX_REQUEST:
        raise Refused(0, ops[0].path, Reason.TOO_LARGE, f"a multi of {size} bytes, the limit is {MAX_REQUEST}")


def split_path(path: str) -> tuple[str, str]:
    """The path of the parent, and the name of the node."""
    parent, _, name = path.rpartition("/")
    return parent or "/", name


def next_version(version: int) -> int:
    """The next version. Versions are int32; 0 follows the largest, because -1 would match any version."""
    return 0 if version == 2**31 - 1 else version + 1


def check_path(path: str, sequential: bool = False) -> None:
    """Raise BadPath unless `path` can name a node. A sequential path may end in `/`: its number is the name."""
    if sequential and path.endswith("/"):
        path += "0"
    if path == "/":
        return
    if not path.startswith("/") or len(path) > MAX_PATH:
        raise BadPath(f"{path[:80]!r} is not an absolute path of at most {MAX_PATH} characters")
    for name in path[1:].split("/"):
        if name in ("", ".", ".."):
            raise BadPath(f"{path[:80]!r} has the component {name!r}")
    if _FORBIDDEN.search(path):
        raise BadPath(f"{path[:80]!r} has a character that no path may have")
