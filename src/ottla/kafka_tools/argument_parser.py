"""Options of the tools that Kafka parses with argparse4j, whose rules and messages are those of Python's argparse.

Zone: pure. Names may be abbreviated, words without an option are refused, and an error follows the line of usage.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Final, NamedTuple

from ottla.kafka_tools.options import HELP, Option, Options, Takes, WrongWords

_NEGATIVE: Final = re.compile(r"-\d*\.?\d+")
_WHOLE: Final = re.compile(r"[+-]?\d+", re.ASCII)
_BITS: Final = {"Integer": 31, "Long": 63}
_WIDTH: Final = 75


class ArgumentRules(NamedTuple):
    """What a tool's options have to be besides their names."""

    tool: str
    required: Sequence[str] = ()
    numbers: Mapping[str, str] = {}
    """The Java type of the options that are numbers: Integer, Long or Double."""
    one_of: Sequence[str] = ()
    """Exactly one of these is given."""


def parse_arguments(rules: ArgumentRules, options: Sequence[Option], words: Sequence[str]) -> Options:
    """The options in the words. The last value counts where an option is given twice. Raises WrongWords."""
    try:
        given = _read_words(options, words)
        if words and not given.keys() & {"help", "version"}:
            _check_given(rules, given)
    except _WrongArgument as error:
        raise wrong_argument(rules, options, str(error)) from None
    return Options(given, (), words)


class _WrongArgument(Exception):
    """The message after the name of the tool."""


def wrong_argument(rules: ArgumentRules, options: Sequence[Option], message: str) -> WrongWords:
    """The error as argparse prints it: the line of usage, then the tool and the message."""
    listed = [each for each in options if not each.unfinished and each not in HELP]
    shown = [_shown_option(each, each.name in rules.required) for each in listed]
    usage = fill(f"usage: {rules.tool} [-h] {' '.join(shown)}", _WIDTH, subsequent_indent=" " * 7)
    return WrongWords(f"{usage}\n{rules.tool}: error: {message}")


def _shown_option(option: Option, required: bool) -> str:
    name = option.name.upper()
    rest = {Takes.NOTHING: "", Takes.SEVERAL: f" {name} [{name} ...]"}.get(option.takes, f" {name}")
    return f"--{option.name}{rest}" if required else f"[--{option.name}{rest}]"


def _read_words(options: Sequence[Option], words: Sequence[str]) -> dict[str, list[str]]:
    known = {option.name: option for option in options}
    given: dict[str, list[str]] = {}
    at = 0
    while at < len(words):
        name, equals, attached = words[at].removeprefix("--").partition("=")
        option = _find_option(known, words[at], name)
        values = [attached] if equals else _following_values(option, words[at + 1 :])
        # As argparse4j: `--name=value` takes no further words, also where the option takes several.
        at += 1 if equals else 1 + len(values)
        if not values and option.takes is not Takes.NOTHING:
            wanted = "at least one argument" if option.takes is Takes.SEVERAL else "one argument"
            raise _WrongArgument(f"argument --{option.name}: expected {wanted}")
        given[option.name] = values
    return given


def _following_values(option: Option, rest: Sequence[str]) -> list[str]:
    if option.takes is Takes.NOTHING:
        return []
    end = next((at for at, word in enumerate(rest) if _is_option(word)), len(rest))
    return list(rest[: end if option.takes is Takes.SEVERAL else min(end, 1)])


def _is_option(word: str) -> bool:
    # A negative number is a value: `--throughput -1`.
    return word.startswith("-") and word != "-" and not _NEGATIVE.fullmatch(word)


def _find_option(known: Mapping[str, Option], word: str, name: str) -> Option:
    if word == "-h":
        return known["help"]
    # A name that is whole wins over longer ones that begin with it.
    found = [name] if name in known else [each for each in known if name and each.startswith(name)]
    if not word.startswith("--") or not found:
        raise _WrongArgument(f"unrecognized arguments: '{word}'")
    if len(found) > 1:
        raise _WrongArgument(f"ambiguous option: --{name} could match {', '.join(f'--{each}' for each in found)}")
    option = known[found[0]]
    if option.unfinished:
        raise _WrongArgument(
            f"--{option.name} is an option of Apache Kafka's tool that Ottla's does not have: {option.unfinished}"
        )
    return option


def _check_given(rules: ArgumentRules, given: Mapping[str, Sequence[str]]) -> None:
    for name, kind in rules.numbers.items():
        for text in given.get(name, ()):
            if not _is_number(text, kind):
                raise _WrongArgument(
                    f"argument --{name}: could not convert '{text}' to {kind} (For input string: \"{text}\")"
                )
    chosen = [name for name in given if name in rules.one_of]
    if len(chosen) > 1:
        raise _WrongArgument(f"argument --{chosen[1]}: not allowed with argument --{chosen[0]}")
    for name in rules.required:
        if name not in given:
            raise _WrongArgument(f"argument --{name} is required")
    if rules.one_of and not chosen:
        raise _WrongArgument(f"one of the arguments {' '.join(f'--{each}' for each in rules.one_of)} is required")


def _is_number(text: str, kind: str) -> bool:
    if kind == "Double":
        try:
            float(text)
        except ValueError:
            return False
        return "_" not in text
    return bool(_WHOLE.fullmatch(text)) and -(2 ** _BITS[kind]) <= int(text) < 2 ** _BITS[kind]
