"""The values of the records that kafka-producer-perf-test sends.

Zone: real. Reads the file of payloads.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator
from itertools import count
from typing import Final

from ottla.kafka_tools.connection import read_file
from ottla.kafka_tools.options import Options, ToolError

_LETTERS: Final = bytes(65 + byte % 26 for byte in range(256))


def make_payloads(options: Options) -> Iterator[bytes]:
    """A value for each record, without end. Raises ToolError."""
    if options.has("payload-file"):
        return _chosen(_read_payloads(options.value_of("payload-file"), options.value_of("payload-delimiter", "\\n")))
    if options.has("record-size"):
        return _letters(options.number_of("record-size", 0))
    return (str(number).encode() for number in count())


def _letters(size: int) -> Iterator[bytes]:
    # The same payloads in every run, so that two runs can be compared.
    source = random.Random(0)
    while True:
        yield source.randbytes(size).translate(_LETTERS)


def _chosen(payloads: list[bytes]) -> Iterator[bytes]:
    source = random.Random(0)
    while True:
        yield source.choice(payloads)


def _read_payloads(path: str, delimiter: str) -> list[bytes]:
    print(f"Reading payloads from: {os.path.abspath(path)}")
    if not os.path.exists(path) or not os.path.getsize(path):
        raise ToolError("java.lang.IllegalArgumentException: File does not exist or empty file provided.")
    payloads = split_payloads(read_file(path), delimiter)
    print(f"Number of records read: {len(payloads)}")
    if not payloads:
        raise ToolError(f"java.lang.IllegalArgumentException: {path} has only delimiters, and no payload")
    return payloads


def split_payloads(text: str, delimiter: str) -> list[bytes]:
    """The parts between delimiters, which are a regular expression; one at the beginning and at the end divide nothing.

    Raises ToolError for an invalid expression.
    """
    try:
        found = list(re.finditer(delimiter, text))
    except (re.error, OverflowError, RecursionError) as error:
        raise ToolError(f"java.util.regex.PatternSyntaxException: {error}: {delimiter}") from None
    edges = [0, *(edge for each in found for edge in each.span()), len(text)]
    parts = [text[start:end].encode() for start, end in zip(edges[::2], edges[1::2], strict=True)]
    return parts[not parts[0] : len(parts) - (not parts[-1])]
