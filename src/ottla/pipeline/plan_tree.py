"""The plan of a DataFrame as a tree: from Spark's own objects, or from the text that a Spark Connect session shows.

Zone: real. Asks Spark for the analyzed plan: it makes the physical plan of a streaming query only when it runs a batch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

MAX_CHARACTERS: Final = 16 << 20
"""A longer text is not parsed."""
_SECTION: Final = "== Analyzed Logical Plan =="
_NEXT: Final = "== Optimized Logical Plan =="
_ROOT: Final = re.compile(r"([~!'*]*)([A-Za-z]\w*)")
_CHILD: Final = re.compile(r"((?:[: ]  )*)[+:]- ([~!'*]*)([A-Za-z]\w*)")


class PlanNode(NamedTuple):
    """A node of a plan."""

    name: str
    streams: bool
    """Whether its rows come from a stream."""
    children: list[PlanNode]

    def all_nodes(self) -> Iterator[PlanNode]:
        """The node, and all that are below it."""
        yield self
        for each in self.children:
            yield from each.all_nodes()


def plan_of(frame: Any) -> PlanNode | None:
    """The analyzed plan of a DataFrame; None if it cannot be read."""
    if getattr(frame, "_jdf", None) is not None:
        return _copy_plan(frame._jdf.queryExecution().analyzed())
    explain = getattr(frame, "_explain_string", None)  # Spark Connect
    return None if explain is None else parse_plan(explain(extended=True))


def _copy_plan(plan: Any) -> PlanNode:
    children = plan.children()
    below = [_copy_plan(children.apply(number)) for number in range(children.size())]
    return PlanNode(str(plan.nodeName()), bool(plan.isStreaming()), below)


def parse_plan(text: str) -> PlanNode | None:
    """The analyzed plan in the text of `explain(extended=True)`; None if the text is cut or has another form."""
    if len(text) > MAX_CHARACTERS or text.count(_SECTION) != 1 or text.count(_NEXT) != 1:
        return None
    # After the title comes a line with the columns.
    _, _, *lines = text[text.index(_SECTION) : text.index(_NEXT)].split("\n")
    root = _ROOT.match(lines[0]) if lines else None
    if root is None:
        return None
    path = [_make_node(root[1], root[2])]
    for line in lines[1:]:
        # Other lines continue a constant in which there are ends of lines.
        if (found := _CHILD.match(line)) is None:
            continue
        depth = len(found[1]) // 3 + 1
        # A plan within an expression is deeper by two, and its place in the tree is not known.
        if depth > len(path):
            return None
        _close_nodes(path, depth)
        path[-1].children.append(node := _make_node(found[2], found[3]))
        path.append(node)
    _close_nodes(path, 1)
    return path[0]._replace(streams=_has_stream(path[0]))


def _make_node(marks: str, name: str) -> PlanNode:
    # Newer versions of Spark mark the nodes of streams with `~`.
    return PlanNode(name, "~" in marks or name.startswith("StreamingRelation"), [])


def _close_nodes(path: list[PlanNode], depth: int) -> None:
    """Shorten the path from the root; nodes above a stream are nodes of a stream."""
    while len(path) > depth:
        node = path.pop()
        path[-1].children[-1] = node._replace(streams=_has_stream(node))


def _has_stream(node: PlanNode) -> bool:
    return node.streams or any(each.streams for each in node.children)
