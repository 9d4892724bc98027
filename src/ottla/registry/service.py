"""The registry's thread: it owns the topic and the state; requests are answered by it, or by others beside it.

Zone: real. Reading requests are answered at once, by what has been read so far. Writing ones wait for the thread, which
decides by all that is committed.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Final

from ottla.client.errors import ClientError
from ottla.registry.errors import RegistryError
from ottla.registry.registration import Decision
from ottla.registry.routes import Handler, Request, Routes
from ottla.registry.schemas_topic import SchemasTopic
from ottla.registry.state import RegistryState

WAITING_MAX: Final = 1_000
"""Most writing requests that wait."""
_POLL_S: Final = 1.0
_RETRY_S: Final = 1.0
_logger = logging.getLogger(__name__)


class RegistryService:
    """Answers requests, and keeps the state current."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Load the topic. settings: of Kafka's clients. Raises ClientError, RegistryError."""
        self._state = RegistryState()
        self._lock = threading.Lock()
        """Of the state: held while records are applied, and while a reading request is answered."""
        self._topic = SchemasTopic(settings, self._apply)
        self._topic.read_to_end()
        self._routes = Routes(self._state, self._topic.cluster_id)
        self._waiting: queue.Queue[tuple[Handler, Request, Future[object]]] = queue.Queue(WAITING_MAX)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._serve_topic, name="ottla-registry", daemon=True)
        self._thread.start()

    def _apply(self, key: bytes | None, value: bytes | None) -> None:
        with self._lock:
            self._state.apply(key, value)

    # -- for any thread ----------------------------------------------------------------------------------------------

    def answer(self, handler: Handler, request: Request) -> object:
        """Answer a reading request. Raises RegistryError."""
        with self._lock:
            return handler(self._routes, request)

    def submit(self, handler: Handler, request: Request) -> Future[object]:
        """Answer a writing request, when its records are committed; the future may have a RegistryError."""
        done: Future[object] = Future()
        try:
            self._waiting.put_nowait((handler, request, done))
        except queue.Full:
            done.set_exception(RegistryError(50302, f"{WAITING_MAX} requests wait already"))
        else:
            self._topic.wake()
        return done

    def stop(self) -> None:
        """End the thread; waiting requests are refused."""
        self._stopped.set()
        self._topic.wake()
        self._thread.join(30)

    # -- the thread --------------------------------------------------------------------------------------------------

    def _serve_topic(self) -> None:
        while not self._stopped.is_set():
            try:
                self._write_waiting()
                self._topic.read_some(_POLL_S)
            except (ClientError, RegistryError) as error:
                _logger.warning("the topic of the schemas cannot be read, next attempt in %g s: %s", _RETRY_S, error)
                self._stopped.wait(_RETRY_S)
        self._refuse_waiting()
        self._topic.close()

    def _write_waiting(self) -> None:
        while not self._stopped.is_set():
            try:
                handler, request, done = self._waiting.get_nowait()
            except queue.Empty:
                return
            if done.set_running_or_notify_cancel():
                self._write(handler, request, done)

    def _write(self, handler: Handler, request: Request, done: Future[object]) -> None:
        def decide() -> Decision:
            decided = handler(self._routes, request)
            assert isinstance(decided, Decision), "a writing request is answered by a decision"
            return decided

        try:
            done.set_result(self._topic.write(decide).answer)
        except (ClientError, RegistryError) as error:
            done.set_exception(error)
        except Exception as error:  # a defect costs its own request
            _logger.exception("a request could not be answered")
            done.set_exception(error)

    def _refuse_waiting(self) -> None:
        while True:
            try:
                *_, done = self._waiting.get_nowait()
            except queue.Empty:
                return
            done.set_exception(RegistryError(50301, "the registry stops"))
