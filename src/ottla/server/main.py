"""A broker as a process: signals, the ready file, exit status.

Zone: real. `ottla.cli` reads the command line; `ottla.server.service` starts and stops the broker.
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
from ottla.server.child_process import ChildProcess
from ottla.server.limits import raise_descriptor_limit
from ottla.server.ready_file import ReadyFile
from ottla.server.service import Service
from ottla.server.signals import replace_handlers

log = logging.getLogger(__name__)

EXIT_FAILED: Final = 1
STOP_TOGETHER: Final = signal.SIGUSR1
"""Signal to a broker: stop without handing leaderships over, because all other brokers stop as well."""
_ENDING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, STOP_TOGETHER)
"""SIGHUP (the terminal was closed) is an orderly stop, as in Kafka. Under nohup it is ignored, and stays ignored."""


def serve_broker(config: BrokerConfig, ready_file: str | None = None, beside: ChildProcess | None = None) -> int:
    """Run a broker until SIGTERM, SIGINT or SIGHUP; a second signal ends the process at once. Returns the exit status.

    When the broker answers requests and leads the partitions assigned to it, it writes `host:port` to `ready_file` and
    `ready bootstrap=host:port` to standard output. `beside` runs from then on, until the broker has
    stopped.
    """
    ready = ReadyFile(ready_file)

    def on_ready(service: Service) -> None:
        ready.write_address(service.bootstrap)
        print(f"ready bootstrap={service.bootstrap}", flush=True)  # noqa: T201 - the one line of standard output
        if beside is not None:
            beside.start_process(service.bootstrap)

    try:
        ready.prepare_file()
        orderly = run_broker(config, on_ready)
    except Failure as failure:
        log.error("cannot start: %s", failure.message)
        return EXIT_FAILED
    finally:
        ready.remove_file()
        if beside is not None:
            beside.stop_process()
    return 0 if orderly else EXIT_FAILED


def run_broker(
    config: BrokerConfig,
    on_ready: Callable[[Service], None],
    listening: Mapping[str, socket.socket] | None = None,
    broker_secret: bytes | None = None,
) -> bool:
    """Run a broker until a signal; returns whether it stopped in order. Raises Failure when it cannot start.

    `listening`: sockets that are bound already, by listener name. `broker_secret`: see `Service`.
    """
    descriptors = raise_descriptor_limit()
    # Half of the descriptors are for files; connections and mappings need the rest.
    service = Service(
        config,
        descriptors=max(64, descriptors // 2),
        own_process=True,
        listening=listening,
        broker_secret=broker_secret,
    )
    _handle_signals(service)
    return service.run_until_stopped(lambda: on_ready(service))


def _handle_signals(service: Service) -> None:
    """Make the first signal an orderly stop, whatever the broker is doing, and the second one end the process."""

    ending = [number for number in _ENDING if number is not signal.SIGHUP or not _is_ignored(number)]

    def first(number: int, _frame: FrameType | None = None) -> None:
        # First, so that a second signal ends the process even if the rest of this handler takes long.
        replace_handlers(service.loop, ending, _at_once)
        # Logged from the loop: this handler may have interrupted the writing of another log line.
        service.loop.call_soon_threadsafe(_on_signal, number)
        service.ask_to_stop(hand_over=number != STOP_TOGETHER)

    for number in ending:
        # Both handlers are needed. The loop's one wakes a loop that waits for sockets. The plain one runs inside a
        # turn: the recovery of logs is one turn, and it may take minutes.
        service.loop.add_signal_handler(number, first, number)
        signal.signal(number, first)


def _is_ignored(number: signal.Signals) -> bool:
    return signal.getsignal(number) is signal.SIG_IGN


def _on_signal(number: int) -> None:
    log.info("received %s: stopping; a second signal ends the process at once", signal.Signals(number).name)


def _at_once(number: int, _frame: FrameType | None) -> None:
    os._exit(128 + number)
