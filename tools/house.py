"""The numbers of the house: names, sizes, imports and language of src/ottla, with their goals.

    python -m tools.house             print the table
    python -m tools.house --worst     and the places that cost most in each row
    python -m tools.house --quiet     print only what is worse than its limit; part of `make lint`
    python -m tools.house --tighten   keep today's numbers as limits where they are better than the limits

Goals and limits are in tools/house.toml. A goal is where the number shall be; a limit is the worst that the tidy test
lets through (tests/house_test.py), and only ever comes closer to the goal.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple

from tools.source import (
    ROOT,
    Function,
    count_words,
    find_cycles,
    inherited_methods,
    methods_left_to_subclasses,
    read_modules,
    read_pages,
)

LIMITS: Final = Path(__file__).with_suffix(".toml")
CONTRACT_VERBS: Final = frozenset({"handle", "apply", "append", "read"})
"""Bare verbs that are a contract between rooms, and may be defined as often as there are rooms."""
FLAT_FOLDERS: Final = ("wire/messages",)
"""A file per API: more than 20 files say what is in them."""
FUNCTION_LINES: Final = 50
PARAMETERS: Final = 6
METHODS: Final = 35
"""Most methods of an object, those that its class inherits from others of ours included."""
DEFINITIONS: Final = 10
WORDS: Final = 10_000
WORSE: Final = "WORSE"
"""The verdict on a number that is beyond its limit: what `make lint` and the tests refuse."""

IDIOMS: Final = {
    # In any case but for the last one, which is about the beginning of a sentence.
    "anew": r"\banew\b",
    "whoever": r"\bwho(?:so)?ever\b",
    "nobody": r"\b(?:nobody|somebody)\b",
    "told": r"\b(?:told|tells)\b",
    "said": r"\b(?:said|says)\b",
    "goes-on": r"\bgo(?:es)? on\b",
    "stands": r"\bstands?\b(?! in for| by\b| for\b)",
    "behind": r"\bbehind\b",
    "too": r", too\b",
    "what-at-start": r"(?-i:[.!?:]\s+What (?!is\b|are\b|does\b|do\b))",
}
REFUSED: Final = re.compile(
    r"\banew\b|\bwhoever\b|\bis told\b|\bgoes on\b|\ball the same\b|\bso many\b|\b(?:nobody|somebody)\b",
    re.IGNORECASE,
)
"""Words of HOUSE that no sentence needs; the rest of its list takes a reader to find."""


class Number(NamedTuple):
    """One row of the table. `places`: what counts most, worst first."""

    key: str
    what: str
    value: float
    at_most: bool
    """Whether lower is better."""
    places: list[str]


class House:
    """All numbers of one tree."""

    def __init__(self) -> None:
        self.modules = read_modules()
        self.pages = read_pages()

    def numbers(self) -> list[Number]:
        """Every row, in the order of the table."""
        return [
            *self._names(),
            *self._sizes(),
            *self._objects(),
            *self._imports(),
            *self._idioms("src", self._prose),
            *self._idioms("docs", self.pages),
            self._refused(),
        ]

    @cached_property
    def _functions(self) -> list[Function]:
        every = (function for module in self.modules for function in module.functions)
        return [each for each in every if not (each.name.startswith("__") and each.name.endswith("__"))]

    @cached_property
    def _prose(self) -> list[str]:
        return [text for module in self.modules for text in module.prose()]

    def _names(self) -> Iterable[Number]:
        names = [function.name.strip("_") for function in self._functions]
        single = [name for name in names if "_" not in name]
        counted = Counter(single).most_common(30)
        places = [f"{count} × {name}" for name, count in counted]
        share = 100 * len(single) / len(names)
        yield Number("one-word-functions", "functions named by one word, %", share, True, places)
        yield Number("median-name", "median length of a function's name", statistics.median(map(len, names)), False, [])
        often = Counter(
            name.strip("_")
            for name in (each.name for each in self._functions if not each.in_protocol)
            if "_" not in name.strip("_") and name not in CONTRACT_VERBS
        )
        common = [f"{count} × {name}" for name, count in often.most_common() if count > DEFINITIONS]
        yield Number("common-words", f"one-word names defined more than {DEFINITIONS} times", len(common), True, common)

    def _sizes(self) -> Iterable[Number]:
        folders = Counter(module.path.parent.relative_to(ROOT / "src").as_posix() for module in self.modules)
        flat = tuple(f"ottla/{name}" for name in FLAT_FOLDERS)
        files = {folder: count for folder, count in folders.items() if folder not in flat}
        full = _ranked(files, above=20)
        yield Number("files-per-folder", "files in the largest folder", max(files.values()), True, _ranked(files)[:9])
        yield Number("full-folders", "folders with more than 20 files", len(full), True, full)
        long = {each.place: each.lines for each in self._functions if each.lines > FUNCTION_LINES}
        yield Number("long-functions", f"functions over {FUNCTION_LINES} lines", len(long), True, _ranked(long))
        wide = {each.place: each.parameters for each in self._functions if each.parameters > PARAMETERS}
        yield Number("wide-functions", f"functions with over {PARAMETERS} parameters", len(wide), True, _ranked(wide))
        lines = sum(module.text.count("\n") for module in self.modules)
        comments = sum(len(module.comments) for module in self.modules)
        yield Number("comment-lines", "lines that are comments, %", 100 * comments / lines, False, [])

    def _objects(self) -> Iterable[Number]:
        classes = {each.name: each for module in self.modules for each in module.classes}
        methods = {each.place: len(inherited_methods(classes, name)) for name, each in classes.items()}
        large = _ranked(methods, above=METHODS)
        yield Number("methods-per-class", "most methods of a class", max(methods.values()), True, large)
        yield Number("large-classes", f"classes with over {METHODS} methods", len(large), True, large)
        left = methods_left_to_subclasses(classes)
        yield Number("refusing-bases", "methods that a base only refuses", len(left), True, left)

    def _imports(self) -> Iterable[Number]:
        known = frozenset(module.name for module in self.modules)
        graph = {module.name: module.imports(known) for module in self.modules}
        fan_out = {module.name: len(graph[module.name]) for module in self.modules if not module.is_package}
        above = _ranked(fan_out, above=20)
        yield Number("fan-out", "most modules of ours that one imports", max(fan_out.values()), True, above)
        yield Number("wide-importers", "modules that import more than 20 of ours", len(above), True, above)
        circles = find_cycles(graph)
        text = [f"{len(circle)}: {', '.join(circle[:6])}{' …' * (len(circle) > 6)}" for circle in circles]
        what = "modules in import cycles, TYPE_CHECKING included"
        yield Number("import-cycles", what, sum(map(len, circles)), True, text)

    def _idioms(self, where: str, texts: list[str]) -> Iterable[Number]:
        words = count_words(texts)
        for name, pattern in IDIOMS.items():
            found = sum(len(re.findall(pattern, text, re.IGNORECASE)) for text in texts)
            yield Number(f"{where}-{name}", f'"{name}" per 10,000 words, {where}', WORDS * found / words, True, [])

    def _refused(self) -> Number:
        found = Counter(hit.lower() for text in (*self._prose, *self.pages) for hit in REFUSED.findall(text))
        places = [f"{count} × {word}" for word, count in found.most_common()]
        return Number("refused-words", "refused words, src and docs", sum(found.values()), True, places)


def _ranked(counts: dict[str, int], above: int = -1) -> list[str]:
    chosen = sorted(((count, name) for name, count in counts.items() if count > above), reverse=True)
    return [f"{count} {name}" for count, name in chosen]


class Limit(NamedTuple):
    """Where a number shall be, and the worst that it may be today."""

    goal: float
    limit: float


def read_limits() -> dict[str, Limit]:
    """The table in tools/house.toml."""
    rows = tomllib.loads(LIMITS.read_text())
    return {key: Limit(*map(float, row)) for key, row in rows.items()}


def round_value(value: float) -> float:
    """Numbers are compared as they are printed."""
    return round(value, 1)


def is_within(number: Number, bound: float) -> bool:
    """Whether a number is as good as a bound."""
    value = round_value(number.value)
    return value <= bound if number.at_most else value >= bound


def judge(number: Number, limit: Limit) -> str:
    """One word: whether the goal is met, missed, or missed by more than it was."""
    if is_within(number, limit.goal):
        return "ok"
    return "over" if is_within(number, limit.limit) else WORSE


def render_table(numbers: list[Number], limits: dict[str, Limit], *, worst: bool = False) -> str:
    """The rows as text, aligned."""
    lines = [f"{'':52} {'now':>8} {'goal':>8} {'limit':>8}"]
    for number in numbers:
        limit = limits[number.key]
        sign = "≤" if number.at_most else "≥"
        goal = f"{sign} {limit.goal:g}"
        lines.append(
            f"{number.what:52} {round_value(number.value):8g} {goal:>8} {limit.limit:8g}  {judge(number, limit)}"
        )
        lines.extend(f"    {place}" for place in number.places[:10] if worst)
    return "\n".join(lines)


def tighten(numbers: list[Number], limits: dict[str, Limit]) -> str:
    """The text of tools/house.toml with each limit as good as the number is now; none becomes worse."""
    head = LIMITS.read_text().partition("\n\n")[0]
    rows = []
    for number in numbers:
        limit = limits[number.key]
        better: Callable[[float, float], float] = min if number.at_most else max
        kept = better(limit.limit, round_value(number.value))
        rows.append(f"{number.key} = [{limit.goal:g}, {kept:g}]\n")
    return f"{head}\n\n{''.join(rows)}"


def main(words: list[str]) -> int:
    """Print the table; 1 when a number is worse than its limit."""
    options = argparse.ArgumentParser(prog="python -m tools.house", description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--worst", action="store_true", help="print the places that count most in each row")
    options.add_argument("--tighten", action="store_true", help="write today's numbers as limits where they are better")
    options.add_argument("--quiet", action="store_true", help="print only rows that are worse than their limits")
    given = options.parse_args(words)
    numbers, limits = House().numbers(), read_limits()
    worse = [number for number in numbers if judge(number, limits[number.key]) == WORSE]
    if worse or not given.quiet:
        print(render_table(worse if given.quiet else numbers, limits, worst=given.worst or given.quiet))
    if given.tighten:
        LIMITS.write_text(tighten(numbers, limits))
    return int(bool(worse))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
