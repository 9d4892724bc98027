"""Patterns of clients: the same names match as with Python's regular expressions, and none exceeds its allowance.

Zone: real.
"""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.linear_regex import MAX_DEPTH, MAX_PATTERN, Pattern, PatternError, TooCostly

NAMES = (
    "",
    "a",
    "b",
    "ab",
    "abc",
    "aab",
    "A",
    "orders-1",
    "orders-12",
    "orders-x",
    "a-b",
    "a\nb",
    "}",
    "a{1",
    "é",
    "É",
)


def matches(text: str, name: str) -> bool:
    pattern = Pattern(text)
    pattern.allowance = 100_000
    return pattern.matches_name(name)


PATTERNS = r"""
ab a|b a| (a|b)* a+b? a??b a{2}b a{1,}b a{0,1}b a{1,2}b (?:ab)+c? . .* (?s).* (?s:a.b) a.b [ab]+ [^a] [^ab]* [a-c]+ []a]
[a-]+ [-a]+b [\d\-] orders-\d+ orders-[0-9]{2} \w+ \W \D+ orders.\S \x61 [\x61-\x63]+ (?i)a (?i:A)B (?i)[b-z] (?i)[^a]
(?i)é ^a$ ^$ a^ $a (^a|b$) (?P<name>a)b ()* (|a)*b (a*)* (a*)+b a{1 } \Aab\Z a\-b ((a)(b))c
"""
WRONG = r"""
( ) a) (a [ [] [a [b-a] [\d-z]x[ * a** a+* |* (?i)* {2}{3}{4}x{1001} a{2,1} a{1001} \ \1 \b \pL \x \xg1 \x{110000} \x{61
(?=a) (?!a) (?<=a) (?P=a) (?P<1>a) (?#a) (? [[:alpha:]] (?m)a ((a{30}){30}){30}
"""


@pytest.mark.parametrize("text", ["", *PATTERNS.split()])
def test_it_matches_the_same_names_as_python(text: str) -> None:
    python = re.compile(text, re.ASCII if "\\" in text else 0)
    ours = text.replace(r"\Z", r"\z")  # RE2's spelling
    for name in NAMES:
        assert matches(ours, name) == (python.fullmatch(name) is not None), (text, name)


def test_quoted_text_and_what_only_re2_knows() -> None:
    assert matches(r"\Qa.b|*\E+", "a.b|**")
    assert not matches(r"\Qa.b\E", "axb")
    assert matches(r"\Qab", "ab")
    assert matches("a{,1}", "a{,1}"), "a brace like any other character"
    assert matches(r"\x{1F388}", "🎈")
    assert matches(r"(?<id>a)\t\a", "a\t\a")
    assert matches("(?i-s:A)", "a")


BIG = ("x" * (MAX_PATTERN + 1), "(" * (MAX_DEPTH + 1) + ")" * (MAX_DEPTH + 1))


@pytest.mark.parametrize("text", [*WRONG.split(), *BIG])
def test_malformed_patterns(text: str) -> None:
    with pytest.raises(PatternError):
        Pattern(text)


@given(
    st.text(st.sampled_from("ab|*+?(){}[]^-.\\d1,:iQE$"), max_size=30), st.text(st.sampled_from("ab1\n-"), max_size=8)
)
def test_every_pattern_is_answered(text: str, name: str) -> None:
    try:
        pattern = Pattern(text)
    except PatternError:
        return
    pattern.allowance = 1_000_000
    assert pattern.matches_name(name) in (True, False)


@given(st.recursive(
    st.sampled_from(["a", "b", ".", "[ab]", "[^a]", "", "^", "$"]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda two: f"({two[0]}|{two[1]})"),
        inner.map(lambda one: f"(?:{one})*"),
        inner.map(lambda one: f"({one}){{1,2}}"),
    ),
    max_leaves=8,
), st.text(st.sampled_from("abc"), max_size=6))  # fmt: skip
def test_any_pattern_matches_as_pythons_does(text: str, name: str) -> None:
    assert matches(text.replace("$", r"\z"), name) == (re.fullmatch(text.replace("$", r"\Z"), name) is not None)


@pytest.mark.parametrize("text", ["(a+)+b", "(a|aa)*c", "(a?){100}a{100}", "(.*a){20}", "(x+x+)+y"])
def test_patterns_that_are_slow_with_backtracking_cost_little(text: str) -> None:
    pattern = Pattern(text)
    pattern.allowance = 400_000
    assert pattern.matches_name("a" * 150 + "x" * 50) is False
    assert pattern.allowance >= 0


def test_a_match_that_costs_too_much_is_given_up() -> None:
    pattern = Pattern("(a|b)*a(a|b){90}")
    pattern.allowance = 50_000
    noise = "".join(random.Random(1).choices("ab", k=10_000))
    with pytest.raises(TooCostly):
        pattern.matches_name(noise)
    assert len(pattern._known) <= 500


def test_repeating_nothing_costs_nothing() -> None:
    assert matches("(((){1000}){1000}){1000}", "")
