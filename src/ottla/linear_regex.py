"""Matches regular expressions of clients in linear time.

Zone: pure. The notation is a subset of RE2's that suffices for names: literals, `.`, classes, groups, alternatives,
repeats, `^` and `$`, the flags i and s. As in RE2, nothing needs backtracking, so there are no back references and no
look-around; there are also no word boundaries and no named classes. A pattern is compiled to a program of limited size,
which runs all branches at once (a lazily built DFA); transitions are cached between names. The caller sets a limit on
steps (`Pattern.allowance`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

MAX_PATTERN: Final = 1000
"""Most characters of a pattern."""
MAX_STEPS: Final = 500
"""Most steps of a program; a counted repeat is expanded."""
MAX_REPEAT: Final = 1000
"""The highest count of a repeat, as in RE2."""
MAX_DEPTH: Final = 50
"""Most nested groups."""
_KEPT: Final = 500
"""Most transitions in the cache; then it is cleared."""
_LAST: Final = 0x10FFFF
Range = tuple[int, int]
_DIGITS: Final[tuple[Range, ...]] = ((0x30, 0x39),)
_WORD: Final[tuple[Range, ...]] = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_SPACE: Final[tuple[Range, ...]] = ((0x09, 0x0A), (0x0C, 0x0D), (0x20, 0x20))
_SHORT: Final = {"d": _DIGITS, "w": _WORD, "s": _SPACE}
_CONTROL: Final = {"a": 7, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13}


class PatternError(ValueError):
    """The pattern is malformed, or too large."""


class TooCostly(Exception):
    """The allowance of steps is used up before the match was decided."""


# -- nodes of a pattern ------------------------------------------------------------------------------------------------


class Chars(NamedTuple):
    """One character of these ranges of code points, which are sorted and disjoint."""

    ranges: tuple[Range, ...]

    def has_code(self, code: int) -> bool:
        """Whether a code point is in the ranges."""
        at = bisect_right(self.ranges, (code, _LAST)) - 1
        return at >= 0 and code <= self.ranges[at][1]


class Edge(NamedTuple):
    """An anchor: the beginning of the text, or its end."""

    is_end: bool


class Sequel(NamedTuple):
    """A concatenation; without parts it matches the empty text."""

    parts: tuple[Node, ...]


class Choice(NamedTuple):
    """An alternative."""

    parts: tuple[Node, ...]


class Repeat(NamedTuple):
    """A repeat of a part; `most` None: without an upper limit; lazy: as few as possible, which matters for captures."""

    part: Node
    least: int
    most: int | None
    lazy: bool = False


class Group(NamedTuple):
    """A part whose text is captured. Groups are numbered from 1, by their opening parentheses."""

    part: Node
    number: int


Node = Chars | Edge | Sequel | Choice | Repeat | Group


class PatternParser:
    """Parses one pattern by recursive descent."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.depth = 0
        self.groups = 0
        """Number of captured groups so far."""
        self.folded = False
        self.dot_all = False

    def parse_pattern(self) -> Node:
        """The tree of the pattern. Raises PatternError."""
        node = self._parse_choice()
        if self.at < len(self.text):
            raise PatternError(f"unmatched ) at {self.at}")
        return node

    def _peek_char(self) -> str:
        return self.text[self.at : self.at + 1]

    def _next_char(self) -> str:
        char = self._peek_char()
        if not char:
            raise PatternError("the pattern ends too early")
        self.at += 1
        return char

    def _take_if(self, expected: str) -> bool:
        if self.text.startswith(expected, self.at):
            self.at += len(expected)
            return True
        return False

    def _parse_choice(self) -> Node:
        parts = [self._parse_sequel()]
        while self._take_if("|"):
            parts.append(self._parse_sequel())
        return parts[0] if len(parts) == 1 else Choice(tuple(parts))

    def _parse_sequel(self) -> Node:
        parts: list[Node] = []
        while self._peek_char() not in ("", "|", ")"):
            atom = self._parse_atom()
            if atom is not None:
                parts.append(self._parse_repeats(atom))
        return parts[0] if len(parts) == 1 else Sequel(tuple(parts))

    def _parse_repeats(self, atom: Node) -> Node:
        bounds = self._parse_bounds()
        if bounds is None:
            return atom
        lazy = self._take_if("?")
        if self._parse_bounds() is not None:
            raise PatternError(f"repeat of a repeat at {self.at}")
        return Repeat(atom, *bounds, lazy)

    def _parse_bounds(self) -> tuple[int, int | None] | None:
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take_if(sign):
                return bounds
        end = self.text.find("}", self.at)
        if self._peek_char() != "{" or end < 0:
            return None
        low, comma, high = self.text[self.at + 1 : end].partition(",")
        if not _is_number(low) or (high and not _is_number(high)):
            return None  # a literal brace
        self.at = end + 1
        least = int(low)
        most = int(high) if high else None if comma else least
        if max(least, most or 0) > MAX_REPEAT or (most is not None and most < least):
            raise PatternError(f"invalid repeat count {{{least},{most}}}; the limit is {MAX_REPEAT}")
        return least, most

    def _parse_atom(self) -> Node | None:
        char = self._next_char()
        if char == "(":
            return self._parse_group()
        if char == "[":
            return self._parse_class()
        if char == ".":
            return Chars(((0, _LAST),) if self.dot_all else _invert_ranges([(10, 10)]))
        if char in "^$":
            return Edge(char == "$")
        if char in "*+?":
            raise PatternError(f"nothing to repeat at {self.at - 1}")
        if char == "\\":
            return self._parse_escape()
        return self._make_chars([(ord(char), ord(char))])

    def _make_chars(self, ranges: Iterable[Range]) -> Chars:
        ranges = list(ranges)
        return Chars(_merge_ranges([*ranges, *_other_cases(ranges)] if self.folded else ranges))

    def _parse_group(self) -> Node | None:
        """Parse a group. None: flags for the rest of the enclosing group, not a group."""
        before = self.folded, self.dot_all
        captures = True
        if self._take_if("?P<") or self._take_if("?<"):
            self._parse_name()
        elif self._take_if("?"):
            captures = False
            if self._parse_flags():
                return None
        self.groups += captures
        number = self.groups
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise PatternError(f"more than {MAX_DEPTH} nested groups")
        node = self._parse_choice()
        if not self._take_if(")"):
            raise PatternError("missing )")
        self.depth -= 1
        self.folded, self.dot_all = before
        return Group(node, number) if captures else node

    def _parse_name(self) -> None:
        name, _, _ = self.text[self.at :].partition(">")
        if not name.isidentifier() or not self.text.startswith(">", self.at + len(name)):
            raise PatternError(f"invalid group name at {self.at}")
        self.at += len(name) + 1

    def _parse_flags(self) -> bool:
        """Parse flags. Returns whether they apply to the rest of the enclosing group, not to a group of their own."""
        on = True
        while True:
            char = self._next_char()
            if char in ":)":
                return char == ")"
            if char == "-" and on:
                on = False
            elif char == "i":
                self.folded = on
            elif char == "s":
                self.dot_all = on
            else:
                raise PatternError(f"unsupported kind of group at {self.at - 1}")

    def _parse_escape(self) -> Node | None:
        char = self._next_char()
        if char in "Az":
            return Edge(char == "z")
        if char == "Q":
            quoted, _, rest = self.text[self.at :].partition("\\E")
            self.text = self.text[: self.at] + "".join(map(_plain_pattern, quoted)) + rest
            return None
        return self._make_chars(self._escaped_ranges(char))

    def _escaped_ranges(self, char: str) -> Sequence[Range]:
        """The code points of an escape, in a class or outside."""
        if char.lower() in _SHORT:
            ranges = _SHORT[char.lower()]
            return ranges if char.islower() else _invert_ranges(ranges)
        if char == "x":
            code = self._parse_code()
        elif char in _CONTROL:
            code = _CONTROL[char]
        elif char.isascii() and not char.isalnum():
            code = ord(char)
        else:
            raise PatternError(f"unsupported escape at {self.at - 1}")
        return [(code, code)]

    def _parse_code(self) -> int:
        if self._take_if("{"):
            digits, _, _ = self.text[self.at :].partition("}")
            self.at += len(digits) + 1
        else:
            digits = self.text[self.at : self.at + 2]
            self.at += 2
        try:
            code = int(digits, 16) if digits.isalnum() else -1
        except ValueError:
            code = -1
        if not 0 <= code <= _LAST or self.at > len(self.text):
            raise PatternError("invalid code point in an escape")
        return code

    def _parse_class(self) -> Node:
        negated = self._take_if("^")
        ranges = list(self._parse_member())
        while not self._take_if("]"):
            ranges += self._parse_member()
        chars = self._make_chars(ranges)
        return Chars(_invert_ranges(chars.ranges)) if negated else chars

    def _parse_member(self) -> Sequence[Range]:
        if self._take_if("[:"):
            raise PatternError(f"unsupported named class at {self.at}")
        low = self._class_char()
        if (
            len(low) != 1
            or low[0][0] != low[0][1]
            or self._peek_char() != "-"
            or self.text[self.at + 1 :][:1] in ("]", "")
        ):
            return low
        self.at += 1
        high = self._class_char()
        if len(high) != 1 or high[0][0] != high[0][1] or high[0][0] < low[0][0]:
            raise PatternError(f"range in reverse order at {self.at}")
        return [(low[0][0], high[0][0])]

    def _class_char(self) -> Sequence[Range]:
        char = self._next_char()
        return self._escaped_ranges(self._next_char()) if char == "\\" else [(ord(char), ord(char))]


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5


def _plain_pattern(char: str) -> str:
    """The pattern for a literal character."""
    return f"\\{char}" if char.isascii() and not char.isalnum() else char


def _other_cases(ranges: Sequence[Range]) -> list[Range]:
    """The other case of letters in the ranges: of ASCII letters, and of ranges of a single character."""
    codes = {code for first, last in ranges for code in range(max(first, 0x41), min(last, 0x7A) + 1)}
    codes |= {first for first, last in ranges if first == last}
    forms = {form for code in codes for form in (chr(code).lower(), chr(code).upper()) if len(form) == 1}
    return [(ord(form), ord(form)) for form in forms]


def _merge_ranges(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """The same code points in sorted, disjoint ranges."""
    found: list[Range] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return tuple(found)


def _invert_ranges(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """All code points outside the ranges."""
    found, start = [], 0
    for first, last in _merge_ranges(ranges):
        if first > start:
            found.append((start, first - 1))
        start = last + 1
    return (*found, (start, _LAST)) if start <= _LAST else tuple(found)


# -- the program -------------------------------------------------------------------------------------------------------


class _Fork(NamedTuple):
    """Continues at several steps at once."""

    places: tuple[int, ...]


_Step = Chars | Edge | _Fork | None
"""None: the end. Characters and edges continue with the step after them."""


class _Program:
    """The compiled form of a pattern. It is generated from the end, so that each step knows its successor."""

    def __init__(self) -> None:
        self.steps: list[_Step] = [None]
        self.then: list[int] = [0]

    def _add_step(self, step: _Step, then: int) -> int:
        if len(self.steps) >= MAX_STEPS:
            raise PatternError(f"the pattern is too complex: more than {MAX_STEPS} steps")
        self.steps.append(step)
        self.then.append(then)
        return len(self.steps) - 1

    def write_node(self, node: Node, then: int) -> int:
        """Generate the steps of a node that is followed by step `then`. Returns its first step."""
        if isinstance(node, Chars | Edge):
            return self._add_step(node, then)
        if isinstance(node, Sequel):
            for part in reversed(node.parts):
                then = self.write_node(part, then)
            return then
        if isinstance(node, Choice):
            return self._add_step(_Fork(tuple(self.write_node(part, then) for part in node.parts)), then)
        if isinstance(node, Group):
            return self.write_node(node.part, then)
        return self._write_repeat(node, then)

    def _write_repeat(self, node: Repeat, then: int) -> int:
        if node.most is None:
            fork = self._add_step(_Fork(()), then)
            self.steps[fork] = _Fork((self.write_node(node.part, fork), then))
            then = fork
        else:
            for _ in range(node.most - node.least):
                then = self._add_step(_Fork((self.write_node(node.part, then), then)), then)
        for _ in range(node.least):
            begin = self.write_node(node.part, then)
            if begin == then:
                break  # the repeated part has no steps, so more repetitions add none
            then = begin
        return then


class Pattern:
    """A compiled pattern, matched against whole names."""

    def __init__(self, text: str) -> None:
        """Raises PatternError."""
        if len(text) > MAX_PATTERN:
            raise PatternError(f"more than {MAX_PATTERN} characters")
        program = _Program()
        self._start = program.write_node(PatternParser(text).parse_pattern(), 0)
        self._steps, self._then = program.steps, program.then
        self._known: dict[tuple[frozenset[int], str], frozenset[int]] = {}
        self._sets: dict[frozenset[int], frozenset[int]] = {}
        """Each set once, so that lookups compare by identity instead of by elements."""
        self.allowance = 0
        """Number of steps that matches may still take."""
        self._begin = self._reachable_places({self._start}, at_begin=True, at_end=False)

    def matches_name(self, name: str) -> bool:
        """Whether the whole name matches. Raises TooCostly when the allowance is used up."""
        places = self._begin if name else self._reachable_places({self._start}, at_begin=True, at_end=True)
        for at, char in enumerate(name):
            if not places:
                return False
            self._spend_steps(1)
            # The last character has entries of its own, because `$` matches after it only.
            key = (places, char if at < len(name) - 1 else f"{char}$")
            known = self._known.get(key)
            if known is None:
                known = self._follow_places(places, char, at == len(name) - 1)
                if len(self._known) >= _KEPT:
                    self._known.clear()
                    self._sets.clear()
                self._known[key] = known = self._sets.setdefault(known, known)
            places = known
        return 0 in places

    def _spend_steps(self, steps: int) -> None:
        self.allowance -= steps
        if self.allowance < 0:
            raise TooCostly

    def _follow_places(self, places: frozenset[int], char: str, at_end: bool) -> frozenset[int]:
        self._spend_steps(len(places))
        code, found = ord(char), set()
        for place in places:
            step = self._steps[place]
            if isinstance(step, Chars) and step.has_code(code):
                found.add(self._then[place])
        return self._reachable_places(found, at_begin=False, at_end=at_end)

    def _reachable_places(self, places: set[int], *, at_begin: bool, at_end: bool) -> frozenset[int]:
        """The steps that need a character, and the end, that can be reached from these steps."""
        found, left = set(places), list(places)
        while left:
            self.allowance -= 1
            place = left.pop()
            step = self._steps[place]
            if isinstance(step, _Fork):
                new = set(step.places) - found
            elif isinstance(step, Edge) and (at_end if step.is_end else at_begin):
                new = {self._then[place]} - found
            else:
                continue
            found |= new
            left += new
        return frozenset(place for place in found if not isinstance(self._steps[place], _Fork | Edge))
