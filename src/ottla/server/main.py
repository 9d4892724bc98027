"""A broker as a process: signals, the ready file, exit status.

Zone: real. What the command line asks for is decided in `ottla.cli`; the broker's life is `ottla.server.service`'s.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Final

from ottla.config.broker import BrokerConfig
from ottla.seams import Failure
from ottla.server.limits import raise_descriptor_limit
from ottla.server.ready_file import ReadyFile
from ottla.server.service import Service
from ottla.server.signals import take_over

log = logging.getLogger(__name__)

EXIT_FAILED: Final = 1
STOP_TOGETHER: Final = signal.SIGUSR1
"""To a broker: stop, and hand no leadership over, because all the others stop as well."""
_ENDING: Final = (signal.SIGTERM, signal.SIGINT, STOP_TOGETHER)


def serve(config: BrokerConfig, ready_file: str | None = None) -> int:
    """Run a broker until SIGTERM or SIGINT; a second signal ends the process at once. Returns the exit status.

    When it answers, `host:port` goes into `ready_file` and `ready bootstrap=host:port` to standard output.
    """
    ready = ReadyFile(ready_file)

    def on_ready(service: Service) -> None:
        ready.write(service.bootstrap)
        print(f"ready bootstrap={service.bootstrap}", flush=True)  # noqa: T201 - the one line of standard output

    try:
        ready.prepare()
        orderly = run_broker(config, on_ready)
    except Failure as failure:
        log.error("cannot start: %s", failure.message)
        return EXIT_FAILED
    finally:
        ready.remove()
    return 0 if orderly else EXIT_FAILED


def run_broker(
    config: BrokerConfig,
    on_ready: Callable[[Service], None],
    listening: Mapping[str, socket.socket] | None = None,
) -> bool:
    """Run a broker until a signal; returns whether the end was an orderly one. Raises Failure when it cannot start.

    `listening`: sockets that are bound already, by listener name.
    """
    _interrupt_while_loading()
    descriptors = raise_descriptor_limit()
    # Half for files; connections and mappings need the rest.
    service = Service(config, descriptors=max(64, descriptors // 2), own_process=True, listening=listening)

    def ready() -> None:
        _handle_signals(service)
        on_ready(service)

    return service.run(ready)


def _interrupt_while_loading() -> None:
    """Recovery of a large log can take long: until the loop runs, SIGTERM breaks it off as Ctrl-C does."""

    def leave(number: int, _frame: FrameType | None) -> None:
        sys.exit(128 + number)

    for signal_number in _ENDING:
        signal.signal(signal_number, leave)


def _handle_signals(service: Service) -> None:
    def first(number: signal.Signals) -> None:
        take_over(service.loop, _ENDING, _at_once)
        log.info("%s: stopping; a second signal ends the process at once", number.name)
        service.ask_to_stop(hand_over=number != STOP_TOGETHER)

    for number in _ENDING:
        service.loop.add_signal_handler(number, first, number)


def _at_once(number: int, _frame: FrameType | None) -> None:
    os._exit(128 + number)
