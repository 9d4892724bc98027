"""The rule of commit messages, as a hook: `python -m tools.commit_message FILE`.

The subject is `area: what the commit does`, at most 72 characters, without a full stop; the body, if any, follows an
empty line.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

SUBJECT_LENGTH: Final = 72
_SUBJECT: Final = re.compile(r"[a-z][a-z0-9_-]*: \S.*")
_MADE_BY_GIT: Final = ("Merge ", "Revert ", "fixup! ", "squash! ")


def find_faults(message: str) -> list[str]:
    """What is wrong with a message, in sentences; nothing for a good one."""
    lines = [line for line in message.splitlines() if not line.startswith("#")]
    subject = lines[0] if lines else ""
    if subject.startswith(_MADE_BY_GIT):
        return []
    faults = []
    if not _SUBJECT.fullmatch(subject):
        faults.append("the subject does not read `area: what the commit does`, with an area in lower case")
    if len(subject) > SUBJECT_LENGTH:
        faults.append(f"the subject has {len(subject)} characters, {SUBJECT_LENGTH} are allowed")
    if subject.endswith("."):
        faults.append("the subject ends in a full stop")
    if len(lines) > 1 and lines[1].strip():
        faults.append("no empty line between the subject and the body")
    return faults


def main(words: list[str]) -> int:
    """Print the faults of the message in a file; 1 when there are any."""
    faults = find_faults(Path(words[0]).read_text(encoding="utf-8"))
    for fault in faults:
        print(f"commit message: {fault}", file=sys.stderr)
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
