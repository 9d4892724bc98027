"""What a mutant is: a safeguard's name, and the source text that is replaced to switch it off.

Zone: pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from types import CodeType
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
    for start, edit in sorted(((_find_text(source, edit), edit) for edit in edits), reverse=True):
        source = source[:start] + edit.replacement + source[start + len(edit.text) :]
    return source


def compile_function(source: str, module: str, function: str, filename: str) -> CodeType:
    """The code of one function of a module. Raises StaleMutant if not exactly one has this name."""
    found = [code for code in _nested_code(_compile_module(source, filename)) if code.co_qualname == function]
    if len(found) != 1:
        raise StaleMutant(f"{module} has {len(found)} functions of the name {function}")
    return found[0]


@cache
def _compile_module(source: str, filename: str) -> CodeType:
    return compile(source, filename, "exec", dont_inherit=True)


def _find_text(source: str, edit: Edit) -> int:
    """Where in the source the text is. Raises StaleMutant unless its function has it once."""
    lines = source.splitlines(keepends=True)
    first, last = _function_lines(source, edit)
    body = "".join(lines[first - 1 : last])
    found = body.count(edit.text)
    if found != 1:
        raise StaleMutant(f"{edit.module}.{edit.function} has {edit.text!r} {found} times instead of once")
    return sum(map(len, lines[: first - 1])) + body.index(edit.text)


def _function_lines(source: str, edit: Edit) -> tuple[int, int]:
    """The first and last line of the function, with its decorators.

    They come from the compiled code. `ast` cannot be used: under Python 3.11 its parser fails if the garbage collector
    runs a finalizer meanwhile that parses as well, as one does that reports a warning with its source.
    """
    function = compile_function(source, edit.module, edit.function, edit.module)
    every = (function, *_nested_code(function))
    ends = (end for code in every for _, end, _, _ in code.co_positions() if end is not None)
    return function.co_firstlineno, max(ends)


def _nested_code(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _nested_code(constant)
