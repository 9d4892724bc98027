"""The mutants that switch safeguards off: each still matches the source, compiles, and is put back after a run."""

from __future__ import annotations

import builtins
import dis

import pytest

from ottla.sim.mutants.ablation import MUTANTS, find_function, is_mutated, mutated_code, without_safeguard
from ottla.sim.mutants.mutant import Edit, Mutant, StaleMutant, mutated_source

SOURCE = """
class Door:
    def open(self):
        if self.locked:
            raise ValueError
        return True

def open():
    if locked:
        return locked
"""


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=lambda mutant: mutant.name)
def test_every_mutant_matches_its_source_and_changes_each_function(mutant: Mutant) -> None:
    changes = mutated_code(mutant)
    assert {(f.__module__, f.__qualname__) for f, _ in changes} == {(e.module, e.function) for e in mutant.edits}
    for function, code in changes:
        assert (code.co_code, code.co_consts, code.co_names) != (
            function.__code__.co_code,
            function.__code__.co_consts,
            function.__code__.co_names,
        ), f"{mutant.name} leaves {function.__qualname__} as it is"
        known = {**vars(builtins), **function.__globals__}
        unknown = {step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"} - known.keys()
        assert not unknown, f"{mutant.name} uses names that {function.__module__} does not have"


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=lambda mutant: mutant.name)
def test_every_mutant_is_in_force_for_as_long_as_asked(mutant: Mutant) -> None:
    functions = [find_function(edit.module, edit.function) for edit in mutant.edits]
    before = [function.__code__ for function in functions]
    with without_safeguard(mutant.name):
        assert all(is_mutated(function) for function in functions)
    assert [function.__code__ for function in functions] == before
    assert not any(is_mutated(function) for function in functions)


def test_names_belong_to_one_mutant_and_have_a_sentence() -> None:
    assert all(mutant.name == name for name, mutant in MUTANTS.items())
    assert all(mutant.guards.endswith(".") and mutant.edits for mutant in MUTANTS.values())


def test_code_is_put_back_after_a_run_that_fails() -> None:
    name, mutant = next(iter(MUTANTS.items()))
    with pytest.raises(ZeroDivisionError), without_safeguard(name):
        raise ZeroDivisionError
    assert not any(is_mutated(find_function(edit.module, edit.function)) for edit in mutant.edits)


def test_a_function_loses_one_safeguard_at_a_time() -> None:
    name = next(iter(MUTANTS))
    with without_safeguard(name):
        with pytest.raises(RuntimeError, match="lacks a safeguard already"), without_safeguard(name):
            pytest.fail("it was applied twice")
        assert is_mutated(find_function(*MUTANTS[name].edits[0][:2]))


def test_nothing_is_switched_off_without_a_name() -> None:
    with without_safeguard(None):
        assert not any(
            is_mutated(find_function(edit.module, edit.function)) for m in MUTANTS.values() for edit in m.edits
        )


def test_only_the_named_function_is_edited() -> None:
    edited = mutated_source(SOURCE, [Edit("doors", "open", "if locked:", "if False:")])
    assert edited == SOURCE.replace("if locked:", "if False:")
    edited = mutated_source(SOURCE, [Edit("doors", "Door.open", "if self.locked:", "if False:")])
    assert edited == SOURCE.replace("if self.locked:", "if False:")


@pytest.mark.parametrize(
    ("function", "text", "reason"),
    [
        ("open", "if barred:", "0 times instead of once"),
        ("open", "locked", "2 times instead of once"),
        ("Door.open", "if locked:", "0 times instead of once"),
        ("close", "if locked:", "has 0 functions of the name close"),
        ("Door.close", "if locked:", "has 0 functions of the name Door.close"),
    ],
)
def test_a_mutant_that_the_source_has_left_behind_is_refused(function: str, text: str, reason: str) -> None:
    with pytest.raises(StaleMutant, match=reason):
        mutated_source(SOURCE, [Edit("doors", function, text, "pass")])
