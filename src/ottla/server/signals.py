"""Replacing the handler for a second signal.

Zone: real.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from types import FrameType


def replace_handlers(
    loop: asyncio.AbstractEventLoop,
    numbers: Sequence[signal.Signals],
    handler: Callable[[int, FrameType | None], None],
) -> None:
    """Replace the loop's handlers of these signals by `handler`, which runs at once; no signal is lost in between.

    Report the first signal only after this call: a reader of the report may send the second one at once.
    """
    # Removing a handler of the loop restores the default action, which ends the process. A signal that comes before the
    # new handler is set has to wait.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        for number in numbers:
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
