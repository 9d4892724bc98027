"""Options of the tools, parsed by the rules of Kafka's own tools.

Zone: pure. Declares options, parses words, checks combinations. The rules are those that users of the tools meet:
`--name value`, `--name=value` and `-name value`; an option takes the next word whatever it is, so `--time -1` works;
names are not abbreviated; words without an option are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum
from textwrap import wrap
from typing import Final, NamedTuple


class Takes(Enum):
    """How many values an option takes."""

    NOTHING = "nothing"
    VALUE = "value"
    VALUES = "values"
    """A value each time it is given."""
    MAYBE = "maybe"
    """A value if the next word is not an option."""
    SEVERAL = "several"
    """All words up to the next option, for tools that parse with `argument_parser`."""


class Option(NamedTuple):
    """An option: its name without dashes."""

    name: str
    takes: Takes
    help: str
    unfinished: str = ""
    """Why it is refused here; empty for an option that works."""


class ToolError(Exception):
    """The tool cannot do what its words say: its own line of output, and exit code 1.

    java_class: the class of the exception that Kafka's tool prints after that line, for scripts that look for it.
    """

    def __init__(self, message: str, java_class: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.java_class = java_class


class WrongWords(ToolError):
    """A word that the parser cannot use: `nonsense is not a recognized option`."""


class WrongUsage(ToolError):
    """Options that do not fit together: the message, then the list of options."""


class AskedHelp(Exception):
    """The help that the words ask for: printed to standard output, with exit code 0."""


class Options(NamedTuple):
    """The options that were given: values by name, [] for an option without value."""

    given: Mapping[str, Sequence[str]]
    words: Sequence[str] = ()
    """Words that belong to no option."""
    line: Sequence[str] = ()
    """All words."""
    order: Sequence[str] = ()
    """The names of the options, in the order and as often as they were given; `argument_parser` leaves it empty."""

    def has(self, name: str) -> bool:
        """Whether the option was given."""
        return name in self.given

    def value_of(self, name: str, default: str = "") -> str:
        """The value of an option. Raises ToolError for one that was given twice."""
        values = self.given.get(name, ())
        if len(values) > 1:
            raise ToolError(
                f"Found multiple arguments for option {name}, but you asked for only one",
                "joptsimple.MultipleArgumentsForOptionException",
            )
        return values[0] if values else default

    def values_of(self, name: str) -> Sequence[str]:
        """All values of an option."""
        return self.given.get(name, ())

    def number_of(self, name: str, default: int, bits: int = 63) -> int:
        """The value of an option as a number with a sign: a Long, or with 31 bits an Integer. Raises ToolError."""
        text = self.value_of(name)
        if not self.has(name):
            return default
        try:
            number = int(text)
        except ValueError:
            # Out of range, so that text and numbers that are too large get one message, as in Kafka's tools.
            number = 2**bits
        if not -(2**bits) <= number < 2**bits or "_" in text:
            raise ToolError(
                f"Cannot parse argument '{text}' of option {name}", "joptsimple.OptionArgumentConversionException"
            )
        return number


def flag(name: str, text: str, unfinished: str = "") -> Option:
    """An option without a value."""
    return Option(name, Takes.NOTHING, text, unfinished)


def value(name: str, text: str, unfinished: str = "") -> Option:
    """An option with a value."""
    return Option(name, Takes.VALUE, text, unfinished)


def values(name: str, text: str, unfinished: str = "") -> Option:
    """An option with a value each time it is given."""
    return Option(name, Takes.VALUES, text, unfinished)


HELP: Final = (
    flag("help", "Print usage information."),
    flag("version", "Display Kafka version."),
)
SERVER: Final = (value("bootstrap-server", "REQUIRED: The server(s) to use for bootstrapping."),)
COMMAND_CONFIG: Final = (value("command-config", "Property file containing configs to be passed to Admin Client."),)
ZOOKEEPER: Final = "zookeeper"
_AUTHORIZER: Final = "authorizer-properties"
ZOOKEEPER_OPTION: Final = (
    value(
        ZOOKEEPER, "DEPRECATED: host:port,host:port/chroot of ZooKeeper, where the address of a broker is looked up."
    ),
)
"""The old option of those tools that take it."""


def parse_words(options: Iterable[Option], words: Sequence[str]) -> Options:
    """The options in the words. Raises WrongWords."""
    known = {option.name: option for option in options}
    given: dict[str, list[str]] = {}
    rest: list[str] = []
    order: list[str] = []
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        # As in joptsimple, which Kafka's tools parse with: after it there are only plain words.
        if word == "--":
            rest += words[at:]
            break
        # A single dash is a word: many tools take it for standard input.
        if not word.startswith("-") or word == "-":
            rest.append(word)
            continue
        # Kafka's tools take `-topic x`, `--topic x` and `--topic=x`.
        name, equals, attached = word.lstrip("-").partition("=")
        option = _known_option(known, name)
        found = given.setdefault(name, [])
        order.append(name)
        if option.takes is Takes.NOTHING:
            continue
        if equals:
            found.append(attached)
        # A value may begin with a dash where one is required: `--to-offset -1`.
        elif option.takes is not Takes.MAYBE or _is_value(words[at : at + 1]):
            if at == len(words):
                raise WrongWords(
                    f"Option {name} requires an argument", "joptsimple.OptionMissingRequiredArgumentException"
                )
            found.append(words[at])
            at += 1
    return Options(given, rest, words, order)


def _is_value(next_word: Sequence[str]) -> bool:
    return bool(next_word) and not next_word[0].startswith("-")


def _known_option(known: Mapping[str, Option], name: str) -> Option:
    if name == ZOOKEEPER and name not in known:
        raise WrongWords(
            "zookeeper is not a recognized option: this tool talks to brokers. Use --bootstrap-server HOST:PORT with "
            "the address of a broker, whose port is 9092 by default, in place of --zookeeper HOST:2181/chroot",
            "joptsimple.UnrecognizedOptionException",
        )
    option = known.get(name)
    if option is None:
        raise WrongWords(f"{name} is not a recognized option", "joptsimple.UnrecognizedOptionException")
    # Refused rather than ignored: a script that relies on it would go wrong later, without a word.
    if option.unfinished:
        raise WrongWords(
            f"--{name} is an option of Apache Kafka's tool that Ottla's does not have: {option.unfinished}"
        )
    return option


def zookeeper_connect(options: Options) -> str:
    """The ZooKeeper that old options name in place of a broker, `host:port/chroot`; empty if none does."""
    if options.has(ZOOKEEPER):
        return options.value_of(ZOOKEEPER)
    properties = dict(word.partition("=")[::2] for word in options.values_of(_AUTHORIZER))
    return properties.get("zookeeper.connect", "")


def names_cluster(options: Options) -> bool:
    """Whether the options name a cluster, in the new or the old way."""
    return options.has("bootstrap-server") or bool(zookeeper_connect(options))


def require_options(options: Options, *names: str) -> None:
    """Raises WrongUsage for the first of the options that is missing."""
    for name in names:
        if not options.has(name):
            raise WrongUsage(f'Missing required argument "[{name}]"')


def refuse_unavailable(options: Options, needed: Mapping[str, Sequence[str]]) -> None:
    """Raises WrongWords for an option that was given without one of the options that it needs; not with --help."""
    alone = [name for name, others in needed.items() if options.has(name) and not any(map(options.has, others))]
    if alone and not options.has("help"):
        raise WrongWords(
            f"Option(s) [{', '.join(alone)}] are unavailable given other options on the command line",
            "joptsimple.UnavailableOptionException",
        )


def refuse_together(options: Options, used: str, others: Iterable[str]) -> None:
    """Raises WrongUsage if one of the others was given together with `used`."""
    if not options.has(used):
        return
    for other in others:
        if options.has(other):
            raise WrongUsage(f'Option "[{used}]" can\'t be used with option "[{other}]"')


def single_action(options: Options, actions: Collection[str], message: str) -> str:
    """The one action that was given. Raises WrongUsage with the message."""
    found = [action for action in actions if options.has(action)]
    if len(found) != 1:
        raise WrongUsage(message)
    return found[0]


_WIDTH: Final = 40


def usage_text(options: Iterable[Option]) -> str:
    """The list of options, in two columns as Kafka's tools print it."""
    lines = [f"{'Option':<{_WIDTH}} Description", f"{'------':<{_WIDTH}} -----------"]
    for option in sorted(options, key=lambda each: each.name):
        # The list names what works here.
        if option.unfinished:
            continue
        shown = f"--{option.name}" + {Takes.NOTHING: "", Takes.MAYBE: " [String]"}.get(option.takes, " <String>")
        first, *more = wrap(option.help, _WIDTH - 2) or [""]
        lines.append(f"{shown:<{_WIDTH}} {first}")
        lines += [f"{'':<{_WIDTH}}   {each}" for each in more]
    return "\n".join(lines)


class WordsReport(Enum):
    """How a tool reports words that the parser cannot use."""

    WITH_CLASS = "the message, and the exception"
    CLASS_ONLY = "the exception"
    WITH_PREFIX = "the message after the tool's prefix"
    PLAIN = "the message"
    WITH_USAGE = "the message, and the list of options"


class Tool(NamedTuple):
    """A tool: what it is for, its options, and how it prints that it failed."""

    purpose: str
    options: Sequence[Option]
    run: Callable[[Options], int | None]
    prefix: str = ""
    """The beginning of the line about a failure."""
    to_stdout: bool = False
    """Whether that line is printed to standard output."""
    wrong_words: WordsReport = WordsReport.WITH_CLASS
    """How the tool prints a word that it cannot use."""
    all_to_stdout: bool = False
    """Whether the exception also is."""
    wrap_refusals: bool = False
    """Whether an error of the cluster is the cause of another exception, as where Kafka's tool waits for a future."""
    class_only: bool = False
    """Whether a failure is printed as the exception alone, as where Kafka's tool catches none."""
    parse: Callable[[Sequence[Option], Sequence[str]], Options] = parse_words
    """The rules by which words are parsed; `argument_parser` has the other ones."""
