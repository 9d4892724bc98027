"""Kills a process (SIGKILL) at the Nth call or return of its steps, which are functions named by tests.

Zone: real.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from types import FrameType
from typing import Any


def check_steps(steps: Collection[str], files: Collection[str]) -> None:
    """Raise ValueError for a step without a function: after a renaming no kill would come there.

    files: parts of the paths of the modules that have the steps; they are imported already.
    """
    paths = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    sources = [path for path in paths if path and path.endswith(".py") and any(part in path for part in files)]
    defined = {name for path in sources for name in re.findall(r"\bdef (\w+)", Path(path).read_text())}
    if missing := sorted(set(steps) - defined):
        raise ValueError(f"no module among {', '.join(files)} has the functions {', '.join(missing)}")


def kill_at(step: int, steps: Collection[str], files: Collection[str]) -> None:
    """From here on count calls and returns of the steps in these files, and end this process at number `step`."""
    left = step

    def count(frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal left
        code = frame.f_code
        if event not in {"call", "return"} or code.co_name not in steps:
            return
        if any(part in code.co_filename for part in files):
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(count)


def answer_kills(run: Callable[[str], object]) -> None:
    """Run each line of standard input in a fork, and print `killed`, or `done` if it ended before."""
    for line in sys.stdin:
        child = os.fork()
        if not child:
            os.dup2(sys.stderr.fileno(), 1)  # the answers alone go to standard output
            run(line)
            sys.setprofile(None)
            sys.stderr.flush()
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print({0: "done", -signal.SIGKILL: "killed"}.get(status, f"exit {status}"), flush=True)
