"""Options of the tools: words as Kafka's tools read them."""

from __future__ import annotations

import pytest

from ottla.kafka_tools.name_filter import matching_names
from ottla.kafka_tools.options import (
    Option,
    Options,
    Takes,
    ToolError,
    WrongUsage,
    WrongWords,
    flag,
    parse_words,
    refuse_together,
    require_options,
    single_action,
    usage_text,
    value,
    values,
)

OPTIONS = (
    flag("list", "List."),
    value("time", "A time."),
    values("config", "A setting."),
    Option("state", Takes.MAYBE, "A state."),
    value("later", "Later.", "it is not written yet"),
)


def parse(*words: str) -> Options:
    return parse_words(OPTIONS, words)


def test_words() -> None:
    options = parse("--list", "--time", "-1", "--config=a=b", "-config", "c=d", "extra", "--state", "Empty")
    assert options.has("list")
    assert options.value_of("time") == "-1"
    assert options.number_of("time", 0) == -1
    assert list(options.values_of("config")) == ["a=b", "c=d"]
    assert list(options.words) == ["extra"]
    assert options.value_of("state") == "Empty"
    assert options.value_of("missing", "default") == "default"


def test_a_value_that_may_be_missing() -> None:
    assert parse("--state", "--list").value_of("state", "none") == "none"
    assert parse("--state").has("state")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--nonsense",), "nonsense is not a recognized option"),
        (("--lis",), "lis is not a recognized option"),
        (("--time",), "Option time requires an argument"),
        (
            ("--later", "x"),
            "--later is an option of Apache Kafka's tool that Ottla's does not have: it is not written yet",
        ),
    ],
)
def test_wrong_words(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(WrongWords) as caught:
        parse(*words)
    assert caught.value.message == message


def test_zookeeper_names_the_option_to_use() -> None:
    with pytest.raises(WrongWords, match="Use --bootstrap-server HOST:PORT"):
        parse("--zookeeper", "localhost:2181/chroot")


@pytest.mark.parametrize("text", ["a", "9" * 30, "1_000", ""])
def test_numbers(text: str) -> None:
    with pytest.raises(ToolError, match="Cannot parse argument"):
        parse("--time", text).number_of("time", 0)


def test_an_option_given_twice() -> None:
    with pytest.raises(ToolError, match="Found multiple arguments for option time"):
        parse("--time", "1", "--time", "2").value_of("time")


def test_combinations() -> None:
    options = parse("--list", "--time", "1")
    assert single_action(options, ("list", "create"), "one action") == "list"
    with pytest.raises(WrongUsage, match="one action"):
        single_action(options, ("list", "time"), "one action")
    with pytest.raises(WrongUsage, match="can't be used with"):
        refuse_together(options, "list", ("time",))
    with pytest.raises(WrongUsage, match="Missing required argument"):
        require_options(options, "config")


def test_the_list_of_options_leaves_out_unfinished_ones() -> None:
    text = usage_text(OPTIONS)
    assert text.startswith("Option ")
    assert "--time <String>" in text
    assert "--later" not in text


def test_names() -> None:
    assert matching_names("a.*,b", ["a1", "b", "b1", "c"]) == ["a1", "b"]
    assert matching_names("'a|b'", ["a", "b"]) == ["a", "b"]
    with pytest.raises(ToolError, match="invalid regex"):
        matching_names("(", ["a"])
