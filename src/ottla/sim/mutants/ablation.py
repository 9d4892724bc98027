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
from typing import Final

from ottla.sim.mutants.clients import CLIENTS
from ottla.sim.mutants.containment import CONTAINMENT
from ottla.sim.mutants.controller import CONTROLLER
from ottla.sim.mutants.coordinators import GROUPS, TRANSACTIONS
from ottla.sim.mutants.mutant import Mutant, compile_function, mutated_source
from ottla.sim.mutants.replication import REPLICATION
from ottla.sim.mutants.security import SECURITY
from ottla.sim.mutants.storage import STORAGE

_ROOMS: Final = (STORAGE, CONTAINMENT, REPLICATION, CONTROLLER, TRANSACTIONS, GROUPS, CLIENTS, SECURITY)
MUTANTS: Final[dict[str, Mutant]] = {mutant.name: mutant for room in _ROOMS for mutant in room}
"""All mutants by name. Names of the storage are plain; those of another package begin with the package."""
_originals: dict[FunctionType, CodeType] = {}
"""The code of the functions that lack a safeguard now."""


@contextlib.contextmanager
def without_safeguard(name: str | None) -> Iterator[None]:
    """Run the body with this safeguard switched off; None: with all of them. A function can lack one at a time."""
    with without_mutant(None if name is None else MUTANTS[name]):
        yield


@contextlib.contextmanager
def without_mutant(mutant: Mutant | None) -> Iterator[None]:
    """Run the body with the safeguard of a mutant switched off, also of one that is not in `MUTANTS`."""
    changes = [] if mutant is None else mutated_code(mutant)
    if mutant is not None and any(is_mutated(function) for function, _ in changes):
        raise RuntimeError(f"cannot switch {mutant.name} off: one of its functions lacks a safeguard already")
    try:
        for function, code in changes:
            _originals[function], function.__code__ = function.__code__, code
        yield
    finally:
        for function, _ in changes:
            function.__code__ = _originals.pop(function, function.__code__)


@cache
def mutated_code(mutant: Mutant) -> list[tuple[FunctionType, CodeType]]:
    """The functions that the mutant changes, and the code that they get. Raises StaleMutant."""
    changes = []
    for name in dict.fromkeys(edit.module for edit in mutant.edits):
        edits = [edit for edit in mutant.edits if edit.module == name]
        module = importlib.import_module(name)
        source = mutated_source(inspect.getsource(module), edits)
        # The code gets the name of its file: runs with defects choose calls by it, and log lines quote it.
        filename = str(module.__file__)
        functions = dict.fromkeys(edit.function for edit in edits)
        changes += [(find_function(name, each), compile_function(source, name, each, filename)) for each in functions]
    return changes


def is_mutated(function: FunctionType) -> bool:
    """Whether the function has the code of a mutant now."""
    return function in _originals


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
