"""Transcripts: texts in which every command is followed by what the code answers.

Zone: real. A line `> COMMAND` is a command, the indented lines below it are its answers, other lines explain. A test
plays the commands again and compares the whole text. `UPDATE_TRANSCRIPTS=1` in the environment writes the text instead,
so that a changed behaviour is a diff that a reviewer reads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path


def play_transcript(text: str, play: Callable[[str], Iterable[str]]) -> str:
    """The text with the answers that `play` gives to each command now."""
    lines = []
    for line in text.splitlines():
        if line.startswith(">"):
            lines += [line, *(f"  {said}" for said in play(line[1:].strip()))]
        elif not line.startswith("  "):
            lines.append(line)
    return "\n".join(lines) + "\n"


def check_transcript(path: Path, play: Callable[[str], Iterable[str]]) -> None:
    """Compare the file with what happens now, or write it."""
    text = path.read_text(encoding="utf-8")
    played = play_transcript(text, play)
    if "UPDATE_TRANSCRIPTS" in os.environ:
        path.write_text(played, encoding="utf-8")
    else:
        assert played == text, f"UPDATE_TRANSCRIPTS=1 writes {path.name}"


def numbers(values: Iterable[int]) -> str:
    """`1,2,3`; `-` for none."""
    return ",".join(map(str, values)) or "-"
