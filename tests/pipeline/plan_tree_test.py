"""Plans from the text of Spark Connect: `tests/spark/connect_test.py` has those of a real session."""

from __future__ import annotations

import pytest

from ottla.pipeline import plan_tree
from ottla.pipeline.plan_tree import parse_plan

JOIN = """\
== Parsed Logical Plan ==
'UnresolvedDeduplicate DeduplicateKeyColumns(List(key)), false, false
+- 'Join UsingJoin(Inner, [key])

== Analyzed Logical Plan ==
key: binary, value: binary
~Deduplicate [key#85]
+- ~Project [key#85, value#86]
   +- ~Join Inner, (key#85 = key#109)
      :- ~Filter NOT (value#86 = cast(a
Join b as binary))
      :  +- ~StreamingRelationV2 PythonDataSourceV2@66643f4e, ottla, [subscribe=a], [key#85, value#86]
      +- SubqueryAlias b
         +- Relation [key#109,value#110] parquet

== Optimized Logical Plan ==
~Deduplicate [key#85]

== Physical Plan ==
StreamingDeduplicate [key#85]
"""


def test_the_analyzed_plan_is_a_tree() -> None:
    plan = parse_plan(JOIN)
    assert plan is not None
    names = [node.name for node in plan.all_nodes()]
    assert names == ["Deduplicate", "Project", "Join", "Filter", "StreamingRelationV2", "SubqueryAlias", "Relation"]
    join = plan.children[0].children[0]
    assert [(each.name, each.streams) for each in join.children] == [("Filter", True), ("SubqueryAlias", False)]


def test_nodes_of_streams_are_known_without_marks() -> None:
    """As in older versions of Spark."""
    marked, plain = parse_plan(JOIN), parse_plan(JOIN.replace("~", ""))
    assert marked is not None
    assert plain is not None
    assert [node.streams for node in plain.all_nodes()] == [node.streams for node in marked.all_nodes()]


def test_a_constant_can_add_a_node_and_hide_none() -> None:
    plan = parse_plan(JOIN.replace("\nJoin b as", "\n         +- Sort b as"))
    assert plan is not None
    names = [node.name for node in plan.all_nodes()]
    assert set(names) == {
        "Deduplicate",
        "Project",
        "Join",
        "Filter",
        "Sort",
        "StreamingRelationV2",
        "SubqueryAlias",
        "Relation",
    }


@pytest.mark.parametrize(
    "text",
    [
        "",
        JOIN[: JOIN.index("== Optimized")] + "... 1234 more characters",
        JOIN.replace("cast(a", "cast(\n== Optimized Logical Plan ==\n"),
        JOIN.replace("\nJoin b as", "\n+- Join b as"),
        JOIN.replace("+- ~Project", "      +- ~Project"),
        JOIN.replace("~Deduplicate [key#85]\n+- ~Project", "...\n+- ~Project"),
    ],
)
def test_a_text_of_another_form_is_no_plan(text: str) -> None:
    assert parse_plan(text) is None


def test_a_long_text_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_tree, "MAX_CHARACTERS", len(JOIN) - 1)
    assert parse_plan(JOIN) is None
