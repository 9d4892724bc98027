"""Words by the rules of argparse: abbreviations, several values, and its messages."""

from __future__ import annotations

import pytest

from ottla.kafka_tools.argument_parser import ArgumentRules, Command, CommandRules, parse_arguments, parse_command
from ottla.kafka_tools.options import HELP, AskedHelp, Option, Takes, WrongWords, flag, value, values

RULES = ArgumentRules("kafka-x", ("topic",), {"size": "Integer", "count": "Long", "rate": "Double"}, ("size", "plain"))
OPTIONS = (
    value("topic", "A topic."),
    value("size", "A number."),
    value("count", "A number."),
    value("rate", "A number."),
    flag("plain", "No number."),
    Option("props", Takes.SEVERAL, "Properties."),
    values("each", "A value."),
    value("old", "An option.", "it is old"),
    *HELP,
)
GOOD = ["--topic", "a", "--plain"]


def test_values() -> None:
    words = ["--topic=a=b", "--si", "-5", "--props", "x=1", "y=2", "--rate", "-.5"]
    assert parse_arguments(RULES, OPTIONS, words).given == {
        "topic": ["a=b"],
        "size": ["-5"],
        "props": ["x=1", "y=2"],
        "rate": ["-.5"],
    }
    assert parse_arguments(RULES, OPTIONS, [*GOOD, "--topic", "b"]).value_of("topic") == "b"
    repeated = parse_arguments(RULES, OPTIONS, [*GOOD, "--each", "a", "--each=b"])
    assert repeated.values_of("each") == ["a", "b"]


@pytest.mark.parametrize(
    "words", [[], ["-h"], ["--help"], ["--version", "--topic", "a"], ["-h", "--nonsense"], ["--help", "word"]]
)
def test_nothing_is_required_for_help(words: list[str]) -> None:
    assert "plain" not in parse_arguments(RULES, OPTIONS, words).given


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--plain"], "argument --topic is required"),
        (["--topic", "a"], "one of the arguments --size --plain is required"),
        (["--topic"], "argument --topic: expected one argument"),
        (["--topic", "--plain"], "argument --topic: expected one argument"),
        ([*GOOD, "--props", "--topic", "a"], "argument --props: expected at least one argument"),
        ([*GOOD, "--size", "1"], "argument --size: not allowed with argument --plain"),
        ([*GOOD, "word"], "unrecognized arguments: 'word'"),
        ([*GOOD, "--nonsense"], "unrecognized arguments: '--nonsense'"),
        ([*GOOD, "-topic"], "unrecognized arguments: '-topic'"),
        ([*GOOD, "--p"], "ambiguous option: --p could match --plain, --props"),
        (["--topic", "a", "--plain=x"], "argument --plain: ignore implicit argument 'x'"),
        (
            ["--topic", "a", "--size", "x"],
            "argument --size: could not convert 'x' to Integer (For input string: \"x\")",
        ),
        ([*GOOD, "--count", str(2**63)], f"argument --count: could not convert '{2**63}' to Long"),
        ([*GOOD, "--count", "1_0"], "argument --count: could not convert '1_0' to Long"),
        ([*GOOD, "--rate", "1_0"], "argument --rate: could not convert '1_0' to Double"),
        ([*GOOD, "--rate", "x"], "argument --rate: could not convert 'x' to Double"),
        ([*GOOD, "--old", "x"], "--old is an option of Apache Kafka's tool that Ottla's does not have: it is old"),
    ],
)
def test_errors(words: list[str], message: str) -> None:
    with pytest.raises(WrongWords) as caught:
        parse_arguments(RULES, OPTIONS, words)
    usage, _, rest = caught.value.message.partition("\nkafka-x: error: ")
    assert rest.startswith(message)
    assert usage.startswith("usage: kafka-x [-h] --topic TOPIC [--size SIZE]")
    assert "old" not in usage
    assert "[--props PROPS [PROPS ...]]" in usage


SERVER = value("server", "An address.")
COMMANDS = (
    Command(
        "make", "make it", (value("some-size", "A number."), flag("plain", "")), ("some-size",), {"some-size": "Short"}
    ),
    Command("list", "list them"),
)
COMMAND_RULES = CommandRules("kafka-x.sh", ("--server x:1",), "--server x:1", ("server",), COMMANDS)
ALL = (SERVER, *COMMANDS[0].options, *HELP)


def test_a_command_and_its_options() -> None:
    parsed = parse_command(COMMAND_RULES, ALL, ["--server", "a", "make", "--some", "-3"])
    assert (parsed.words, parsed.given) == (("make",), {"server": ["a"], "some-size": ["-3"]})
    assert parse_command(COMMAND_RULES, ALL, ["-v", "nonsense"]).has("version")
    assert parse_command(COMMAND_RULES, ALL, ["-h"]).has("help")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "too few arguments"),
        ("--server a", "too few arguments"),
        ("list", "argument --server is required"),
        ("--server a nonsense", "invalid choice: 'nonsense' (choose from 'make', 'list')"),
        ("--some-size 3 make", "unrecognized arguments: '--some-size'"),
        ("make --server a", "unrecognized arguments: '--server'"),
        ("make -v", "unrecognized arguments: '-v'"),
        ("make", "argument --some-size is required"),
        (
            "make --some-size 40000",
            """could not convert '40000' to Short (Value out of range. Value:"40000" Radix:10)""",
        ),
        ("make --some-size x", """could not convert 'x' to Short (For input string: "x")"""),
    ],
)
def test_wrong_words_around_a_command(words: str, message: str) -> None:
    with pytest.raises(WrongWords) as caught:
        parse_command(COMMAND_RULES, ALL, words.split())
    assert message in caught.value.message
    own = words.startswith("make")
    shown = "--server x:1 make [-h] --some-size SOME_SIZE" if own else "[-h] [-v] --server x:1 COMMAND ..."
    assert shown in caught.value.message


TERSE_RULES = CommandRules("kafka-x", ("[--server SERVER]",), "", (), COMMANDS, "Wrong: {}!", "It makes lists.")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("-v", "unrecognized arguments: '-v'"),
        ("nonsense -h", "invalid choice: 'nonsense' (choose from 'make', 'list')"),
        ("make --plain", "argument --some-size is required"),
    ],
)
def test_errors_of_one_line(words: str, message: str) -> None:
    with pytest.raises(WrongWords) as caught:
        parse_command(TERSE_RULES, ALL, words.split())
    assert caught.value.message == f"Wrong: {message}!"


def test_help_in_the_form_of_argparse() -> None:
    with pytest.raises(AskedHelp) as caught:
        parse_command(TERSE_RULES, ALL, ["--server", "a", "-h", "nonsense"])
    assert str(caught.value).splitlines() == [
        "usage: kafka-x [-h] [--server SERVER] {make,list} ...",
        "",
        "It makes lists.",
        "",
        "positional arguments:",
        "  {make,list}",
        "    make                 make it",
        "    list                 list them",
        "",
        "optional arguments:",
        "  -h, --help             show this help message and exit",
        "  --server SERVER        An address.",
        "  --version              Display Kafka version.",
    ]
    with pytest.raises(AskedHelp) as caught:
        parse_command(TERSE_RULES, ALL, ["make", "--help", "--nonsense"])
    assert str(caught.value).splitlines() == [
        "usage: kafka-x make [-h] --some-size SOME_SIZE [--plain]",
        "",
        "optional arguments:",
        "  -h, --help             show this help message and exit",
        "  --some-size SOME_SIZE  A number.",
        "  --plain",
    ]
