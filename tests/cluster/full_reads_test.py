"""Changes while all ACLs, or all delegation tokens, are read: at each step of the read, the newest stays.

Zone: deterministic. A session with the metadata store that answers one request at a time, in their order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from tests.security.still_clock import StillClock

from ottla.acls import AclEntry, Operation, PatternType, Permission, ResourcePattern, ResourceType
from ottla.cluster.acls.acl_store import AclStore
from ottla.cluster.store.notification_feed import NODES_AT_ONCE
from ottla.cluster.store.watches import WatchedStore
from ottla.cluster.store.workflow import run_workflow
from ottla.cluster.tokens.token_store import TokenStore
from ottla.purgatory.purgatory import Purgatory
from ottla.seams import Op
from ottla.security.authorization.authorizer import Authorizer
from ottla.security.tokens.token_table import TokenTable
from ottla.sim.entropy import Streams
from ottla.znodes.acl_nodes import PERSISTENT_ACL_PATHS, acl_path, change_of, encode_acls
from ottla.znodes.token_nodes import (
    PERSISTENT_TOKEN_PATHS,
    TOKEN_CHANGE,
    TokenInfo,
    encode_token,
    token_path,
)
from ottla.znodes.tree import Tree

STEPS: Final = 60
"""More answers than a read of all takes."""
TOPIC_T, TOPIC_U = (ResourcePattern(ResourceType.TOPIC, name, PatternType.LITERAL) for name in "tu")
GROUP_G = ResourcePattern(ResourceType.GROUP, "g", PatternType.PREFIXED)
DENIAL = frozenset({AclEntry("User:ann", "*", Operation.READ, Permission.DENY)})
ALLOWANCE = frozenset({AclEntry("User:ann", "*", Operation.READ, Permission.ALLOW)})


class SteppedStore:
    """A metadata store that answers when it is told to, with the state of that moment."""

    def __init__(self) -> None:
        self.watched = WatchedStore(self)  # type: ignore[arg-type]
        self._tree = Tree()
        self._zxid = 0
        self._requests: deque[Callable[[], None]] = deque()
        self._watches: set[str] = set()

    def get_node(self, path: str, _watch: bool, done: Callable[[Any], None]) -> None:
        self._requests.append(lambda: done(self._tree.get_node(path)))

    def get_children(self, path: str, watch: bool, done: Callable[[Any], None]) -> None:
        def answer() -> None:
            if watch:
                self._watches.add(path)
            done(self._tree.get_children(path))

        self._requests.append(answer)

    def submit_ops(self, _lane: str, ops: Sequence[Op], done: Callable[[Any], None]) -> None:
        self._requests.append(lambda: done(self.change_nodes(*ops)))

    def change_nodes(self, *ops: Op) -> list[tuple[str, int]]:
        """Change nodes at once, as another broker does; watches fire."""
        changes, results = self._tree.draft_changes(ops, 0)
        self._zxid += 1
        for event in self._tree.apply(changes, self._zxid, 0):
            if event.children and event.path in self._watches:
                self._watches.discard(event.path)
                self._requests.append(lambda path=event.path: self.watched.on_node_changed(path))  # type: ignore[misc]
        return results

    def answer_requests(self, most: int = 10_000) -> None:
        """Answer that many requests, if there are so many."""
        while most and self._requests:
            most -= 1
            self._requests.popleft()()


def op_for(path: str, content: bytes | None, is_known: bool) -> Op:
    if content is None:
        return Op("delete", path)
    return Op("put" if is_known else "create", path, content)


# -- ACLs --------------------------------------------------------------------------------------------------------------


def set_acls(
    store: SteppedStore, resource: ResourcePattern, entries: frozenset[AclEntry], is_known: bool = False
) -> None:
    change = change_of(resource)
    op = op_for(acl_path(resource), encode_acls(entries) if entries else None, is_known)
    store.change_nodes(op, Op("sequential", change.path_prefix, change.data))


class AclReader:
    """A broker that has read all ACLs in an earlier session."""

    def __init__(self) -> None:
        self.store, self.authorizer, clock = SteppedStore(), Authorizer(), StillClock()
        self.store.change_nodes(*(Op("create", path) for path in PERSISTENT_ACL_PATHS))
        set_acls(self.store, TOPIC_T, ALLOWANCE)
        self.acls = AclStore(self.store.watched, self.authorizer, clock, Purgatory(clock))
        self.start_reading()
        self.store.answer_requests()

    def start_reading(self) -> None:
        run_workflow(self.store.watched, self.acls.read_all(), lambda outcome: None)

    def known(self) -> dict[ResourcePattern, frozenset[AclEntry]]:
        index = self.authorizer.acls
        return {resource: frozenset(index.entries_at(resource)) for resource in index.select_resources()}


def test_acls_that_change_while_all_are_read_are_the_newest_afterwards() -> None:
    for step in range(STEPS):
        reader = AclReader()
        assert reader.known() == {TOPIC_T: ALLOWANCE}
        reader.start_reading()
        reader.store.answer_requests(step)
        set_acls(reader.store, TOPIC_U, DENIAL)
        set_acls(reader.store, GROUP_G, DENIAL)
        set_acls(reader.store, TOPIC_T, frozenset(), is_known=True)
        reader.store.answer_requests()
        assert reader.known() == {TOPIC_U: DENIAL, GROUP_G: DENIAL}, step


def test_an_acl_that_this_broker_creates_while_all_are_read_stays() -> None:
    for step in range(STEPS):
        reader = AclReader()
        reader.start_reading()
        reader.store.answer_requests(step)
        change = reader.acls.change_acls(TOPIC_U, lambda entries: entries | DENIAL)
        run_workflow(reader.store.watched, change, lambda outcome: None)
        reader.store.answer_requests()
        assert reader.known() == {TOPIC_T: ALLOWANCE, TOPIC_U: DENIAL}, step


# -- delegation tokens -------------------------------------------------------------------------------------------------


def token(token_id: str) -> TokenInfo:
    return TokenInfo(token_id, "User:ann", "User:ann", (), 0, 9, 9)


def set_token(store: SteppedStore, token_id: str, info: TokenInfo | None, is_known: bool = False) -> None:
    op = op_for(token_path(token_id), encode_token(info) if info else None, is_known)
    store.change_nodes(op, Op("sequential", TOKEN_CHANGE, token_id.encode()))


class TokenReader:
    """A broker that has read all tokens in an earlier session."""

    def __init__(self) -> None:
        self.store, self.table, clock = SteppedStore(), TokenTable("key", Streams(1)), StillClock()
        for path in PERSISTENT_TOKEN_PATHS:
            self.store.change_nodes(Op("create", path))
        set_token(self.store, "old", token("old"))
        self.tokens = TokenStore(self.store.watched, self.table, clock, Purgatory(clock))
        self.start_reading()
        self.store.answer_requests()

    def start_reading(self) -> None:
        run_workflow(self.store.watched, self.tokens.read_all(), lambda outcome: None)


def test_tokens_that_change_while_all_are_read_are_the_newest_afterwards() -> None:
    for step in range(20):
        reader = TokenReader()
        assert set(reader.table.tokens) == {"old"}
        reader.start_reading()
        reader.store.answer_requests(step)
        set_token(reader.store, "new", token("new"))
        set_token(reader.store, "old", None)
        reader.store.answer_requests()
        assert reader.table.tokens == {"new": token("new")}, step


def test_a_token_that_this_broker_creates_while_all_are_read_stays() -> None:
    """Its client logs in with it next: it is there before this broker reads its own notification."""
    reader = TokenReader()
    for number in range(NODES_AT_ONCE + 10):
        set_token(reader.store, f"t{number}", token(f"t{number}"))
    reader.store.answer_requests()
    created, found = list[object](), list[bool]()
    run_workflow(reader.store.watched, reader.tokens.read_all(), lambda _: found.append("new" in reader.table.tokens))
    reader.store.answer_requests(NODES_AT_ONCE // 2)  # the names, and the first tokens
    run_workflow(reader.store.watched, reader.tokens.create_token(token("new")), created.append)
    while not found:
        reader.store.answer_requests(1)
    assert (len(created), found) == (1, [True])


def test_a_token_whose_notification_was_removed_before_it_was_read_is_forgotten() -> None:
    reader = TokenReader()
    set_token(reader.store, "old", None)
    reader.store.answer_requests(2)  # the watch, and the names of the notifications
    reader.store.change_nodes(Op("delete", f"{TOKEN_CHANGE}0000000001"))
    reader.store.answer_requests()
    assert reader.table.tokens == {}
