"""The entry point of all tools: the name of the script decides which one runs.

Zone: real. A tool's module is imported when it is run, so that each starts quickly.

Exit codes: 0 ok · 1 error, as in Kafka · 130 interrupted · 141 broken pipe.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

from ottla.kafka_tools.java_classes import RUN_CLASS, find_tool
from ottla.kafka_tools.options import (
    HELP,
    AskedHelp,
    Option,
    Options,
    Tool,
    ToolError,
    WordsReport,
    WrongUsage,
    WrongWords,
    usage_text,
)
from ottla.terminal import protect_streams

ERROR, INTERRUPTED, BROKEN_PIPE = 1, 130, 141
KAFKA_VERSION: Final = "4.4.0"
"""The version whose tools these follow."""
TOOLS: Final = {
    "kafka-topics": "topics.topics",
    "kafka-console-producer": "console.console_producer",
    "kafka-console-consumer": "console.console_consumer",
    "kafka-consumer-groups": "groups.consumer_groups",
    "kafka-groups": "groups.groups",
    "kafka-share-groups": "groups.share_groups",
    "kafka-transactions": "transactions.transactions",
    "kafka-configs": "cluster.configs",
    "kafka-acls": "acls.acls",
    "kafka-delegation-tokens": "tokens.delegation_tokens",
    "kafka-get-offsets": "topics.get_offsets",
    "kafka-delete-records": "topics.delete_records",
    "kafka-broker-api-versions": "cluster.broker_api_versions",
    "kafka-client-metrics": "cluster.client_metrics",
    "kafka-features": "features.features",
    "kafka-cluster": "cluster.cluster",
    "kafka-metadata-quorum": "cluster.metadata_quorum",
    "kafka-leader-election": "partitions.leader_election",
    "kafka-log-dirs": "partitions.log_dirs",
    "kafka-replica-verification": "partitions.replica_verification",
    "kafka-reassign-partitions": "reassignment.reassign_partitions",
    "kafka-dump-log": "storage.dump_log",
    "kafka-producer-perf-test": "perf.producer_perf_test",
    "kafka-consumer-perf-test": "perf.consumer_perf_test",
    "kafka-e2e-latency": "perf.e2e_latency",
    "kafka-verifiable-producer": "perf.verifiable_producer",
    "kafka-verifiable-consumer": "perf.verifiable_consumer",
}
"""The module of each tool, in `ottla.kafka_tools.tools`; each has a `TOOL`."""


def main(words: Sequence[str] | None = None) -> None:
    """Run the tool that the words name first; without words, the one that the script is called.

    `kafka-topics.sh` is `kafka-topics`.
    """
    protect_streams()
    # An installed script has the name of its tool; `python -m ottla.kafka_tools` is given it as the first word.
    rest: Sequence[str]
    name, *rest = words or [os.path.basename(sys.argv[0]), *sys.argv[1:]]
    name = name.removesuffix(".sh")
    if name == RUN_CLASS:
        try:
            name, rest = find_tool(rest)
        except ToolError as error:
            print(error.message, file=sys.stderr)
            sys.exit(ERROR)
    if name not in TOOLS:
        print(f"{name} is not a tool that Ottla has. It has: {', '.join(TOOLS)}", file=sys.stderr)
        sys.exit(ERROR)
    try:
        code = run_tool(load_tool(name), rest)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python flushes once more at exit, and must not fail again
        code = BROKEN_PIPE
    except KeyboardInterrupt:
        code = INTERRUPTED
    sys.exit(code)


def load_tool(name: str) -> Tool:
    """The tool of a name in `TOOLS`."""
    tool = import_module(f"ottla.kafka_tools.tools.{TOOLS[name]}").TOOL
    assert isinstance(tool, Tool)
    return tool


def run_tool(tool: Tool, words: Sequence[str]) -> int:
    """Run a tool with its words, print its failure, and return the exit code."""
    # Imported here: a name that is not a tool, and the list of tools, need no client.
    from ottla.client.errors import ClientError
    from ottla.kafka_tools.java_errors import tool_error

    known = (*tool.options, *HELP)
    try:
        options = tool.parse(known, words)
        _print_help(tool, options, words)
        return tool.run(options) or 0
    except AskedHelp as asked:
        print(asked)
        return 0
    except WrongUsage as error:
        print(f"{error.message}\n{usage_text(known)}", file=sys.stderr)
    except WrongWords as error:
        _print_wrong_words(tool, error, known)
    except ToolError as error:
        _print_failure(tool, error)
    except ClientError as error:
        _print_failure(tool, tool_error(error, wrapped=tool.wrap_refusals))
    # Files that the options name. A broken pipe is for `main`, which ends without a message, as other programs do.
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        _print_failure(tool, ToolError(str(error), "java.io.IOException"))
    except _Done:
        return 0
    return ERROR


class _Done(Exception):
    """`--version` was printed."""


def _print_help(tool: Tool, options: Options, words: Sequence[str]) -> None:
    if options.has("version"):
        from ottla import __version__

        print(f"{KAFKA_VERSION} (Ottla {__version__})")
        raise _Done
    # Kafka's tools print their list of options, and exit with 1, also when they are called without words.
    if options.has("help") or not words:
        raise WrongUsage(tool.purpose)


def _print_wrong_words(tool: Tool, error: WrongWords, known: Sequence[Option]) -> None:
    report = tool.wrong_words
    if report is not WordsReport.CLASS_ONLY:
        print(f"{tool.prefix if report is WordsReport.WITH_PREFIX else ''}{error.message}", file=sys.stderr)
    if report in (WordsReport.CLASS_ONLY, WordsReport.WITH_CLASS):
        print(f"{error.java_class}: {error.message}", file=sys.stderr)
    if report is WordsReport.WITH_USAGE:
        print(usage_text(known), file=sys.stderr)


def _print_failure(tool: Tool, error: ToolError) -> None:
    stream = sys.stdout if tool.to_stdout else sys.stderr
    if not tool.class_only:
        print(f"{tool.prefix}{error.message}", file=stream, flush=True)
    if error.java_class:
        print(f"{error.java_class}: {error.message}", file=sys.stdout if tool.all_to_stdout else sys.stderr)
