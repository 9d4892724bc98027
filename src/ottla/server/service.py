"""The life of a broker process (or thread): lock, load, serve, drain, stop.

Zone: real. The order of things is decided here; signals, files and output are `ottla.server.main`'s.

Starting: the doors open when the broker listens to other brokers; clients are served when it is ready.
Stopping, in this order: leaderships go to other brokers, while everybody is still served; no more connections; no more
requests are started; those that wait for an answer get up to DRAIN_S for it; the broker flushes, checkpoints and leaves
its marker; connections, workers and threads end; the lock is released.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable, Mapping
from typing import Any, Final

from ottla.broker.broker import Broker
from ottla.config.broker import BrokerConfig
from ottla.seams import Failure, World
from ottla.server.connections.broker_handshake import read_secret
from ottla.server.connections.http import (
    HttpServer,
    Page,
    SharedPage,
    add_process_metrics,
    health_page,
    metrics_page,
    parse_address,
)
from ottla.server.disks.data_dir_lock import DirectoryLock
from ottla.server.loop.garbage_collection import GarbageCollection
from ottla.server.loop.poller import new_loop
from ottla.server.os_errors import failure_of
from ottla.server.shell import Served, Shell
from ottla.types import Endpoint

log = logging.getLogger(__name__)

DRAIN_S: Final = 0.5
"""Time for requests that wait at the stop: a consumer's long poll is as long, by default."""
LOOK_AGAIN_S: Final = 0.005
"""While starting and stopping only; a running broker has no timer of this kind."""


class Service:
    """One broker from start to stop, on a loop of its own."""

    def __init__(
        self,
        config: BrokerConfig,
        make_broker: Callable[[BrokerConfig, World], Served] = Broker,
        *,
        descriptors: int = 1000,
        own_process: bool = False,
        listening: Mapping[str, socket.socket] | None = None,
        broker_secret: bytes | None = None,
    ) -> None:
        """own_process: nobody else's objects live here, so garbage collection is ours to time.

        listening: sockets that are bound already, by listener name; they are closed at the end.
        broker_secret: what brokers of this cluster prove to each other to know; None: what
        `ottla.inter.broker.secret.file` holds.
        """
        self._config = config
        self._make_broker = make_broker
        self._descriptors = descriptors
        self._garbage = GarbageCollection() if own_process else None
        self._listening = dict(listening or {})
        self._broker_secret = broker_secret
        self._loop, self._watch = new_loop()
        self._broker: Served | None = None
        self._accepting = False
        self._stopping = False
        self._is_wanted = True
        self._hand_over = True
        self._crashed = False
        self._gave_up = False
        self.endpoints: list[Endpoint] = []
        """What clients are told; known once the listeners are bound."""

    @property
    def bootstrap(self) -> str:
        """host:port of the first listener."""
        host, port = self.endpoints[0].host, self.endpoints[0].port
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop, for signal handlers."""
        return self._loop

    def run(self, on_ready: Callable[[], None]) -> bool:
        """Serve until `ask_to_stop`. Returns whether the end was an orderly one. Raises Failure when it cannot start.

        `on_ready` is called once, when requests are answered.
        """
        with contextlib.ExitStack() as undo:
            undo.callback(self._loop.close)
            for directory in self._config.log_dirs:
                undo.callback(_locked(directory).release)
            self._loop.set_exception_handler(self._on_error)
            shell = self._new_shell()
            undo.callback(shell.stop)
            self._start(shell)
            undo.callback(self._open_pages(shell).stop)
            self._when_ready(shell, on_ready)
            self._loop.run_forever()
            failed = shell.failed if self._broker is None else self._broker.failed or shell.failed
            if failed is not None:
                raise failed
            self._stop(shell)
        return not (self._crashed or self._gave_up)

    def _new_shell(self) -> Shell:
        """Raises Failure when the file with the brokers' secret cannot be used."""
        secret, path = self._broker_secret, self._config.ottla_inter_broker_secret_file
        if secret is None and path is not None:
            secret = read_secret(path)
        listening = self._listening
        return Shell(self._loop, self._watch, self._config, self._descriptors, self._garbage, listening, secret)

    def ask_to_stop(self, hand_over: bool = True) -> None:
        """Stop in order; from any thread, and at any time. Without handing leaderships over where nobody stays to take
        them. Before the broker is ready it is as far as it is: recovery of logs is left to the next start.
        """
        self._hand_over = hand_over
        self._is_wanted = False
        with contextlib.suppress(RuntimeError):  # it has ended already
            self._loop.call_soon_threadsafe(self._leave)

    def _unheard(self) -> None:
        """The broker does harm by staying (KIP-858): what ends here is not as it should be."""
        self._gave_up = True
        self._leave()

    def _leave(self) -> None:
        if not self._stopping:
            self._stopping = True
            self._loop.stop()

    # -- start -----------------------------------------------------------------------------------------------------

    def _start(self, shell: Shell) -> None:
        self.endpoints = shell.bind()
        self._broker = broker = self._make_broker(self._config, shell.world)
        shell.connect(broker)
        broker.on_config = shell.configure
        broker.is_wanted = lambda: self._is_wanted
        broker.on_unheard = self._unheard
        if self._garbage is not None:
            self._garbage.start()
        broker.start(self.endpoints)

    def _open_pages(self, shell: Shell) -> HttpServer:
        """The pages for monitoring, where they are asked for."""
        broker = self._broker
        assert broker is not None
        add_process_metrics(broker.metrics)
        if self._garbage is not None:
            self._garbage.declare_metrics(broker.metrics)
        shell.descriptors.declare_metrics(broker.metrics)
        pages = {"/metrics": SharedPage(lambda: metrics_page(broker.metrics)), "/health": SharedPage(self._health)}
        self.pages = HttpServer(self._loop, pages)
        if self._config.ottla_http_listener is not None:
            self.pages.start(*parse_address(self._config.ottla_http_listener))
            log.info("metrics and health at port %d", self.pages.port)
        return self.pages

    async def _health(self) -> Page:
        assert self._broker is not None
        ready = self._broker.ready and not self._stopping
        return health_page(self._config.node_id, ready, self._broker.metrics)

    def _when_ready(self, shell: Shell, on_ready: Callable[[], None]) -> None:
        assert self._broker is not None
        if not self._is_wanted:
            return
        if (self._broker.failed or shell.failed) is not None:
            self._loop.stop()
            return
        if self._broker.listening and not self._accepting:
            self._accepting = True
            shell.accept()
        if not self._broker.ready:
            self._loop.call_later(LOOK_AGAIN_S, self._when_ready, shell, on_ready)
            return
        log.info("broker %d answers at %s", self._config.node_id, self.bootstrap)
        on_ready()

    # -- stop ------------------------------------------------------------------------------------------------------

    def _stop(self, shell: Shell) -> None:
        if self._crashed:
            log.critical("stopped without a clean shutdown; the logs are recovered at the next start")
            return
        assert self._broker is not None
        left: list[bool] = []
        self._broker.leave(lambda: left.append(True), self._hand_over)
        self._run_until(lambda: bool(left))
        shell.close_doors()
        deadline = self._loop.time() + DRAIN_S
        self._run_until(lambda: shell.traffic.quiet or self._loop.time() >= deadline)
        shell.traffic.no_more_idle_time()
        stopped: list[Failure | None] = []
        self._broker.stop(stopped.append)
        self._run_until(lambda: bool(stopped))
        if stopped and stopped[0] is not None:
            log.error("the shutdown is not a clean one: %s", stopped[0])
        else:
            log.info("broker %d stopped", self._config.node_id)

    def _run_until(self, holds: Callable[[], bool]) -> None:
        def look() -> None:
            if holds() or self._crashed:
                self._loop.stop()
            else:
                self._loop.call_later(LOOK_AGAIN_S, look)

        self._loop.call_soon(look)
        self._loop.run_forever()

    # -- errors ----------------------------------------------------------------------------------------------------

    def _on_error(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What escapes a turn is a programmer error: state may be half changed, so the broker stops at once."""
        error = context.get("exception")
        if not isinstance(error, BaseException):
            log.warning("event loop: %s", context.get("message"))
            return
        log.critical("a defect stops the broker: %r", error, exc_info=error)
        self._crashed = True
        self._loop.stop()


def _locked(directory: str) -> DirectoryLock:
    try:
        os.makedirs(directory, exist_ok=True)
    except OSError as error:
        raise failure_of(error, directory) from None
    return DirectoryLock(directory)
