"""Switches a safeguard off, in this process, for as long as a run takes.

Zone: real. It reads the source of modules and changes functions that they have defined.

The module's source is compiled with the mutant's edits, and the edited functions get the code of this second
compilation; nothing of the second compilation is executed. An import hook would have to replace modules, but those
that imported names from them would keep the old functions: it needs a new process for each ablation, and must run
before the first import. Code that is exchanged within the function objects is in force wherever they are referred to,
and can be put back. Generators that have started keep the code that they started with, so a run begins and ends within
the ablation.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
from collections.abc import Iterator
from functools import cache
from types import CodeType, FunctionType

from ottla.sim.mutants.mutant import Mutant, compile_function, mutated_source
from ottla.sim.mutants.table import MUTANTS


@contextlib.contextmanager
def without_safeguard(name: str | None) -> Iterator[None]:
    """Run the body with this safeguard switched off; None: with all of them. One at a time."""
    replaced: list[tuple[FunctionType, CodeType]] = []
    try:
        for function, code in () if name is None else mutated_code(MUTANTS[name]):
            if is_mutated(function):
                raise RuntimeError(f"cannot switch {name} off: {function.__qualname__} lacks a safeguard already")
            replaced.append((function, function.__code__))
            function.__code__ = code
        yield
    finally:
        for function, code in replaced:
            function.__code__ = code


@cache
def mutated_code(mutant: Mutant) -> list[tuple[FunctionType, CodeType]]:
    """The functions that the mutant changes, and the code that they get. Raises StaleMutant."""
    changes = []
    for module in dict.fromkeys(edit.module for edit in mutant.edits):
        edits = [edit for edit in mutant.edits if edit.module == module]
        source = mutated_source(inspect.getsource(importlib.import_module(module)), edits)
        filename = f"<{module} without {mutant.name}>"
        names = dict.fromkeys(edit.function for edit in edits)
        changes += [(find_function(module, name), compile_function(source, module, name, filename)) for name in names]
    return changes


def is_mutated(function: FunctionType) -> bool:
    """Whether the function has the code of a mutant now."""
    return function.__code__.co_filename.startswith("<")


def find_function(module: str, qualified_name: str) -> FunctionType:
    """The function of this name; of a property its getter, of a decorated function the one within."""
    found: object = importlib.import_module(module)
    for name in qualified_name.split("."):
        found = vars(found)[name]
    if isinstance(found, property):
        found = found.fget
    if isinstance(found, staticmethod | classmethod):
        found = found.__func__
    found = inspect.unwrap(found)  # type: ignore[arg-type]
    assert isinstance(found, FunctionType), f"{module}.{qualified_name} is not a function"
    return found
