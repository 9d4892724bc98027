"""Options of the tools that Kafka parses with argparse4j, whose rules and messages are those of Python's argparse.

Zone: pure. Names may be abbreviated, words without an option are refused, and an error follows the line of usage.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from textwrap import fill, wrap
from typing import Final, NamedTuple

from ottla.kafka_tools.options import (
    HELP,
    AskedHelp,
    Option,
    Options,
    Takes,
    ToolError,
    WrongWords,
    flag,
    usage_text,
)

_NEGATIVE: Final = re.compile(r"-\d*\.?\d+")
_WHOLE: Final = re.compile(r"[+-]?\d+", re.ASCII)
_BITS: Final = {"Short": 15, "Integer": 31, "Long": 63}
_WIDTH: Final = 75
_HELP_LETTER: Final = {"-h": "help"}
_LETTERS: Final = {"-h": "help", "-v": "version"}
_HELP_COLUMN: Final = 25
"""The column of the texts in a help."""


class ArgumentRules(NamedTuple):
    """What a tool's options have to be besides their names."""

    tool: str
    required: Sequence[str] = ()
    numbers: Mapping[str, str] = {}
    """The Java type of the options that are numbers: Short, Integer, Long or Double."""
    one_of: Sequence[str] = ()
    """Exactly one of these is given."""


def parse_arguments(rules: ArgumentRules, options: Sequence[Option], words: Sequence[str]) -> Options:
    """The options in the words. The last value counts where an option is given twice. Raises WrongWords."""
    try:
        given, _ = _read_words(options, words)
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


def _read_words(
    options: Sequence[Option], words: Sequence[str], letters: Mapping[str, str] = _HELP_LETTER, *, stop: bool = False
) -> tuple[dict[str, list[str]], int]:
    """The options in the words, and the position after them. stop: end at the first word that is not an option."""
    known = {option.name: option for option in options}
    given: dict[str, list[str]] = {}
    at = 0
    while at < len(words) and not (stop and not _is_option(words[at])):
        name, equals, attached = words[at].removeprefix("--").partition("=")
        option = known[letters[words[at]]] if words[at] in letters else _find_option(known, words[at], name)
        if equals and option.takes is Takes.NOTHING:
            raise _WrongArgument(f"argument --{option.name}: ignore implicit argument '{attached}'")
        values = [attached] if equals else _following_values(option, words[at + 1 :])
        # As argparse4j: `--name=value` takes no further words, also where the option takes several.
        at += 1 if equals else 1 + len(values)
        if not values and option.takes is not Takes.NOTHING:
            wanted = "at least one argument" if option.takes is Takes.SEVERAL else "one argument"
            raise _WrongArgument(f"argument --{option.name}: expected {wanted}")
        earlier = given.get(option.name, []) if option.takes is Takes.VALUES else []
        given[option.name] = [*earlier, *values]
        # As argparse: help is printed at once, whatever follows.
        if option.name == "help":
            break
    return given, at


def _following_values(option: Option, rest: Sequence[str]) -> list[str]:
    if option.takes is Takes.NOTHING:
        return []
    end = next((at for at, word in enumerate(rest) if _is_option(word)), len(rest))
    return list(rest[: end if option.takes is Takes.SEVERAL else min(end, 1)])


def _is_option(word: str) -> bool:
    # A negative number is a value: `--throughput -1`.
    return word.startswith("-") and word != "-" and not _NEGATIVE.fullmatch(word)


def _find_option(known: Mapping[str, Option], word: str, name: str) -> Option:
    # A name that is whole wins over longer ones that begin with it.
    found = [name] if name in known else [each for each in known if name and each.startswith(name)]
    if not word.startswith("--") or not found:
        raise _WrongArgument(f"unrecognized arguments: '{word}'")
    if len(found) > 1:
        matches = ", ".join(f"--{each}" for each in sorted(found))
        raise _WrongArgument(f"ambiguous option: --{name} could match {matches}")
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
                raise _WrongArgument(f"argument --{name}: could not convert '{text}' to {kind} ({_reason(text, kind)})")
    chosen = [name for name in given if name in rules.one_of]
    if len(chosen) > 1:
        raise _WrongArgument(f"argument --{chosen[1]}: not allowed with argument --{chosen[0]}")
    for name in rules.required:
        if name not in given:
            raise _WrongArgument(f"argument --{name} is required")
    if rules.one_of and not chosen:
        raise _WrongArgument(f"one of the arguments {' '.join(f'--{each}' for each in rules.one_of)} is required")


def _reason(text: str, kind: str) -> str:
    """Java's message about text that is not a number of the type. Java parses a Short as an Integer first."""
    if kind == "Short" and _is_number(text, "Integer"):
        return f'Value out of range. Value:"{text}" Radix:10'
    return f'For input string: "{text}"'


def _is_number(text: str, kind: str) -> bool:
    if kind == "Double":
        try:
            float(text)
        except ValueError:
            return False
        return "_" not in text
    return bool(_WHOLE.fullmatch(text)) and -(2 ** _BITS[kind]) <= int(text) < 2 ** _BITS[kind]


class Command(NamedTuple):
    """A command of a tool, with options of its own, which follow its name."""

    name: str
    help: str
    options: Sequence[Option] = ()
    required: Sequence[str] = ()
    numbers: Mapping[str, str] = {}


class CommandRules(NamedTuple):
    """A tool with commands: the options before the command, as its usage shows them, and the commands."""

    tool: str
    shown: Sequence[str]
    """The options before the command that are not `-h` and `-v`."""
    shown_required: str
    """Those of them that are required, as the usage of a command shows them."""
    required: Sequence[str]
    commands: Sequence[Command]
    terse: str = ""
    """The one line of an error, with `{}` for the message. Empty: the usage, then the message."""
    purpose: str = ""
    """The text of a help that ends with exit code 0. Empty: the help is that of `main`, an error."""
    refused: Mapping[str, str] = {}
    """Commands of Kafka's tool that are not there, with the reason."""

    @property
    def letters(self) -> Mapping[str, str]:
        """The options of one letter. Of argparse's own ones there is only `-h`."""
        return _HELP_LETTER if self.purpose else _LETTERS


def parse_command(rules: CommandRules, options: Sequence[Option], words: Sequence[str]) -> Options:
    """The options before the command, the command as the only word, and its options.

    options: all that the tool has. Those of commands are known only after their command.
    Raises WrongWords, ToolError, AskedHelp.
    """
    own = {option.name for command in rules.commands for option in command.options}
    before = [each for each in options if each.name not in own]
    try:
        given, at = _read_words(before, words, rules.letters, stop=True)
        if "help" in given and rules.purpose:
            raise AskedHelp(_tool_help(rules, before))
        if given.keys() & {"help", "version"}:
            return Options(given, (), words)
        # The command takes all words after it, and its errors come before those of the options before it.
        command = _find_command(rules, words[at:])
        found = _read_command(rules, command, words[at + 1 :])
        _check_given(ArgumentRules(rules.tool, rules.required), given)
    except _WrongArgument as error:
        raise _wrong_words(rules, _tool_usage(rules), error) from None
    return Options(given | found, (command.name,), words)


def _wrong_words(rules: CommandRules, usage: str, error: _WrongArgument) -> WrongWords:
    return WrongWords(rules.terse.format(error) if rules.terse else f"{usage}\n{rules.tool}: error: {error}")


def _find_command(rules: CommandRules, rest: Sequence[str]) -> Command:
    if not rest:
        raise _WrongArgument("too few arguments")
    for command in rules.commands:
        if command.name == rest[0]:
            return command
    if reason := rules.refused.get(rest[0]):
        raise _WrongArgument(f"{rest[0]} is a command of Apache Kafka's tool that Ottla's does not have: {reason}")
    names = ", ".join(f"'{command.name}'" for command in rules.commands)
    raise _WrongArgument(f"invalid choice: '{rest[0]}' (choose from {names})")


def _read_command(rules: CommandRules, command: Command, words: Sequence[str]) -> dict[str, list[str]]:
    usage = _command_usage(rules, command)
    try:
        given, _ = _read_words((*command.options, flag("help", "")), words)
        if "help" in given:
            raise _command_help(rules, command, usage)
        _check_given(ArgumentRules(rules.tool, command.required, command.numbers), given)
    except _WrongArgument as error:
        raise _wrong_words(rules, usage, error) from None
    return given


def _command_help(rules: CommandRules, command: Command, usage: str) -> Exception:
    if rules.purpose:
        return AskedHelp(f"{usage}\n\n{_list_arguments(command.options)}")
    return ToolError(f"{usage}\n\n{usage_text(command.options)}")


def _tool_help(rules: CommandRules, options: Sequence[Option]) -> str:
    rows = [(f"  {_choices(rules)}", ""), *((f"    {each.name}", each.help) for each in rules.commands)]
    commands = "positional arguments:\n" + "\n".join(_help_rows(rows))
    return f"{_tool_usage(rules)}\n\n{rules.purpose}\n\n{commands}\n\n{_list_arguments(options)}"


def _list_arguments(options: Sequence[Option]) -> str:
    """The options with their texts, as argparse lays them out. Those that are refused are left out."""
    works = [option for option in options if not option.unfinished and option.name != "help"]
    rows = [("  -h, --help", "show this help message and exit")]
    rows += [(f"  {_with_value(option)}", option.help) for option in works]
    return "optional arguments:\n" + "\n".join(_help_rows(rows))


def _help_rows(rows: Sequence[tuple[str, str]]) -> list[str]:
    lines = []
    for name, text in rows:
        texts = wrap(text, _WIDTH - _HELP_COLUMN)
        # A name that reaches the column of the texts has a line of its own.
        if len(name) + 2 > _HELP_COLUMN or not texts:
            lines.append(name)
        else:
            lines.append(f"{name:<{_HELP_COLUMN}}{texts.pop(0)}")
        lines += [" " * _HELP_COLUMN + each for each in texts]
    return lines


def list_commands(commands: Sequence[Command]) -> str:
    """The list of commands in the text of `--help`."""
    wide = max(len(command.name) for command in commands)
    return "commands:\n" + "\n".join(f"    {command.name:<{wide}}  {command.help}" for command in commands)


def _choices(rules: CommandRules) -> str:
    return f"{{{','.join(command.name for command in rules.commands)}}}" if rules.purpose else "COMMAND"


def _tool_usage(rules: CommandRules) -> str:
    return _wrap_usage(rules.tool, [*(f"[{each}]" for each in rules.letters), *rules.shown, _choices(rules), "..."])


def _command_usage(rules: CommandRules, command: Command) -> str:
    named = [(each.name, _with_value(each)) for each in command.options]
    shown = [text if name in command.required else f"[{text}]" for name, text in named]
    return _wrap_usage(rules.tool, [*filter(None, [rules.shown_required]), command.name, "[-h]", *shown])


def _with_value(option: Option) -> str:
    value = "" if option.takes is Takes.NOTHING else f" {option.name.upper().replace('-', '_')}"
    return f"--{option.name}{value}"


def _wrap_usage(tool: str, parts: Sequence[str]) -> str:
    """The line of usage, with breaks between its parts only."""
    # Names of options have dashes, at which textwrap would break.
    lines = [f"usage: {tool}"]
    for part in parts:
        if len(lines[-1]) + 1 + len(part) > _WIDTH:
            lines.append(" " * len(f"usage: {tool}"))
        lines[-1] += f" {part}"
    return "\n".join(lines)
