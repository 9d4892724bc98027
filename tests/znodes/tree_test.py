"""The data model against an independent one: a dictionary that is copied before every multi.

Zone: real.
"""

from __future__ import annotations

import contextlib
import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.seams import Op
from ottla.znodes import tree
from ottla.znodes.tree import BadPath, Change, Refused, Tree, Verb, check_path

SESSION = 7
NAMES = st.sampled_from(["a", "b", "c"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map(lambda names: "/" + "/".join(names))
OPS = st.builds(
    Op,
    st.sampled_from(["check", "put", "create", "ephemeral", "sequential", "delete"]),
    PATHS,
    st.binary(max_size=3),
    st.integers(-1, 2),
)


class Model:
    """A simple and slow model of ZooKeeper by its documentation."""

    def __init__(self) -> None:
        self.nodes = {"/": {"data": b"", "version": 0, "made": 0, "owner": 0}}

    def multi(self, ops, session):
        before = copy.deepcopy(self.nodes)
        try:
            return [self.one(op, session) for op in ops]
        except LookupError:
            self.nodes = before
            return None

    def kids(self, path):
        start = path.rstrip("/") + "/"
        return [p for p in self.nodes if p != "/" and p.startswith(start) and "/" not in p[len(start) :]]

    def one(self, op, session):
        parent = op.path.rpartition("/")[0] or "/"
        if op.verb in ("create", "ephemeral", "sequential"):
            above = self.nodes.get(parent)
            if above is None or above["owner"]:
                raise LookupError
            path = f"{op.path}{above['made']:010d}" if op.verb == "sequential" else op.path
            if path in self.nodes:
                raise LookupError
            owner = session if op.verb == "ephemeral" else 0
            self.nodes[path] = {"data": op.data, "version": 0, "made": 0, "owner": owner}
            above["made"] += 1
            return path, 0
        node = self.nodes.get(op.path)
        if node is None or op.version not in (-1, node["version"]):
            raise LookupError
        if op.verb == "check":
            return op.path, op.version
        if op.verb == "put":
            node["data"], node["version"] = op.data, node["version"] + 1
            return op.path, node["version"]
        if self.kids(op.path):
            raise LookupError
        del self.nodes[op.path]
        self.nodes[parent]["made"] += 1
        return op.path, -1


def new_tree() -> Tree:
    tree = Tree()
    tree.apply([Change(Verb.OPEN, "", owner=SESSION)], 1, 0)
    return tree


@pytest.mark.slow
@given(st.lists(st.lists(OPS, min_size=1, max_size=4), max_size=20))
def test_multis_equal_the_model(multis):
    tree, model, zxid = new_tree(), Model(), 2
    for ops in multis:
        expected = model.multi(ops, SESSION)
        try:
            changes, results = tree.draft_changes(ops, SESSION)
        except Refused:
            results = None
        else:
            tree.apply(changes, zxid, 0)
            zxid += max(1, len(changes))
        assert results == expected
        assert {path: (node.data, node.version, node.owner) for path, node in tree.nodes.items()} == {
            path: (node["data"], node["version"], node["owner"]) for path, node in model.nodes.items()
        }
        for path in tree.nodes:
            assert tree.get_children(path) == sorted(kid.rpartition("/")[2] for kid in model.kids(path))


@given(st.lists(OPS, min_size=1, max_size=4))
def test_a_draft_changes_nothing(ops):
    tree = new_tree()
    tree.apply(tree.draft_changes([Op("create", "/a"), Op("create", "/b")], SESSION)[0], 2, 0)
    before = {path: (node.data, node.version, dict(node.children)) for path, node in tree.nodes.items()}
    with contextlib.suppress(Refused):
        tree.draft_changes(ops, SESSION)
    assert before == {path: (node.data, node.version, dict(node.children)) for path, node in tree.nodes.items()}


def test_the_end_of_a_session_removes_its_ephemeral_nodes():
    tree = new_tree()
    tree.apply(tree.draft_changes([Op("create", "/ids"), Op("ephemeral", "/ids/1", b"x")], SESSION)[0], 2, 0)
    assert tree.get_node("/ids/1").owner == SESSION
    tree.apply(tree.closing_changes(SESSION), 10, 0)
    assert tree.get_node("/ids/1") is None
    assert tree.get_node("/ids") is not None
    assert tree.ephemerals == {}


def test_stat_fields_count_as_in_zookeeper():
    tree = new_tree()
    tree.apply(tree.draft_changes([Op("create", "/a")], SESSION)[0], 5, 100)
    tree.apply(tree.draft_changes([Op("put", "/a", b"1")], SESSION)[0], 6, 200)
    tree.apply(tree.draft_changes([Op("create", "/a/b")], SESSION)[0], 7, 300)
    tree.apply(tree.draft_changes([Op("delete", "/a/b")], SESSION)[0], 8, 400)
    node = tree.nodes["/a"]
    assert (node.czxid, node.mzxid, node.pzxid) == (5, 6, 8)
    assert (node.ctime, node.mtime) == (100, 200)
    assert (node.version, node.cversion) == (1, 2)


@pytest.mark.parametrize(
    "path", ["", "a", "/a/", "//", "/a//b", "/.", "/a/../b", "/a\x00b", "/\ud800", "/" + "x" * 5000]
)
def test_invalid_paths_are_refused(path):
    with pytest.raises(BadPath):
        check_path(path)
    with pytest.raises(BadPath):
        new_tree().draft_changes([Op("create", path)], SESSION)


def test_data_has_a_limit():
    with pytest.raises(Refused, match="limit"):
        new_tree().draft_changes([Op("create", "/a", bytes(2**20))], SESSION)


def test_children_stay_sorted_without_another_sort(monkeypatch):
    made = Tree()
    path = "/topics"

    def run(*ops: Op) -> None:
        changes, _ = made.draft_changes(ops, 0)
        made.apply(changes, 1, 1)

    run(Op("create", path))
    run(*(Op("create", f"{path}/{number:03d}") for number in range(0, 100, 2)))
    before = made.get_children(path)
    sorts = []
    monkeypatch.setattr(tree, "sorted", lambda names: sorts.append(names) or sorted(names), raising=False)
    run(Op("create", f"{path}/051"), Op("delete", f"{path}/000"), Op("delete", f"{path}/098"))
    assert made.get_children(path) == sorted([*before[1:-1], "051"])
    assert len(before) == 50
    assert not sorts
