"""Forks, signals and reaps the broker processes of one machine: a small process that has imported everything.

Zone: real. `ottla.server.supervisor.supervisor` decides when. By forking, a broker starts in a few milliseconds, and
the imported modules are in memory once for all brokers. No loop and no thread runs in this process.

It has a socket to the supervisor; both ends write lines of JSON.
To it: {"start": broker, "properties": {…}, "log": [level, style], "listening": {listener: descriptor}, "secret": hex},
{"signal": broker, "number": n}. From it: {"started": broker, "pid": n}, {"ready": broker, "address": "host:port"},
{"failed": broker, "why": text}, {"exited": broker, "status": exit code, or minus the signal}.

When the supervisor ends for any reason, the brokers are killed, because their metadata store has ended with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import logging
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from ottla.config.broker import BrokerConfig
from ottla.seams import Failure
from ottla.server.logs import configure_logging
from ottla.server.main import run_broker

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15


def main() -> int:
    """`python -m ottla.server.supervisor.fork_server SOCKET SUPERVISOR`: a descriptor and a process id."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    die_with(int(sys.argv[2]))
    _freeze_imports()
    return ForkServer(channel).serve_supervisor()


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends (Linux only). Exits at once if the parent has ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _freeze_imports() -> None:
    """Exclude imported objects from garbage collection: a collection writes to their pages, which would end the
    sharing between the brokers."""
    gc.collect()
    gc.freeze()


class ForkServer:
    """Starts brokers and reports their ends."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._received = bytearray()
        self._brokers: dict[int, int] = {}
        """Process id → broker."""
        self._wake, self._woken = os.pipe()
        for end in (self._wake, self._woken):
            os.set_blocking(end, False)

    def serve_supervisor(self) -> int:
        """Serve the supervisor until it closes the socket or ends."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # the supervisor receives them too and stops the brokers in order
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._woken)
        while True:
            ready, _, _ = select.select([self._channel.fileno(), self._wake], [], [])
            # Reap first: orders then refer to processes that are still alive or unreaped.
            if self._wake in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake, 4096)
                self._reap_exited()
            if self._channel.fileno() in ready and not self._carry_out_orders():
                for pid in self._brokers:
                    os.kill(pid, signal.SIGKILL)
                return 0

    def _carry_out_orders(self) -> bool:
        """Carry out the orders that have come; False when the supervisor has closed the socket."""
        data = self._channel.recv(65536)
        self._received += data
        while (end := self._received.find(b"\n")) >= 0:
            order = json.loads(self._received[:end])
            del self._received[: end + 1]
            if "start" in order:
                self._start_broker(order)
            else:
                self._signal_broker(order["signal"], order["number"])
        return bool(data)

    def _signal_broker(self, broker: int, number: int) -> None:
        for pid, running in self._brokers.items():
            if running == broker:
                os.kill(pid, number)  # not reaped yet, so the process id cannot belong to another process

    def _start_broker(self, order: Mapping[str, Any]) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        nursery = os.getpid()
        pid = os.fork()
        if not pid:
            self._become_broker(order, nursery)
        self._brokers[pid] = order["start"]
        _send_line(self._channel, {"started": order["start"], "pid": pid})

    def _become_broker(self, order: Mapping[str, Any], nursery: int) -> NoReturn:
        """Run a broker in the forked child, then exit."""
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            os.close(self._wake)
            os.close(self._woken)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
            die_with(nursery)
            status = _run_one_broker(order, self._channel)
        except SystemExit as leave:
            status = leave.code if isinstance(leave.code, int) else 1
        except BaseException:  # noqa: BLE001 - the fork server's own code must not run in the child
            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)

    def _reap_exited(self) -> None:
        while self._brokers:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            broker = self._brokers.pop(pid)
            _send_line(self._channel, {"exited": broker, "status": os.waitstatus_to_exitcode(status)})


def _run_one_broker(order: Mapping[str, Any], channel: socket.socket) -> int:
    """Run one broker from start to stop; returns the exit status."""
    broker: int = order["start"]
    level, style = order["log"]
    configure_logging(level, style, who=f"broker {broker}")
    _set_process_name(f"ottla-broker-{broker}")
    config, _ = BrokerConfig.from_properties(order["properties"])  # the command line has printed the warnings
    listening = {name: socket.socket(fileno=os.dup(fd)) for name, fd in order["listening"].items()}
    secret = bytes.fromhex(order["secret"])
    try:
        orderly = run_broker(
            config,
            lambda service: _send_line(channel, {"ready": broker, "address": service.bootstrap}),
            listening,
            secret,
        )
    except Failure as failure:
        log.error("cannot start: %s", failure.message)
        _send_line(channel, {"failed": broker, "why": failure.message})
        return 1
    return 0 if orderly else 1


def _set_process_name(name: str) -> None:
    """Set the name that ps and top show."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:15])


def _send_line(channel: socket.socket, news: Mapping[str, Any]) -> None:
    """Send one line; does nothing when the supervisor has ended."""
    with contextlib.suppress(OSError):
        channel.sendall(json.dumps(news).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
