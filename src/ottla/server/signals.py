"""What a second signal does.

Zone: real.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from types import FrameType


def take_over(
    loop: asyncio.AbstractEventLoop,
    numbers: Sequence[signal.Signals],
    handler: Callable[[int, FrameType | None], None],
) -> None:
    """Have these signals handled at once from now on, no longer by the loop, and lose none in between.

    Say that a signal has been heard only behind this: whoever reads it may send the next one at once.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        for number in numbers:
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
