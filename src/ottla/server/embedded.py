"""A broker inside another program: for tests, demos and notebooks.

Zone: real.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Final

from ottla.config.broker import BrokerConfig
from ottla.config.rows import list_word
from ottla.seams import Failure
from ottla.server.service import Service
from ottla.types import Endpoint

_ALONE: Final = {
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}
"""The broker would use one replica anyhow, but would log a warning in the program that embeds it."""
DESCRIPTORS: Final = 96
"""Files that are open at once; others are opened again on use. An embedded broker keeps few: `select` in the host
program fails for descriptors from 1,024 on, which would end PySpark's callback server and block foreachBatch."""


class EmbeddedBroker:
    """Runs a broker on a thread of this process.

        with EmbeddedBroker() as broker:
            producer = Producer({"bootstrap.servers": broker.bootstrap})

    `data_dir`: kept; without it a temporary directory is used and removed. `config`: Kafka's broker keys as text.
    The broker listens on 127.0.0.1 and a free port unless `config` sets `listeners`; the topics of groups and
    transactions have one replica unless `config` sets another number. `descriptors`: log files that are open at once.
    `read_wall_ms`: the broker's time of day in milliseconds since 1970, for tests that move it; it is called in the
    broker's thread.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        config: Mapping[str, str] | None = None,
        descriptors: int = DESCRIPTORS,
        read_wall_ms: Callable[[], int] | None = None,
    ) -> None:
        self._temporary = tempfile.mkdtemp(prefix="ottla-") if data_dir is None else None
        directory = self._temporary or os.fspath(data_dir or "")
        properties = {
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": list_word(directory),
            **_ALONE,
            **(config or {}),
        }
        broker_config = BrokerConfig.from_properties(properties)[0]
        self._service = Service(broker_config, descriptors=descriptors, read_wall_ms=read_wall_ms)
        self._ready = threading.Event()
        self._failure: Failure | None = None
        self._thread = threading.Thread(target=self._run_service, name="ottla-broker", daemon=True)

    @property
    def bootstrap(self) -> str:
        """host:port, for a client's bootstrap.servers."""
        return self._service.bootstrap

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The listeners, with the ports that they are bound to."""
        return tuple(self._service.endpoints)

    @property
    def http_port(self) -> int:
        """Port of the pages /metrics and /health, where `ottla.http.listener` is set."""
        return self._service.pages.port

    def start(self) -> EmbeddedBroker:
        """Start, and return when requests are answered. Raises Failure when it cannot start."""
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            self.stop()
            raise self._failure
        return self

    def stop(self) -> None:
        """Shut down cleanly; does nothing if it was never started or has stopped."""
        if self._thread.ident is not None:
            self._service.ask_to_stop()
            # The directory is removed only when the thread has ended: the broker writes its checkpoints at the very
            # end.
            self._thread.join()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def _run_service(self) -> None:
        try:
            self._service.run_until_stopped(self._ready.set)
        except Failure as failure:
            self._failure = failure.as_value()
        finally:
            self._ready.set()

    def __enter__(self) -> EmbeddedBroker:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
