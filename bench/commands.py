#!/usr/bin/env python3
"""Measure short commands: `ottla`, and Kafka's tools by their names beside Apache Kafka's own.

    bench/commands.py [--runs N] [--only KEY,KEY… [--keep]] [--quick] [--out DIR]

Exit code 1 when a row is over its limit. `--quick` is a short run for development; its verdicts are not kept.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from testbench.apache_kafka import tools
from testbench.ottla_node import OttlaNode

from bench.filling import Filling
from bench.processes import run_measured
from bench.program import Program, run_program
from bench.rows import Row
from bench.work import make_topic

HEAD = """# Results: commands

Written by `bench/commands.py`; do not edit. Each command is a process of its own, from its start to its end, with one
broker (Ottla) on the same machine. The tools of Apache Kafka {version} are started as Java itself, without the shell
script around it. Medians of {{runs}} runs of each, in turn; the first run of each is not counted.

Machine: {{machine}}. Load average during the runs: {{load}}. Measured {{when}}.
Command: `{{command}}`

| what | unit | Ottla | Apache Kafka | × | limit | verdict |
|---|---|---|---|---|---|---|
"""
VERSION = "4.4.0"
SHARED = {"topics": ("kafka-topics", "--list"), "groups": ("kafka-consumer-groups", "--list")}
"""By key, tools that both have, and their options."""


def table() -> dict[str, Row]:
    """All rows, in the order of the report."""
    rows = [
        Row("help", "`ottla --help`", "s", 0.15, None),
        Row("list", "`ottla topic list`", "s", 0.25, None),
    ]
    for key, words in SHARED.items():
        rows += [
            Row(f"{key}-time", f"`{' '.join(words)}`", "s", 0.2),
            Row(f"{key}-cpu", f"`{' '.join(words)}`", "s of CPU", 0.2),
        ]
    return {row.key: row for row in rows}


class Bench(Filling):
    """Runs the rows."""

    def run(self) -> None:
        """Run all rows on one broker."""
        with OttlaNode(self.directory / "broker") as node:
            make_topic(node.port, "orders", 2)
            for run in range(-1, self.options.runs):
                if run >= 0:
                    self.begin_run(run)
                self._measure_own(node.bootstrap, is_counted=run >= 0)
                self._measure_shared(node.bootstrap, is_counted=run >= 0)

    def _measure_own(self, bootstrap: str, *, is_counted: bool) -> None:
        for key, words in {"help": ["--help"], "list": ["topic", "list", "-b", bootstrap]}.items():
            if self.wants(key):
                used = run_measured([_script("ottla"), *words], self.directory / "log")
                if is_counted:
                    self.add(key, "ottla", used.seconds)

    def _measure_shared(self, bootstrap: str, *, is_counted: bool) -> None:
        for key, (name, *words) in SHARED.items():
            if not self.wants(f"{key}-time", f"{key}-cpu"):
                continue
            options = ["--bootstrap-server", bootstrap, *words]
            commands = {"ottla": [_script(name), *options], "kafka": tools.command(VERSION, name, *options)}
            for peer, command in commands.items():
                used = run_measured(command, self.directory / "log")
                if is_counted:
                    self.add(f"{key}-time", peer, used.seconds)
                    self.add(f"{key}-cpu", peer, used.cpu_s)


def _script(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


PROGRAM = Program("commands", __doc__, 15, "each command")


def main(arguments: list[str]) -> int:
    """Run the bench."""
    head = HEAD.format(version=VERSION)
    return run_program(PROGRAM, lambda *given: Bench(table(), *given), head, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
