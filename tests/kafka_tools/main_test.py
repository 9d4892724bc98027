"""The entry point: which tool runs, what it prints, and its exit codes."""

from __future__ import annotations

import io
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from ottla import __version__
from ottla.kafka_tools.connection import client_settings, read_file
from ottla.kafka_tools.java_classes import CLASSES, RUN_CLASS
from ottla.kafka_tools.main import TOOLS, load_tool, main, run_tool
from ottla.kafka_tools.options import Options, Tool, ToolError, WordsReport, parse_words
from ottla.kafka_tools.tools.console.console_producer import input_lines
from ottla.server.embedded import EmbeddedBroker

ROOT = Path(__file__).resolve().parents[2]
ARGPARSE_HELP = {"kafka-features", "kafka-metadata-quorum"}
"""Tools whose help has argparse's form and exit code 0. Their own tests have its text."""


def test_every_tool_has_two_scripts() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert {name for name in scripts if name.startswith("kafka-")} == {
        f"{name}{end}" for name in (*TOOLS, RUN_CLASS) for end in ("", ".sh")
    }
    assert {scripts[name] for name in scripts if name.startswith("kafka-")} == {"ottla.kafka_tools.main:main"}


def test_every_tool_and_every_refused_option_is_documented() -> None:
    page = (ROOT / "docs" / "kafka-tools.md").read_text()
    for name in TOOLS:
        assert f"`{name}`" in page
        for option in load_tool(name).options:
            assert not option.unfinished or f"--{option.name}" in page, f"{name} --{option.name}"


def exit_of(*words: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert isinstance(caught.value.code, int)
    return caught.value.code


def test_a_tool_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_of("kafka-streams-application-reset.sh") == 1
    assert (
        "kafka-streams-application-reset is not a tool that Ottla has. It has: kafka-topics" in capsys.readouterr().err
    )


@pytest.mark.parametrize("name", TOOLS)
def test_version(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_of(f"{name}.sh", "--version") == 0
    assert capsys.readouterr().out == f"4.4.0 (Ottla {__version__})\n"


@pytest.mark.parametrize("name", [each for each in TOOLS if each not in ARGPARSE_HELP])
def test_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_of(name, "--help") == 1
    shown = capsys.readouterr().err
    assert shown.startswith(load_tool(name).purpose)
    for option in load_tool(name).options:
        assert (f"--{option.name}" in shown.split()) is not bool(option.unfinished)


@pytest.mark.parametrize("java_class", CLASSES)
def test_a_class_is_a_tool(java_class: str, capsys: pytest.CaptureFixture[str]) -> None:
    succeeds = CLASSES[java_class] in ARGPARSE_HELP
    assert exit_of("kafka-run-class.sh", "-name", "x", "-loggc", java_class, "--help") == (0 if succeeds else 1)
    shown = capsys.readouterr()
    purpose = load_tool(CLASSES[java_class]).purpose
    assert purpose in shown.out if succeeds else shown.err.startswith(purpose)


def test_every_tool_has_a_class() -> None:
    assert set(CLASSES.values()) == set(TOOLS)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["kafka.tools.Nonsense", "x"],
            (
                "Error: Could not find or load main class kafka.tools.Nonsense\n"
                "Caused by: java.lang.ClassNotFoundException: kafka.tools.Nonsense\n"
            ),
        ),
        ([], "USAGE: kafka-run-class [-name servicename] [-loggc] classname [opts]\n"),
        (["-daemon", "kafka.Kafka"], "-daemon is an option of Apache Kafka's script that Ottla's does not have"),
    ],
)
def test_words_that_are_no_class_of_a_tool(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_of("kafka-run-class", *words) == 1
    assert capsys.readouterr().err.startswith(message)


def test_the_name_of_the_script_decides(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["/opt/bin/kafka-topics.sh", "--version"])
    with pytest.raises(SystemExit):
        main()
    assert "Ottla" in capsys.readouterr().out


def failing(error: Exception, **attributes: object) -> Tool:
    def run(options: Options) -> None:
        raise error

    return Tool("A tool.", (), run, **attributes)  # type: ignore[arg-type]


def test_failures(capsys: pytest.CaptureFixture[str]) -> None:
    error = ToolError("It failed.", "java.lang.IllegalArgumentException")
    assert run_tool(failing(error, prefix="Error while executing : ", to_stdout=True), ["x"]) == 1
    shown = capsys.readouterr()
    assert shown.out == "Error while executing : It failed.\n"
    assert shown.err == "java.lang.IllegalArgumentException: It failed.\n"
    assert run_tool(failing(OSError(28, "No space left")), ["x"]) == 1
    assert "No space left" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("report", "first"),
    [
        (WordsReport.PLAIN, "x is not a recognized option\n"),
        (WordsReport.WITH_PREFIX, "Error: x is not a recognized option\n"),
        (WordsReport.CLASS_ONLY, "joptsimple.UnrecognizedOptionException: x is not a recognized option\n"),
    ],
)
def test_wrong_words(report: WordsReport, first: str, capsys: pytest.CaptureFixture[str]) -> None:
    tool = failing(AssertionError(), prefix="Error: ", wrong_words=report)
    assert run_tool(tool, ["--x"]) == 1
    assert capsys.readouterr().err == first


def test_files_are_bounded_and_named(tmp_path: Path) -> None:
    file = tmp_path / "settings"
    file.write_bytes(b"12345")
    assert read_file(str(file), 5) == "12345"
    with pytest.raises(ToolError, match="is longer than 4 bytes"):
        read_file(str(file), 4)
    file.write_bytes(b"\xff")
    with pytest.raises(ToolError, match="is not UTF-8"):
        read_file(str(file))
    with pytest.raises(ToolError, match="No such file"):
        read_file(str(tmp_path / "missing"))


def test_lines_are_bounded() -> None:
    assert list(input_lines(io.BytesIO(b"one\r\n\ntwo"))) == [b"one", b"", b"two"]
    with pytest.raises(ToolError, match="longer than 3 bytes"):
        list(input_lines(io.BytesIO(b"12345\n"), 3))


def test_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "client.properties"
    file.write_text("client.id=me\nmetric.reporters=x\nbootstrap.servers=a:1\n")
    options = parse_words(
        load_tool("kafka-topics").options, ["--bootstrap-server", "b:2", "--command-config", str(file)]
    )
    assert client_settings(options, given=["request.timeout.ms=5"]) == {
        "client.id": "me",
        "request.timeout.ms": "5",
        "bootstrap.servers": "b:2",
    }
    assert "'metric.reporters' was supplied but is not used" in capsys.readouterr().err
    with pytest.raises(ToolError, match="not of the form key=value"):
        client_settings(options, given=["nonsense"])


def test_a_tool_starts_without_the_client() -> None:
    """The whole client takes longer to import than a tool needs to print its version."""
    program = (
        "import sys, ottla.kafka_tools.main; print([each for each in sys.modules if each.startswith('ottla.client')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_topics_of_a_broker(capsys: pytest.CaptureFixture[str]) -> None:
    with EmbeddedBroker() as broker:
        at = ("--bootstrap-server", broker.bootstrap)
        tool = load_tool("kafka-topics")
        assert run_tool(tool, ["--create", "--topic", "a_b", "--partitions", "2", *at]) == 0
        assert capsys.readouterr().out.splitlines()[1] == "Created topic a_b."
        # One partition in a page: the second one comes after a cursor.
        assert run_tool(tool, ["--describe", "--topic", "a_b", "--partition-size-limit-per-response", "1", *at]) == 0
        assert capsys.readouterr().out.count("\tElr: \tLastKnownElr: \n") == 2
        assert run_tool(load_tool("kafka-consumer-groups"), ["--list", "--timeout", "nonsense", *at]) == 1
        assert "default.api.timeout.ms" in capsys.readouterr().err
        assert run_tool(tool, ["--create", "--topic", "a_b", *at]) == 1
        shown = capsys.readouterr()
        assert "Error while executing topic command : Topic 'a_b' already exists." in shown.out
        assert "org.apache.kafka.common.errors.TopicExistsException" in shown.err
        assert run_tool(load_tool("kafka-cluster"), ["cluster-id", *at]) == 0
        assert capsys.readouterr().out.startswith("Cluster ID: ")
        assert run_tool(load_tool("kafka-cluster"), ["list-endpoints", *at]) == 0
        assert capsys.readouterr().out.split()[:5] == ["ID", "HOST", "PORT", "RACK", "ENDPOINT_TYPE"]
        assert run_tool(load_tool("kafka-broker-api-versions"), at) == 0
        shown_versions = capsys.readouterr().out
        assert f"{broker.bootstrap} (id: 1 rack: null isFenced: false) -> (\n\tProduce(0): 0 to " in shown_versions
        assert "\tShareFetch(78): UNSUPPORTED,\n" in shown_versions
