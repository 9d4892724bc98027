"""Counts the Python instructions of the broker's own code, which do not depend on the machine or its load.

Zone: real.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def count_steps(act: Callable[[], object]) -> int:
    """The number of instructions of ottla's code that `act` executes in this thread, without the simulator's."""
    steps = 0

    def local(_frame: FrameType, event: str, _: Any) -> Any:
        nonlocal steps
        steps += event == "opcode"
        return local

    def called(frame: FrameType, _event: str, _: Any) -> Any:
        name = frame.f_code.co_filename
        if "/src/ottla/" not in name or "/ottla/sim/" in name:
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return local

    before = sys.gettrace()
    sys.settrace(called)
    try:
        act()
    finally:
        sys.settrace(before)
    return steps
