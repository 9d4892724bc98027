"""Translates ZooKeeper's requests to operations on the embedded store's tree, and their results to answers.

Zone: pure. `ottla.server.zookeeper.znode_client` handles sessions, watches and the order of answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

from ottla.seams import Op
from ottla.server.zookeeper.jute import Acl, Stat, Value
from ottla.server.zookeeper.records import (
    EPHEMERAL,
    OPEN_ACL,
    SEQUENTIAL,
    Create,
    OpCode,
    Path,
    PathVersion,
    PathWatch,
    SetAcl,
    SetData,
    ZkError,
    encode_parts,
)
from ottla.znodes.tree import BadPath, Reason, Tree, Znode, check_path

Verbs = Literal["check", "put", "create", "ephemeral", "sequential", "ephemeral_sequential", "delete"]
Answer = tuple[str, Sequence[Value]]
"""Field types and values of an answer's record."""

_VERBS: Final[Mapping[int, Verbs]] = {
    0: "create",
    EPHEMERAL: "ephemeral",
    SEQUENTIAL: "sequential",
    EPHEMERAL | SEQUENTIAL: "ephemeral_sequential",
}
_TTL_FLAGS: Final = 6
"""The largest known flags: containers and nodes with a time to live, which this store does not have."""

ERRORS: Final[Mapping[Reason, ZkError]] = {
    Reason.ABSENT: ZkError.NO_NODE,
    Reason.EXISTS: ZkError.NODE_EXISTS,
    Reason.VERSION: ZkError.BAD_VERSION,
    Reason.NOT_EMPTY: ZkError.NOT_EMPTY,
    Reason.EPHEMERAL_PARENT: ZkError.NO_CHILDREN_FOR_EPHEMERALS,
    Reason.TOO_LARGE: ZkError.BAD_ARGUMENTS,
    Reason.ROOT: ZkError.BAD_ARGUMENTS,
}


class RequestError(Exception):
    """A request that cannot be done, with ZooKeeper's error number; `index`: the part of a multi."""

    def __init__(self, error: ZkError, index: int = 0) -> None:
        super().__init__(error.name)
        self.error = error
        self.index = index


# -- writing -----------------------------------------------------------------------------------------------------------


def op_of(code: int, record: Any) -> Op:
    """The store's operation for a request that writes or checks. Raises RequestError."""
    if isinstance(record, Create):
        return _create_record(record)
    _check_path(record.path)
    if isinstance(record, SetData):
        return Op("put", record.path, record.data or b"", record.version)
    assert isinstance(record, PathVersion)
    if code == OpCode.DELETE and record.path == "/":
        raise RequestError(ZkError.BAD_ARGUMENTS)
    return Op("delete" if code == OpCode.DELETE else "check", record.path, version=record.version)


def ops_of(parts: Sequence[tuple[int, Any]]) -> list[Op]:
    """The operations of a multi. Raises RequestError with the index of the part."""
    ops: list[Op] = []
    for index, (code, record) in enumerate(parts):
        try:
            ops.append(op_of(code, record))
        except RequestError as wrong:
            raise RequestError(wrong.error, index) from None
    return ops


def _create_record(record: Create) -> Op:
    verb = _VERBS.get(record.flags)
    if verb is None:
        known = 0 <= record.flags <= _TTL_FLAGS
        raise RequestError(ZkError.UNIMPLEMENTED if known else ZkError.BAD_ARGUMENTS)
    _check_path(record.path, bool(record.flags & SEQUENTIAL))
    check_acl(record.acl)
    return Op(verb, record.path, record.data or b"")


def check_acl(acl: Sequence[Acl]) -> None:
    """Raise RequestError unless the ACL is open: the store does not enforce others, so it must not accept them."""
    if tuple(acl) != OPEN_ACL:
        raise RequestError(ZkError.INVALID_ACL)


def _check_path(path: str, sequential: bool = False) -> None:
    try:
        check_path(path, sequential)
    except BadPath:
        raise RequestError(ZkError.BAD_ARGUMENTS) from None


def written_answer(code: int, tree: Tree, path: str, version: int) -> Answer:
    """The answer to an operation that was just carried out; `path` and `version` are the store's result for it."""
    if code == OpCode.CREATE:
        return "t", (path,)
    if code == OpCode.CREATE2:
        return "ts", (path, _stat_after(tree, path, version))
    if code == OpCode.SET_DATA:
        return "s", (_stat_after(tree, path, version),)
    return "", ()


def _stat_after(tree: Tree, path: str, version: int) -> Stat:
    """The node's bookkeeping after an operation; only the version, if a later part of the same multi removed it."""
    node = tree.nodes.get(path)
    return Stat(0, 0, 0, 0, version, 0, 0, 0, 0, 0, 0) if node is None else stat_of(node)


def failed_parts(count: int, index: int, error: ZkError) -> bytes:
    """The answer to a multi of which one part failed, so that none was carried out."""
    codes = [ZkError.OK] * index + [error] + [ZkError.RUNTIME_INCONSISTENCY] * (count - index - 1)
    return encode_parts([(-1, code, "", ()) for code in codes])


# -- reading -----------------------------------------------------------------------------------------------------------


def stat_of(node: Znode) -> Stat:
    """A node's bookkeeping."""
    return Stat(
        node.czxid,
        node.mzxid,
        node.ctime,
        node.mtime,
        node.version,
        node.cversion,
        0,
        node.owner,
        len(node.data),
        len(node.children),
        node.pzxid,
    )


def node_at(tree: Tree, path: str) -> Znode:
    """The node at a path. Raises RequestError when there is none, or the path is not valid."""
    _check_path(path)
    node = tree.nodes.get(path)
    if node is None:
        raise RequestError(ZkError.NO_NODE)
    return node


def _get_stat(tree: Tree, record: PathWatch) -> Answer:
    return "s", (stat_of(node_at(tree, record.path)),)


def _get_data(tree: Tree, record: PathWatch) -> Answer:
    node = node_at(tree, record.path)
    return "ds", (node.data, stat_of(node))


def _get_children(tree: Tree, record: PathWatch) -> Answer:
    return "T", (node_at(tree, record.path).sorted_children(),)


def _get_children2(tree: Tree, record: PathWatch) -> Answer:
    node = node_at(tree, record.path)
    return "Ts", (node.sorted_children(), stat_of(node))


def _get_acl(tree: Tree, record: Path) -> Answer:
    return "As", (OPEN_ACL, stat_of(node_at(tree, record.path)))


def _set_acl(tree: Tree, record: SetAcl) -> Answer:
    node = node_at(tree, record.path)
    check_acl(record.acl)
    if record.version not in (-1, 0):
        raise RequestError(ZkError.BAD_VERSION)
    return "s", (stat_of(node),)


def _answer_sync(tree: Tree, record: Path) -> Answer:
    del tree
    return "t", (record.path,)


def _count_descendants(tree: Tree, record: Path) -> Answer:
    node_at(tree, record.path)
    inside = record.path.rstrip("/") + "/"
    return "i", (sum(path.startswith(inside) for path in tree.nodes) - (record.path == "/"),)


READS: Final[Mapping[int, Callable[[Tree, Any], Answer]]] = {
    OpCode.EXISTS: _get_stat,
    OpCode.GET_DATA: _get_data,
    OpCode.GET_CHILDREN: _get_children,
    OpCode.GET_CHILDREN2: _get_children2,
    OpCode.GET_ACL: _get_acl,
    OpCode.SET_ACL: _set_acl,
    OpCode.SYNC: _answer_sync,
    OpCode.GET_ALL_CHILDREN_NUMBER: _count_descendants,
}
"""Requests that change nothing and belong to no session. Each raises RequestError."""


def read_parts(tree: Tree, parts: Sequence[tuple[int, Any]]) -> bytes:
    """The answer to a multi of reads: each part succeeds or fails on its own."""
    answers: list[tuple[int, int, str, Sequence[Value]]] = []
    for code, record in parts:
        try:
            answers.append((code, ZkError.OK, *READS[code](tree, record)))
        except RequestError as wrong:
            answers.append((-1, wrong.error, "", ()))
    return encode_parts(answers)
