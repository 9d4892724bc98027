"""The life of a broker process (or thread): lock, load, serve, drain, stop.

Zone: real. This module decides the order of these steps; `ottla.server.main` handles signals, files and output.

Start:
 1. the data directories are locked, the listeners bound, the broker loads its logs;
 2. connections are accepted as soon as the broker needs other brokers to write to it (`Served.listening`);
 3. clients are served when the broker is ready (`Served.ready`).

Stop:
 1. leaderships move to other brokers, while all clients are still served;
 2. no more connections are accepted, no more requests are started;
 3. requests that wait for an answer get up to DRAIN_S for it;
 4. the broker flushes, writes checkpoints and its clean-shutdown marker;
 5. connections, workers and threads end; the locks are released.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable, Mapping
from typing import Any, Final

from ottla.broker.assembly.root import build_broker
from ottla.broker.listener import BrokerListener
from ottla.config.broker import BrokerConfig
from ottla.http_pages import Access, HttpServer, Page, SharedPage, add_process_metrics, metrics_page
from ottla.seams import Failure, World
from ottla.server.connections.broker_handshake import read_secret
from ottla.server.connections.monitoring import health_page, listen_for_pages
from ottla.server.disks.data_dir_lock import DirectoryLock
from ottla.server.loop.clock import GivenWallClock
from ottla.server.loop.garbage_collection import GarbageCollection
from ottla.server.loop.poller import new_loop
from ottla.server.os_errors import failure_of
from ottla.server.shell import Served, Shell
from ottla.types import Endpoint

log = logging.getLogger(__name__)

DRAIN_S: Final = 0.5
"""Time for requests that wait at the stop: by default a consumer's long poll takes as long."""
LOOK_AGAIN_S: Final = 0.005
"""Between two checks of a condition during start and stop; a running broker has no such timer."""


class Service:
    """One broker from start to stop, on a loop of its own."""

    def __init__(
        self,
        config: BrokerConfig,
        make_broker: Callable[[BrokerConfig, World, BrokerListener], Served] = build_broker,
        *,
        descriptors: int = 1000,
        own_process: bool = False,
        listening: Mapping[str, socket.socket] | None = None,
        broker_secret: bytes | None = None,
        read_wall_ms: Callable[[], int] | None = None,
    ) -> None:
        """own_process: the process runs nothing but this broker, so the broker may schedule garbage collection.

        listening: sockets that are bound already, by listener name; they are closed at the end.
        broker_secret: the secret by which brokers of this cluster recognize each other; None: the content of
        `ottla.inter.broker.secret.file`. read_wall_ms: the time of day in milliseconds; None: the machine's.
        """
        self._config = config
        self._make_broker = make_broker
        self._descriptors = descriptors
        self._garbage = GarbageCollection() if own_process else None
        self._listening = dict(listening or {})
        self._broker_secret = broker_secret
        self._read_wall_ms = read_wall_ms
        self._loop, self._watch = new_loop()
        self._broker: Served | None = None
        self._accepting = False
        self._stopping = False
        self._is_wanted = True
        self._hand_over = True
        self._crashed = False
        self._gave_up = False
        self.endpoints: list[Endpoint] = []
        """The addresses that clients receive; known once the listeners are bound."""

    @property
    def bootstrap(self) -> str:
        """host:port of the first listener."""
        host, port = self.endpoints[0].host, self.endpoints[0].port
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop, for signal handlers."""
        return self._loop

    def run_until_stopped(self, on_ready: Callable[[], None]) -> bool:
        """Serve until `ask_to_stop`. Returns whether the broker stopped in order. Raises Failure when it cannot start.

        `on_ready` is called once, when clients are served.
        """
        with contextlib.ExitStack() as undo:
            # Undone in the reverse order: pages, the shell with its threads, the locks, the loop. A lock that is
            # released before the threads have ended would let another process write to files that they still change.
            undo.callback(self._loop.close)
            for directory in self._config.log_dirs:
                undo.callback(_lock_directory(directory).release_lock)
            self._loop.set_exception_handler(self._on_error)
            shell = self._new_shell()
            undo.callback(shell.close_all)
            self._start_broker(shell)
            undo.callback(self._open_pages(shell).stop_listening)
            self._when_ready(shell, on_ready)
            self._loop.run_forever()
            failed = shell.failed if self._broker is None else self._broker.failed or shell.failed
            if failed is not None:
                raise failed
            self._stop_broker(shell)
        return not (self._crashed or self._gave_up)

    def _new_shell(self) -> Shell:
        """Build the shell. Raises Failure when the file with the brokers' secret cannot be used."""
        secret, path = self._broker_secret, self._config.ottla_inter_broker_secret_file
        if secret is None and path is not None:
            secret = read_secret(path)
        clock = GivenWallClock(self._loop, self._read_wall_ms) if self._read_wall_ms is not None else None
        listening = self._listening
        return Shell(self._loop, self._watch, self._config, self._descriptors, self._garbage, listening, secret, clock)

    def ask_to_stop(self, hand_over: bool = True) -> None:
        """Stop in order; may be called from any thread and at any time.

        `hand_over`: whether to move leaderships first; False when no other broker stays to take them. A broker that is
        not ready yet stops where it is: the next start recovers the rest of its logs.
        """
        self._hand_over = hand_over
        # The recovery of logs is one long turn, which polls this flag; stopping the loop takes effect only after it.
        self._is_wanted = False
        with contextlib.suppress(RuntimeError):  # the loop is closed: the broker has stopped already
            self._loop.call_soon_threadsafe(self._stop_loop)

    def _give_up(self) -> None:
        """Stop, because the controller cannot be informed of a failed directory (KIP-858); the exit status reports a
        failure."""
        self._gave_up = True
        self._stop_loop()

    def _stop_loop(self) -> None:
        if not self._stopping:
            self._stopping = True
            self._loop.stop()

    # -- start -----------------------------------------------------------------------------------------------------

    def _start_broker(self, shell: Shell) -> None:
        # Bound first: a port that is taken has to fail the start before the broker touches its logs, and the port that
        # the system chooses for port 0 is part of the broker's registration.
        self.endpoints = shell.bind_listeners()
        listener = _ServiceListener(shell.apply_config, self._give_up, lambda: self._is_wanted)
        self._broker = broker = self._make_broker(self._config, shell.world, listener)
        # Before `start_broker`, which calls the disks and the store: their completions are turns of this broker.
        shell.set_inputs(broker)
        shell.rates.set_address_limit(broker.find_address_limit)
        if self._garbage is not None:
            self._garbage.start_managing()
        broker.start_broker(self.endpoints)

    def _open_pages(self, shell: Shell) -> HttpServer:
        """Serve the pages for monitoring, if `ottla.http.listener` is set."""
        broker = self._broker
        assert broker is not None
        add_process_metrics(broker.metrics)
        if self._garbage is not None:
            self._garbage.declare_metrics(broker.metrics)
        shell.descriptors.declare_metrics(broker.metrics)
        pages = {
            "/metrics": SharedPage(lambda: metrics_page(broker.metrics)),
            "/health": SharedPage(self._make_health_page),
        }
        config, source = self._config, shell.security.pages
        access = Access(config.ottla_http_basic_auth, config.ottla_http_bearer_token)
        tls = None if source is None else lambda: source.context
        self.pages = HttpServer(self._loop, pages, access=access, tls=tls)
        if self._config.ottla_http_listener is not None:
            listen_for_pages(self.pages, self._config.ottla_http_listener)
            log.info("serving /metrics and /health at port %d", self.pages.port)
        return self.pages

    async def _make_health_page(self) -> Page:
        assert self._broker is not None
        # Not ready from the request to stop on, so that load balancers send clients elsewhere while leaderships move.
        ready = self._broker.ready and not self._stopping
        return health_page(self._config.node_id, ready, self._broker.metrics)

    def _when_ready(self, shell: Shell, on_ready: Callable[[], None]) -> None:
        assert self._broker is not None
        # 1. A stop was requested: the loop ends without this timer.
        if not self._is_wanted:
            return
        # 2. The broker can never become ready: `run_until_stopped` raises the reason.
        if (self._broker.failed or shell.failed) is not None:
            self._loop.stop()
            return
        # 3. Accept connections before the broker is ready: brokers that start together have to reach each other, or
        #    none of them would ever be ready.
        if self._broker.listening and not self._accepting:
            self._accepting = True
            shell.start_accepting()
        # 4. Not ready yet: check again.
        if not self._broker.ready:
            self._loop.call_later(LOOK_AGAIN_S, self._when_ready, shell, on_ready)
            return
        log.info("broker %d is ready at %s", self._config.node_id, self.bootstrap)
        on_ready()

    # -- stop ------------------------------------------------------------------------------------------------------

    def _stop_broker(self, shell: Shell) -> None:
        if self._crashed:
            log.critical("broker stopped without a clean shutdown; the next start recovers the logs")
            return
        assert self._broker is not None
        # 1. Other brokers take over, while this one still serves.
        left: list[bool] = []
        self._broker.hand_over_leaderships(lambda: left.append(True), self._hand_over)
        self._run_until(lambda: bool(left))
        # 2. Nothing new begins; requests under way get a little time for their answers.
        shell.stop_requests()
        deadline = self._loop.time() + DRAIN_S
        self._run_until(lambda: shell.traffic.is_quiet or self._loop.time() >= deadline)
        # 3. Background work ends first: it would meet logs that the shutdown has just closed.
        shell.traffic.end_idle_time()
        stopped: list[Failure | None] = []
        self._broker.stop_broker(stopped.append)
        self._run_until(lambda: bool(stopped))
        if stopped and stopped[0] is not None:
            log.error("the shutdown was not clean, the next start recovers the logs: %s", stopped[0])
        else:
            log.info("broker %d stopped", self._config.node_id)

    def _run_until(self, holds: Callable[[], bool]) -> None:
        def look() -> None:
            # After a defect the condition may never hold, and the state may be half changed: waiting has no use.
            if holds() or self._crashed:
                self._loop.stop()
            else:
                self._loop.call_later(LOOK_AGAIN_S, look)

        self._loop.call_soon(look)
        self._loop.run_forever()

    # -- errors ----------------------------------------------------------------------------------------------------

    def _on_error(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Stop at once: an exception that escapes a turn is a defect, and state may be half changed."""
        error = context.get("exception")
        if not isinstance(error, BaseException):
            log.warning("event loop: %s", context.get("message"))
            return
        log.critical("broker stops because of a defect: %r", error, exc_info=error)
        self._crashed = True
        self._loop.stop()


class _ServiceListener:
    """Implements `BrokerListener`."""

    def __init__(
        self, apply_config: Callable[[BrokerConfig], None], give_up: Callable[[], None], is_wanted: Callable[[], bool]
    ) -> None:
        self.on_config = apply_config
        self.on_failure_not_reported = give_up
        self.is_wanted = is_wanted

    def on_listening(self) -> None:
        """Ignore the event: `_when_ready` polls, because connections are accepted outside of the broker's turns."""

    def on_ready(self) -> None:
        """Ignore the event: `_when_ready` polls."""


def _lock_directory(directory: str) -> DirectoryLock:
    try:
        os.makedirs(directory, exist_ok=True)
    except OSError as error:
        raise failure_of(error, directory) from None
    return DirectoryLock(directory)
