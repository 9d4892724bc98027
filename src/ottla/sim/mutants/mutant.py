"""What a mutant is: a safeguard's name, and the source text that is replaced to switch it off.

Zone: pure.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import NamedTuple


class Edit(NamedTuple):
    """One replacement in the source of a function."""

    module: str
    function: str
    """The qualified name. Of a function within another one the outer one is named."""
    text: str
    """Occurs exactly once in the function, else the mutant does not apply."""
    replacement: str


class Mutant(NamedTuple):
    """One safeguard that can be switched off."""

    name: str
    guards: str
    """What the safeguard ensures, in a sentence."""
    edits: tuple[Edit, ...]


class StaleMutant(Exception):
    """The source has changed since the mutant was written: its row in the table has to follow."""


def mutated_source(source: str, edits: Sequence[Edit]) -> str:
    """The module's source with these edits. Raises StaleMutant."""
    for edit in edits:
        start, end = _function_span(source, edit)
        body = source[start:end]
        found = body.count(edit.text)
        if found != 1:
            raise StaleMutant(f"{edit.module}.{edit.function} has {edit.text!r} {found} times instead of once")
        source = source[:start] + body.replace(edit.text, edit.replacement) + source[end:]
    return source


def _function_span(source: str, edit: Edit) -> tuple[int, int]:
    """The characters of the function's lines, without its decorators."""
    scope: ast.AST = ast.parse(source)
    for name in edit.function.split("."):
        scope = _child_named(scope, name, edit)
    assert isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef), f"{edit.function} is not a function"
    assert scope.end_lineno is not None
    lines = source.splitlines(keepends=True)
    start = sum(map(len, lines[: scope.lineno - 1]))
    return start, start + sum(map(len, lines[scope.lineno - 1 : scope.end_lineno]))


def _child_named(scope: ast.AST, name: str, edit: Edit) -> ast.AST:
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == name:
            return node
    raise StaleMutant(f"{edit.module} has no function {edit.function}")
