"""Plans of `ottla apply`, without a cluster: after its changes a plan has nothing to do."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.acls import AclBinding, AclEntry, Operation, PatternType, Permission, ResourcePattern, ResourceType
from ottla.cli.manifest.documents import change_document, state_document
from ottla.cli.manifest.parsing import parse_state
from ottla.cli.manifest.planning import plan_changes
from ottla.cli.manifest.state import Change, ClusterState, Password, TopicState, UserState
from ottla.cli.manifest.tree import parse_text, yaml_text
from ottla.client.admin.quotas import QuotaEntity
from ottla.client.admin.scram import ScramMechanism

EVERY_KIND = ("topics", "configs", "users", "acls", "quotas")
NAMES = st.sampled_from(["a", "b", "_c", "on", "1.5", "é: #x", "null", "- x"])
VALUES = st.sampled_from(["1", "007", "true", "True", "text", "a, b", "", "null", "1e3", "-0", "12:30", 'q"', "ü"])
SETTINGS = st.dictionaries(st.sampled_from(["k.one", "k.two", "k.three"]), VALUES)
WANTED_SETTINGS = st.dictionaries(st.sampled_from(["k.one", "k.two", "k.three"]), VALUES | st.none())
MECHANISMS = st.dictionaries(
    st.sampled_from([ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512]), st.integers(4096, 4098), min_size=1
)
BINDINGS = st.builds(
    AclBinding,
    st.builds(ResourcePattern, st.sampled_from([ResourceType.TOPIC, ResourceType.GROUP]), NAMES,
              st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED])),
    st.builds(AclEntry, st.just("User:x"), st.just("*"), st.just(Operation.READ),
              st.sampled_from([Permission.ALLOW, Permission.DENY])),
)  # fmt: skip
ENTITIES = st.builds(QuotaEntity, NAMES | st.none() | st.just(""), st.sampled_from(["c", None]), st.just(""))
RATES = st.sampled_from(["producer_byte_rate", "request_percentage"])


def states(*, wanted: bool) -> Any:
    """States of clusters, or those that files want."""
    values = WANTED_SETTINGS if wanted else SETTINGS
    rate = st.sampled_from([1.0, 2.5, None] if wanted else [1.0, 2.5])
    partitions = st.integers(3, 5) if wanted else st.integers(1, 3)
    topics = st.builds(TopicState, partitions, st.integers(1, 3), values, st.just(False))
    return st.builds(
        ClusterState,
        st.dictionaries(st.sampled_from("abc"), topics),
        st.fixed_dictionaries({"": values, "1": values}),
        st.dictionaries(NAMES, values),
        st.dictionaries(NAMES, st.builds(UserState, MECHANISMS, st.just(Password("P", "") if wanted else None))),
        st.lists(BINDINGS, max_size=4).map(dict.fromkeys),
        st.dictionaries(ENTITIES, st.dictionaries(RATES, rate, min_size=0 if wanted else 1)),
        st.just({}),
    )


def change_state(state: ClusterState, change: Change) -> None:
    """A cluster in memory makes one change."""
    item: Any = change.item
    table: Any = {"topic": state.topics, "user": state.users, "acl": state.acls, "quota": state.quotas}.get(change.kind)
    if change.kind == "settings":
        resource, values = item
        kept: Any = {4: state.brokers, 32: state.groups}.get(resource.kind)
        own = kept.setdefault(resource.name, {}) if kept is not None else state.topics[resource.name].settings
        merge_values(own, values)
    elif change.kind == "partitions":
        state.topics[change.name] = state.topics[change.name]._replace(partitions=item)
    elif change.kind == "replication":
        state.topics[change.name] = state.topics[change.name]._replace(replication_factor=item)
    elif change.kind == "quota":
        merge_values(table.setdefault(item[0], {}), item[1])
    elif change.kind == "user" and change.action == "delete":
        del table[item[0]].mechanisms[item[1]]
    elif change.kind == "user":
        table.setdefault(item[0], UserState({})).mechanisms[item[1]] = item[2]
    elif change.action == "delete":
        del table[item]
    else:
        table[change.name if change.kind == "topic" else item] = item if change.kind == "topic" else None


def merge_values(own: dict, values: dict) -> None:
    own |= values
    for key in [key for key, value in own.items() if value is None]:
        del own[key]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(states(wanted=False), states(wanted=True), st.sets(st.sampled_from(EVERY_KIND)))
def test_after_its_changes_a_plan_is_empty(present: ClusterState, wanted: ClusterState, prune: set[str]) -> None:
    first = plan_changes(present, wanted, prune, live_brokers=3)
    assert first.problems == []
    deletions = [change for change in first.changes if change.action == "delete" and change.kind != "quota"]
    assert bool(deletions) <= bool(prune), "nothing is deleted that is not pruned"
    for change in first.changes:
        assert json.dumps(change_document(change))
        assert change.describe_change()
        change_state(present, change)
    assert plan_changes(present, wanted, prune, live_brokers=3) == ([], [])


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(states(wanted=False))
def test_an_export_describes_the_same_state(present: ClusterState) -> None:
    document = state_document(present)
    for text in (yaml_text(document), json.dumps(document)):
        wanted, problems = parse_state(parse_text(text))
        assert problems == []
        assert plan_changes(present, wanted, EVERY_KIND, live_brokers=3) == ([], [])


def test_an_interrupted_reassignment_is_finished() -> None:
    present = ClusterState(topics={"t": TopicState(1, 2, {}, throttled=True)})
    wanted = ClusterState(topics={"t": TopicState(1, 2)})
    (change,) = plan_changes(present, wanted, live_brokers=2).changes
    assert (change.kind, change.name) == ("throttle", "t")
    assert plan_changes(present, ClusterState(topics={"t": TopicState(1)})).changes == []


def test_values_in_another_form_are_the_same() -> None:
    present = ClusterState(topics={"t": TopicState(1, 1, {"a": "TRUE", "b": "010", "c": "x, y", "secret": None})})
    same = ClusterState(topics={"t": TopicState(1, 1, {"a": "true", "b": "10", "c": "x,y", "secret": "word"})})
    assert plan_changes(present, same) == ([], [])
    other = ClusterState(topics={"t": TopicState(1, 1, {"c": "y,x"})})
    assert len(plan_changes(present, other).changes) == 1


def test_pruned_settings_return_to_their_defaults() -> None:
    present = ClusterState(topics={"t": TopicState(1, 1, {"a": "1", "b": "2"})})
    wanted = ClusterState(topics={"t": TopicState(1, 1, {"a": "1"})})
    assert plan_changes(present, wanted) == ([], [])
    (change,) = plan_changes(present, wanted, ["configs"]).changes
    assert (change.before, change.after) == ({"b": "2"}, {"b": None})
