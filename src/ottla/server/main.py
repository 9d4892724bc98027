"""A broker as a process: signals, the ready file, exit status.

Zone: real. What the command line asks for is decided in `ottla.cli`; the broker's life is `ottla.server.service`'s.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
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
_ENDING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, STOP_TOGETHER)
"""SIGHUP, too, is an orderly stop, as Kafka's: the terminal is closed. Under nohup it is ignored, and stays so."""


def serve(config: BrokerConfig, ready_file: str | None = None) -> int:
    """Run a broker until SIGTERM, SIGINT or SIGHUP; a second signal ends the process at once. Returns the exit status.

    When it answers and leads what it is to lead, `host:port` goes into `ready_file` and `ready bootstrap=host:port` to
    standard output.
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
    broker_secret: bytes | None = None,
) -> bool:
    """Run a broker until a signal; returns whether the end was an orderly one. Raises Failure when it cannot start.

    `listening`: sockets that are bound already, by listener name. `broker_secret`: see `Service`.
    """
    descriptors = raise_descriptor_limit()
    # Half for files; connections and mappings need the rest.
    service = Service(
        config,
        descriptors=max(64, descriptors // 2),
        own_process=True,
        listening=listening,
        broker_secret=broker_secret,
    )
    _handle_signals(service)
    return service.run(lambda: on_ready(service))


def _handle_signals(service: Service) -> None:
    """From here on the first signal is an orderly stop, whatever the broker is about; the second one is the end."""

    ending = [number for number in _ENDING if number is not signal.SIGHUP or not _is_ignored(number)]

    def first(number: int, _frame: FrameType | None = None) -> None:
        take_over(service.loop, ending, _at_once)
        service.loop.call_soon_threadsafe(_on_signal, number)  # this may be in the midst of the writing of another line
        service.ask_to_stop(hand_over=number != STOP_TOGETHER)

    for number in ending:
        service.loop.add_signal_handler(number, first, number)  # wakes a loop that waits
        signal.signal(number, first)  # heard within a turn, too: recovery is one, and may be long


def _is_ignored(number: signal.Signals) -> bool:
    return signal.getsignal(number) is signal.SIG_IGN


def _on_signal(number: int) -> None:
    log.info("%s: stopping; a second signal ends the process at once", signal.Signals(number).name)


def _at_once(number: int, _frame: FrameType | None) -> None:
    os._exit(128 + number)
