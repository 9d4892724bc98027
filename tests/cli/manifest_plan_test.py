"""Plans of `ottla apply`, without a cluster: after its changes a plan has nothing to do."""

from __future__ import annotations

import json
from dataclasses import replace
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
from ottla.client.admin.types import NewTopic
from ottla.pipeline.definitions.definition import MAX_PIPELINES, PipelineDefinition, UnreadableDefinition

EVERY_KIND = ("topics", "configs", "users", "acls", "quotas", "pipelines")
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
PIPELINE_NAMES = st.sampled_from(["shop", "stock", "a.b_c-D", "1.5", "on", "null"])
DEFINITIONS = st.builds(
    PipelineDefinition,
    st.sampled_from(["shop.py", "sub/new shop.py", "ü/on.py"]),
    st.sampled_from(["running", "paused"]),
    st.sampled_from([None, "5s", "500ms", "1h30m"]),
    st.sampled_from([None, 0, 2**31 - 1]),
)


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
        st.dictionaries(PIPELINE_NAMES, DEFINITIONS),
        st.just({}),
        st.just(NewTopic("definitions", 1, -1, {"cleanup.policy": "compact"})),
        st.just(False) if wanted else st.booleans(),
    ).map(lambda state: replace(state, lacks_pipelines_topic=state.lacks_pipelines_topic and not state.pipelines))


def change_state(state: ClusterState, change: Change) -> None:
    """A cluster in memory makes one change."""
    item: Any = change.item
    table: Any = {"topic": state.topics, "user": state.users, "acl": state.acls, "quota": state.quotas}.get(change.kind)
    if change.kind == "pipeline":
        if item[1] is None:
            del state.pipelines[item[0]]
        else:
            assert not state.lacks_pipelines_topic, "the topic comes first"
            state.pipelines[item[0]] = item[1]
    elif change.kind == "topic" and change.name == "definitions":
        state.lacks_pipelines_topic = False
    elif change.kind == "settings":
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


def test_pipelines_are_compared_field_by_field_and_stopped_before_their_topics_go() -> None:
    present = ClusterState(
        topics={"orders": TopicState(1, 1)},
        pipelines={"shop": PipelineDefinition("shop.py", trigger="5s"), "stock": PipelineDefinition("stock.py"),
                   "broken": UnreadableDefinition("its record is not JSON")},
    )  # fmt: skip
    wanted = ClusterState(
        topics={},
        pipelines={"shop": PipelineDefinition("shop.py", "paused"), "new": PipelineDefinition("new.py"),
                   "broken": PipelineDefinition("broken.py")},
    )  # fmt: skip
    plan = plan_changes(present, wanted, ["topics", "pipelines"])
    assert plan.problems == []
    assert [each.describe_change() for each in plan.changes] == [
        "~ pipeline shop: state running → paused, trigger 5s → default",
        "+ pipeline new: file=new.py, state=running",
        "~ pipeline broken: file=broken.py, state=running",
        "- pipeline stock",
        "- topic orders",
    ]
    assert [each.action for each in plan_changes(present, wanted).changes] == ["change", "create", "change"]


def test_a_definition_of_a_later_version_is_named_and_neither_written_nor_deleted() -> None:
    present = ClusterState(pipelines={"shop": UnreadableDefinition("its record has version 2", is_newer=True)})
    for wanted in ({"shop": PipelineDefinition("shop.py")}, {}):
        plan = plan_changes(present, ClusterState(pipelines=wanted), ["pipelines"])
        assert plan.changes == []
        (problem,) = plan.problems
        assert problem.path == "pipelines.shop"
        assert "is not changed: its record has version 2" in problem.message
    assert plan_changes(present, ClusterState(pipelines={})) == ([], [])


def test_the_topic_of_definitions_is_created_once_and_never_pruned() -> None:
    topic = NewTopic("pipes", 1, -1, {"cleanup.policy": "compact"})
    lacking = ClusterState(pipelines={}, topics={}, pipelines_topic=topic, lacks_pipelines_topic=True)
    wanted = ClusterState(pipelines={"shop": PipelineDefinition("shop.py")})
    assert [(each.kind, each.name) for each in plan_changes(lacking, wanted).changes] == [
        ("topic", "pipes"), ("pipeline", "shop"),
    ]  # fmt: skip
    wanted.topics = {"pipes": TopicState(1, 2, {"cleanup.policy": "compact"})}
    assert [(each.kind, each.after) for each in plan_changes(lacking, wanted, live_brokers=2).changes] == [
        ("topic", {"partitions": 1, "replication_factor": 2, "cleanup.policy": "compact"}),
        ("pipeline", {"file": "shop.py", "state": "running"}),
    ]
    assert plan_changes(lacking, ClusterState(pipelines={})) == ([], [])
    there = ClusterState(pipelines={}, topics={"pipes": TopicState(1, 1)}, pipelines_topic=topic)
    assert plan_changes(there, ClusterState(topics={}), ["topics"]) == ([], [])


def test_a_service_cannot_run_more_pipelines_than_its_limit() -> None:
    many = {f"p{number}": PipelineDefinition("p.py") for number in range(MAX_PIPELINES)}
    wanted = ClusterState(pipelines={"one-more": PipelineDefinition("p.py")})
    plan = plan_changes(ClusterState(pipelines=many), wanted)
    assert "at most 100 pipelines" in plan.problems[0].message
    assert plan_changes(ClusterState(pipelines=many), wanted, ["pipelines"]).problems == []


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
