"""`ottla up --brokers N` as a process: signals, the ready file, exit status; and `--roll` of a running one.

Zone: real. `ottla.cli` reads the command line; `ottla.server.supervisor.supervisor` starts and stops the brokers.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Final

from ottla.seams import Failure, Kind
from ottla.server.child_process import ChildProcess
from ottla.server.limits import raise_descriptor_limit
from ottla.server.ready_file import ReadyFile
from ottla.server.signals import replace_handlers
from ottla.server.supervisor.local_cluster_spec import LocalClusterSpec
from ottla.server.supervisor.status_report import StatusReport, read_status
from ottla.server.supervisor.supervisor import Supervisor

log = logging.getLogger(__name__)

EXIT_FAILED: Final = 1
LOOK_S: Final = 0.1
"""Between two reads of `status.json` while waiting for a roll."""


def run_supervisor(
    fleet: LocalClusterSpec, board: StatusReport, ready_file: str | None, beside: ChildProcess | None = None
) -> int:
    """Run the brokers until SIGTERM or SIGINT; SIGHUP rolls them, a second signal kills them. Returns the exit
    status. `beside` runs as soon as they are ready, until they have stopped."""
    raise_descriptor_limit()
    ready = ReadyFile(ready_file)
    loop = asyncio.new_event_loop()
    supervisor = Supervisor(loop, fleet, board)
    _handle_signals(loop, supervisor)

    def on_ready() -> None:
        ready.write_address(supervisor.bootstrap)
        if beside is not None:
            beside.start_process(supervisor.bootstrap)

    try:
        ready.prepare_file()
        loop.run_until_complete(supervisor.run_cluster(on_ready))
    except Failure as failure:
        log.error("supervisor ends: %s", failure.message)
        return EXIT_FAILED
    finally:
        ready.remove_file()
        loop.close()
        if beside is not None:
            beside.stop_process()
    return 0


def _handle_signals(loop: asyncio.AbstractEventLoop, supervisor: Supervisor) -> None:
    def first(number: signal.Signals) -> None:
        replace_handlers(loop, (signal.SIGTERM, signal.SIGINT), at_once)
        log.info("received %s: stopping the brokers; a second signal kills them", number.name)
        supervisor.ask_to_stop()

    def at_once(number: int, _frame: FrameType | None) -> None:
        supervisor.stop_at_once()
        os._exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, first, number)
    loop.add_signal_handler(signal.SIGHUP, supervisor.ask_to_roll)


def roll_brokers(data: str, tell: Callable[[str], None]) -> None:
    """Make the supervisor of a data directory roll its brokers, and wait until it is done. Raises Failure.

    `tell` receives a line for every change of a broker's state.
    """
    status = read_status(data)
    if status is None or not _is_running(status["pid"]):
        raise Failure(Kind.NOT_DONE, f"no `ottla up --brokers` runs on {data}")
    ended = _finished_rolls(status)
    os.kill(status["pid"], signal.SIGHUP)
    seen: dict[int, str] = {}
    while True:
        for broker in status["brokers"]:
            if seen.get(broker["id"], broker["state"]) != broker["state"]:
                tell(f"broker {broker['id']} {broker['state']}")
            seen[broker["id"]] = broker["state"]
        if _finished_rolls(status) > ended:
            break
        time.sleep(LOOK_S)
        status = read_status(data) or status
        if not _is_running(status["pid"]):
            raise Failure(Kind.UNKNOWN, "the supervisor ended before the roll was done; see its output")
    if status["rolls"]["failed"]:
        raise Failure(Kind.NOT_DONE, "not all brokers were rolled; see the supervisor's output for the reason")


def _finished_rolls(status: dict[str, dict[str, int]]) -> int:
    return status["rolls"]["done"] + status["rolls"]["failed"]


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True
