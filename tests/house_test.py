"""The numbers of the house: none is worse than its limit in tools/house.toml, and the script counts correctly."""

from __future__ import annotations

import ast
import re

import pytest
from tools import house
from tools.house import WORSE, House, Limit, Number
from tools.source import Module, find_cycles, inherited_methods, lines_of, methods_left_to_subclasses


def number(value: float, *, at_most: bool = True) -> Number:
    return Number("one-word-functions", "a number", value, at_most, [])


def module_of(text: str) -> Module:
    module = Module.__new__(Module)
    module.path, module.name, module.is_package = house.ROOT / "src" / "ottla" / "x.py", "ottla.x", False
    module.text, module.tree = text, ast.parse(text)
    return module


@pytest.mark.slow  # 750 files are parsed; `make lint` runs the same
def test_no_number_is_worse_than_its_limit() -> None:
    numbers, limits = House().numbers(), house.read_limits()
    assert [each.key for each in numbers] == list(limits), "tools/house.toml has another row than the script"
    worse = [each for each in numbers if house.judge(each, limits[each.key]) == WORSE]
    assert worse == [], house.render_table(worse, limits, worst=True)


@pytest.mark.parametrize(
    ("value", "at_most", "verdict"),
    [(35, True, "ok"), (35.04, True, "ok"), (36, True, "over"), (60.1, True, WORSE), (70, False, "ok")],
)
def test_a_number_is_judged_as_it_is_printed(value: float, at_most: bool, verdict: str) -> None:
    assert house.judge(number(value, at_most=at_most), Limit(35, 60)) == verdict


def test_a_limit_is_only_ever_tightened() -> None:
    limits = {"one-word-functions": Limit(35, 60)}
    assert "one-word-functions = [35, 59.5]" in house.tighten([number(59.5)], limits)
    assert "one-word-functions = [35, 60]" in house.tighten([number(61)], limits)
    assert "one-word-functions = [35, 61]" in house.tighten([number(61, at_most=False)], limits)


def test_functions_are_found_wherever_they_are() -> None:
    text = '''
class Reader(Protocol):
    def read(self, a, *, b=None): ...

def outer():
    """Two lines
    of docstring."""
    if True:
        async def inner(x): pass
'''
    found = {each.name: each for each in module_of(text).functions}
    assert {name: each.parameters for name, each in found.items()} == {"read": 2, "outer": 0, "inner": 1}
    assert [name for name, each in found.items() if each.in_protocol] == ["read"]
    assert found["outer"].lines == 3
    assert lines_of(ast.parse("def f():\n    pass").body[0]) == 2  # type: ignore[arg-type]


def test_prose_is_docstrings_and_comments_and_no_other_text() -> None:
    text = '"""Head."""\n# a comment\nx = 1  # behind code\n"""What x is."""\ny = """\n# text"""\ncall("argument")\n'
    assert list(module_of(text).prose()) == ["Head.", "What x is.", "a comment"]


def test_idioms_are_counted_at_the_beginning_of_a_sentence_and_inside() -> None:
    text = "Whoever asks is told anew, and whoever does not goes on. Nobody waits. What waits goes on, too."
    counts = {name: len(re.findall(pattern, text, re.IGNORECASE)) for name, pattern in house.IDIOMS.items()}
    assert {name: count for name, count in counts.items() if count} == {
        "anew": 1, "whoever": 2, "nobody": 1, "told": 1, "goes-on": 2, "too": 1, "what-at-start": 1,
    }  # fmt: skip
    assert len(house.REFUSED.findall(text)) == 7


def test_imports_count_at_the_top_and_for_types_but_not_in_functions() -> None:
    text = (
        "import ottla.a\nfrom ottla import b\nfrom ottla.c import name\nimport os\n"
        "if TYPE_CHECKING:\n    from ottla.d import D\ndef f():\n    import ottla.e\n"
    )
    known = frozenset({"ottla", "ottla.a", "ottla.b", "ottla.c", "ottla.d", "ottla.e"})
    assert module_of(text).imports(known) == {"ottla.a", "ottla.b", "ottla.c", "ottla.d"}


def test_methods_of_an_object_include_those_of_its_bases_in_the_tree() -> None:
    text = """
class Base(dict):
    def __init__(self): pass
    def read(self): pass

class Log(Base, Generic[T]):
    def read(self): pass
    @property
    def size(self): pass
    @size.setter
    def size(self, value): pass
"""
    classes = {each.name: each for each in module_of(text).classes}
    assert inherited_methods(classes, "ottla.x.Log") == {"__init__", "read", "size"}


def test_bases_are_found_through_imports_only() -> None:
    below = module_of("class Group:\n    def a(self): pass\n")
    above = module_of("from click import Group\nclass Lazy(Group):\n    def b(self): pass\n")
    classes = {each.name: each for module in (below, above) for each in module.classes}
    assert inherited_methods(classes, "ottla.x.Lazy") == {"b"}
    above = module_of("from ottla.x import Group as Base\nclass Lazy(Base):\n    def b(self): pass\n")
    classes = {each.name: each for module in (below, above) for each in module.classes}
    assert inherited_methods(classes, "ottla.x.Lazy") == {"a", "b"}


@pytest.mark.parametrize(("base", "found"), [("", ["close"]), ("(Protocol[T])", []), ("(abc.ABC)", [])])
def test_a_method_is_left_to_subclasses_if_its_base_only_refuses_it(base: str, found: list[str]) -> None:
    text = f'''
class Queue{base}:
    def close(self):
        """Close."""
        raise AssertionError("a subclass does it")
    def fail(self):
        raise AssertionError("not for a subclass")
    def check(self):
        if self.wrong:
            raise AssertionError

class Between(Queue): pass

class Connection(Between):
    def close(self): pass
    def check(self): pass
'''
    classes = {each.name: each for each in module_of(text).classes}
    assert methods_left_to_subclasses(classes) == [f"src/ottla/x.py:Queue.{name}" for name in found]


def test_cycles_do_not_contain_what_leads_to_them() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": {"e"}, "e": {"f"}, "f": {"d"}, "g": {"a"}}
    assert find_cycles(graph) == [["d", "e", "f"], ["b", "c"]]
    assert find_cycles({"a": {"b"}, "b": set()}) == []
