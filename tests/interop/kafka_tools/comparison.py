"""Runs the same words with Apache Kafka's tool and with Ottla's, each with names of its own, and compares the output.

Zone: real.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import re
import shlex
from collections.abc import Callable, Iterable

from testbench.apache_kafka.tool_shell import ToolShell

from ottla.kafka_tools.main import load_tool, run_tool

_STACK = re.compile(r"\s+at \S+\(.*\)$|\tSuppressed: |\s+\.\.\. \d+ (more|common)|Caused by: ")
_LOGGED = re.compile(r"\[[^\]]*(AdminClient|Producer|Consumer) clientId=")
_ADVICE = "The consumer rebalance protocol (KIP-848)"  # for a protocol that Ottla's consumer does not have
_SET = re.compile(r"\[[\w-]+\](?:, \[[\w-]+\])+")  # options, in the order of a set
_REPLACED = (
    # A tagged field of a transaction's record, written after its epoch grew, which the tools compared here pass over.
    (re.compile(r',"lastProducerEpoch":\d+'), ""),
    (re.compile(r"TopicId: [\w-]{22}"), "TopicId: ID"),
    (re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "UUID"),
    (re.compile(r"Valid states are: .*"), "Valid states are: SET"),  # in the order of a set
    (re.compile(r"only supports operations .*"), "only supports operations SET"),
    (re.compile(r"(?<=already elected for partitions ).*,.*"), "SET"),
    # Reasons of a file's damage, which are Ottla's own words.
    (re.compile(r"((?:CorruptIndex|InvalidRecord)Exception: ).*"), r"\1REASON"),
    (re.compile(r"(?<=Snapshot failed schema validation: ).*"), "REASON"),
    # The last levels of a list: the tools compared here are of Kafka 4.3.
    (re.compile(r"(?<=, 4\.3-IV0, 4\.4-IV0)(, 4\.[45]-IV\d)+"), ""),
    (re.compile(r"'[^']*--bootstrap-server[^']*'"), "'WORDS'"),
)


def normalized(text: str, prefix: str) -> list[str]:
    """The lines without stack traces, logged lines and lists of options; names and ids are the same."""
    lines: list[str] = []
    for raw in (text.replace(prefix, "NAME") if prefix else text).splitlines():
        line = raw.rstrip()
        if line.startswith(("Option  ", "Option (* = required)")):
            break  # the list of options, which is longer or shorter
        if not _STACK.match(raw) and not _LOGGED.match(line) and not line.startswith(_ADVICE):
            for pattern, replacement in _REPLACED:
                line = pattern.sub(replacement, line)
            lines.append(_SET.sub(lambda found: ", ".join(sorted(found[0].split(", "))), line))
    while lines and not lines[-1]:
        lines.pop()
    return lines


def run_ottla(name: str, words: list[str]) -> tuple[int, str]:
    """The exit code of Ottla's tool, and all that it prints."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        code = run_tool(load_tool(name), words)
    return code, output.getvalue()


class Comparison:
    """Both tools against one broker. `{name}` in words is a prefix of names: one of six letters for each side."""

    def __init__(self, shell: ToolShell, bootstrap: str, stem: str) -> None:
        self.shell = shell
        self.bootstrap = bootstrap
        self.kafka_prefix = f"k{stem}"
        self.ottla_prefix = f"o{stem}"

    def prepare(self, make: Callable[[str], object]) -> None:
        """Make for each side what its words name."""
        make(self.kafka_prefix)
        make(self.ottla_prefix)

    def compare(
        self, tool: str, script: str, *, ordered: bool = True, same_words: bool = False, hidden: Iterable[object] = ()
    ) -> None:
        """Run each line of the script with both; exit codes and normalized output must be equal.

        ordered: also the order of lines. same_words: the output has the names of both sides. hidden: words that are not
        compared.
        """
        words = re.compile("|".join(re.escape(str(each)) for each in hidden) or "(?!)")
        for line in script.strip().splitlines():
            theirs, ours = (self._run(tool, line, words, mine=mine, same=same_words) for mine in (False, True))
            if not ordered:
                theirs, ours = ((code, sorted(filter(None, map(str.strip, lines)))) for code, lines in (theirs, ours))
            diff = "\n".join(difflib.unified_diff(theirs[1], ours[1], "Apache Kafka", "Ottla", lineterm=""))
            assert ours == theirs, f"{tool} {line.strip()}: exit codes {theirs[0]} and {ours[0]}\n{diff}"

    def _run(self, tool: str, line: str, hidden: re.Pattern[str], *, mine: bool, same: bool) -> tuple[int, list[str]]:
        prefix = self.ottla_prefix if mine else self.kafka_prefix
        filled = line.strip().replace("{name}", prefix).replace("BS", f"--bootstrap-server {self.bootstrap}")
        words = shlex.split(filled)
        code, text = run_ottla(tool, words) if mine else self.shell.run(tool, *words)
        return code, normalized(hidden.sub("HIDDEN", text), "" if same else prefix)
