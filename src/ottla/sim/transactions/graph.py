"""Rings in a graph (Tarjan's strongly connected components, without recursion).

Zone: pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Generic, TypeVar

N = TypeVar("N")


def rings(edges: Mapping[N, Sequence[N]]) -> Iterator[list[N]]:
    """Sets of nodes that can all reach each other, with more than one member. Every node is a key of `edges`."""
    search = _Search(edges)
    for node in edges:
        if node not in search.index:
            yield from search.walk(node)


class _Search(Generic[N]):
    def __init__(self, edges: Mapping[N, Sequence[N]]) -> None:
        self._edges = edges
        self.index: dict[N, int] = {}
        self._low: dict[N, int] = {}
        self._stack: dict[N, None] = {}

    def _enter(self, node: N) -> tuple[N, Iterator[N]]:
        self.index[node] = self._low[node] = len(self.index)
        self._stack[node] = None
        return node, iter(self._edges[node])

    def walk(self, root: N) -> Iterator[list[N]]:
        """Components that can be reached from a node."""
        path = [self._enter(root)]
        while path:
            node, targets = path[-1]
            for target in targets:
                if target not in self.index:
                    path.append(self._enter(target))
                    break
                if target in self._stack:
                    self._low[node] = min(self._low[node], self.index[target])
            else:
                path.pop()
                if path:
                    above = path[-1][0]
                    self._low[above] = min(self._low[above], self._low[node])
                if self._low[node] == self.index[node]:
                    component = self._leave(node)
                    if len(component) > 1:
                        yield component

    def _leave(self, node: N) -> list[N]:
        component = []
        while True:
            member, _ = self._stack.popitem()
            component.append(member)
            if member == node:
                return component[::-1]
