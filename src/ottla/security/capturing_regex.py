"""Regular expressions with captured groups, matched in linear time.

Zone: pure. The notation is that of `linear_regex`. The program runs all branches at once, in the order of preference
that a backtracking engine would try them in (a Pike machine): so groups capture what they capture in Java or Python,
without exponential time. `linear_regex` is faster where only names are matched.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ottla.linear_regex import (
    MAX_PATTERN,
    MAX_STEPS,
    Chars,
    Choice,
    Edge,
    Group,
    Node,
    PatternError,
    PatternParser,
    Repeat,
    Sequel,
    TooCostly,
)

_STEPS_MAX: Final = 50_000
"""Most steps with one text: about 20 milliseconds."""


class _Fork(NamedTuple):
    """Continue at several steps, the preferred one first."""

    places: tuple[int, ...]


class _Save(NamedTuple):
    """Note the position as a border of a group."""

    slot: int


class _End(NamedTuple):
    """The pattern has matched."""


_Step = Chars | Edge | _Fork | _Save | _End
_Spans = tuple[int, ...]
"""Begin and end of group 0 (the whole match), 1, 2 …; -1: the group took no part."""


class _Program:
    """The steps of a pattern, generated from its end, so that each knows its successor."""

    def __init__(self) -> None:
        self.steps: list[_Step] = [_End()]
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
            inside = self.write_node(node.part, self._add_step(_Save(2 * node.number + 1), then))
            return self._add_step(_Save(2 * node.number), inside)
        return self._write_repeat(node, then)

    def _write_repeat(self, node: Repeat, then: int) -> int:
        if node.most is None:
            # Without targets at first, because the repeated part has to know this step as its successor.
            fork = self._add_step(_Fork(()), then)
            self.steps[fork] = self._fork_of(node, self.write_node(node.part, fork), then)
            then = fork
        else:
            after = then
            for _ in range(node.most - node.least):
                then = self._add_step(self._fork_of(node, self.write_node(node.part, then), after), after)
        for _ in range(node.least):
            begin = self.write_node(node.part, then)
            if begin == then:
                break  # the repeated part has no steps, so more repetitions add none
            then = begin
        return then

    @staticmethod
    def _fork_of(node: Repeat, again: int, after: int) -> _Fork:
        return _Fork((after, again) if node.lazy else (again, after))


class CapturingPattern:
    """A compiled pattern."""

    def __init__(self, text: str) -> None:
        """Raises PatternError."""
        if len(text) > MAX_PATTERN:
            raise PatternError(f"more than {MAX_PATTERN} characters")
        parser = PatternParser(text)
        program = _Program()
        self._start = program.write_node(parser.parse_pattern(), 0)
        self._steps, self._then = program.steps, program.then
        self.groups = parser.groups
        """Number of groups, without group 0."""
        self._unset = (-1,) * (2 * self.groups + 2)

    def matches_text(self, text: str) -> bool:
        """Whether the whole text matches. Raises TooCostly."""
        return _Run(self, text).find_match(0, whole=True) is not None

    def replace_matches(self, text: str, replacement: tuple[str | int, ...]) -> str:
        """Replace every match, as Java's `replaceAll` does: by these texts and the contents of these groups.

        After an empty match the search continues one character later. Raises TooCostly.
        """
        run, parts, copied, at = _Run(self, text), [], 0, 0
        while at <= len(text):
            spans = run.find_match(at, whole=False)
            if spans is None:
                break
            begin, end = spans[:2]
            parts.append(text[copied:begin])
            parts += [each if isinstance(each, str) else _text_of_group(text, spans, each) for each in replacement]
            copied, at = end, end + (begin == end)
        return "".join(parts) + text[copied:]


def _text_of_group(text: str, spans: _Spans, number: int) -> str:
    begin, end = spans[2 * number : 2 * number + 2]
    return text[begin:end] if begin >= 0 else ""


class _Run:
    """Matches of one pattern in one text."""

    def __init__(self, pattern: CapturingPattern, text: str) -> None:
        self._steps, self._then = pattern._steps, pattern._then
        self._start, self._unset = pattern._start, pattern._unset
        self._text = text
        self._allowance = _STEPS_MAX

    def find_match(self, start: int, *, whole: bool) -> _Spans | None:
        """The first match from a position on; whole: only one that begins there and ends with the text."""
        threads: dict[int, _Spans] = {}
        found: _Spans | None = None
        for at in range(start, len(self._text) + 1):
            # A thread that begins here is preferred less than all that have begun before.
            if found is None and (at == start or not whole):
                self._add_threads(threads, self._start, (at, *self._unset[1:]), at)
            if not threads and (found is not None or whole):
                break
            ahead: dict[int, _Spans] = {}
            code = ord(self._text[at]) if at < len(self._text) else -1
            for place, spans in threads.items():
                step = self._steps[place]
                if isinstance(step, Chars):
                    if code >= 0 and step.has_code(code):
                        self._add_threads(ahead, self._then[place], spans, at + 1)
                elif not whole or at == len(self._text):
                    found = (spans[0], at, *spans[2:])
                    break  # the threads after this one are preferred less
            threads = ahead
        return found

    def _add_threads(self, threads: dict[int, _Spans], place: int, spans: _Spans, at: int) -> None:
        """Follow the steps that need no character, in the order of preference."""
        # A thread that has reached a step before is preferred, so a later one at the same step is dropped. That bounds
        # the threads by the steps, and the time by the length of the text.
        left, seen = [(place, spans)], set(threads)
        while left:
            place, spans = left.pop()
            if place in seen:
                continue
            seen.add(place)
            self._allowance -= 1
            if self._allowance < 0:
                raise TooCostly
            step = self._steps[place]
            if isinstance(step, _Fork):
                # Reversed, because the last element is the next one to be followed.
                left += [(each, spans) for each in reversed(step.places)]
            elif isinstance(step, _Save):
                left.append((self._then[place], (*spans[: step.slot], at, *spans[step.slot + 1 :])))
            elif isinstance(step, Edge):
                if at == (len(self._text) if step.is_end else 0):
                    left.append((self._then[place], spans))
            else:
                threads[place] = spans
