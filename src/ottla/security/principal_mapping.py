"""Names of principals from certificates: the rules of `ssl.principal.mapping.rules`.

Zone: deterministic. A rule is `DEFAULT` or `RULE:pattern/replacement/[L|U]`; rules are separated by commas. The first
one whose pattern matches the whole distinguished name decides; then the pattern's matches are replaced, and the result
is lower-cased or upper-cased. A slash or backslash in a rule is escaped by a backslash. Patterns are matched in linear
time, so a crafted certificate costs no more than its size. Java's notation beyond that of `linear_regex` is refused
when the rules are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from ottla.linear_regex import PatternError, TooCostly
from ottla.security.capturing_regex import CapturingPattern

_RULE: Final = re.compile(r"RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)|DEFAULT|", re.DOTALL)
_SEPARATOR: Final = re.compile(r"\s*(?:,|$)")
_REFERENCE: Final = re.compile(r"\\(.)|\$(\d+)|\$|\\", re.DOTALL)
_NAME_MAX: Final = 4096
"""Longest distinguished name."""


class NoMatchingRule(Exception):
    """No rule applies to the name: the connection has no principal, and its login fails."""


class _Rule(NamedTuple):
    pattern: CapturingPattern
    replacement: tuple[str | int, ...]
    case: str
    """L, U, or nothing."""


class PrincipalMapper:
    """The rules of a listener."""

    def __init__(self, rules: str = "DEFAULT") -> None:
        """Raises ValueError, which names the rule."""
        self._rules = list(_parse_rules(rules))

    def map_name(self, distinguished_name: str) -> str:
        """The name of the principal, whose type is User. Raises NoMatchingRule."""
        shown = distinguished_name[:200]
        if len(distinguished_name) > _NAME_MAX:
            raise NoMatchingRule(f"{shown}… is longer than {_NAME_MAX} characters")
        for rule in self._rules:
            if rule is None:
                return distinguished_name
            try:
                if rule.pattern.matches_text(distinguished_name):
                    name = rule.pattern.replace_matches(distinguished_name, rule.replacement)
                    return name.lower() if rule.case == "L" else name.upper() if rule.case == "U" else name
            except TooCostly:
                raise NoMatchingRule(f"a rule takes too many steps for {shown}") from None
        raise NoMatchingRule(f"no rule applies to {shown}")


def _parse_rules(text: str) -> Iterator[_Rule | None]:
    """The rules in order; None is DEFAULT. Empty rules are left out. Raises ValueError."""
    text, at = text.strip(), 0
    while at < len(text):
        at += len(text[at:]) - len(text[at:].lstrip())
        rule = _RULE.match(text, at)
        assert rule is not None  # an empty rule matches everywhere
        end = _SEPARATOR.match(text, rule.end())
        if end is None:
            raise ValueError(f"Invalid rule: {text[at : at + 200]!r}")
        at = end.end()
        if rule[0] == "DEFAULT":
            yield None
        elif rule[0]:
            yield _make_rule(*rule.groups())


def _make_rule(pattern: str, replacement: str, case: str) -> _Rule:
    try:
        compiled = CapturingPattern(pattern)
    except PatternError as error:
        raise ValueError(f"the pattern of the rule {pattern[:200]!r} is not supported: {error}") from None
    return _Rule(compiled, tuple(_parse_replacement(replacement, compiled.groups)), case)


def _parse_replacement(text: str, groups: int) -> Iterator[str | int]:
    """Texts, and numbers of groups. Raises ValueError.

    As Kafka: of `$12` with fewer groups only `$1` is the reference, and a reference to a group that does not exist is
    text, if there are groups at all.
    """
    at = 0
    for found in _REFERENCE.finditer(text):
        yield text[at : found.start()]
        at = found.end()
        if found[1] is not None:
            yield found[1]
        elif found[2] is None:
            raise ValueError(f"the replacement {text[:200]!r} ends in the middle of a reference or of an escape")
        else:
            digits = found[2]
            while len(digits) > 1 and int(digits) > groups:
                digits = digits[:-1]
            if int(digits) > groups and not groups:
                raise ValueError(f"the replacement {text[:200]!r} refers to a group, the pattern has none")
            yield int(digits) if int(digits) <= groups else f"${digits}"
            yield found[2][len(digits) :]
    yield text[at:]
