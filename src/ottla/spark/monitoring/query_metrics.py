"""`QueryMetrics`: the metrics of all streaming queries of a session, for Prometheus.

Zone: real. A listener of Spark's streaming queries, and two pages on a thread of its own.
"""

from __future__ import annotations

import json
import threading
import time
from typing import Any

from ottla.http_pages import Access, Page, PageThread, add_process_metrics, json_page, metrics_page
from ottla.metrics import Registry
from ottla.spark.monitoring.listener import Attached
from ottla.spark.monitoring.query_figures import QueryTable, add_query_metrics


class QueryMetrics:
    """Metrics of the streaming queries of a session, whatever they read and write.

        metrics = QueryMetrics()
        metrics.attach(spark)  # before the queries are started
        metrics.serve("127.0.0.1:9404")  # /metrics for Prometheus, /health

    Queries are known by their names (`queryName`), those without one by their ids; the figures of several runs of one
    name are added up.
    """

    def __init__(self) -> None:
        self.registry = Registry()
        """The metrics; a program may add its own before `serve`."""
        self.queries = QueryTable()
        self._lock = threading.Lock()
        self._attached = Attached(self)
        self._pages: PageThread | None = None
        add_query_metrics(self.registry, self.queries)

    def attach(self, spark: Any) -> None:
        """Count the queries of a session from now on. A session is attached once."""
        self._attached.attach(spark)

    def detach(self) -> None:
        """Count no more; the figures stay. Spark's errors are those of its listeners."""
        self._attached.detach()

    def serve(self, address: str, access: Access | None = None) -> int:
        """Serve /metrics and /health at `host:port` from a thread of their own; the port. Port 0: a free one.

        /health has status 503 while a query's last run has failed. Raises ValueError for another text, OSError when
        the address is taken.
        """
        assert self._pages is None, "the pages are served already"
        add_process_metrics(self.registry)
        pages = {"/metrics": lambda: metrics_page(self.registry), "/health": self._make_health_page}
        self._pages = PageThread(pages, address, access)
        return self._pages.port

    def close(self) -> None:
        """Serve no more, and count no more. Idempotent."""
        self.detach()
        if self._pages is not None:
            self._pages.stop()
            self._pages = None

    @property
    def failed(self) -> dict[str, str]:
        """Queries whose last run has failed, with the reason."""
        return {one.name: one.failure for one in self.queries if one.failure is not None}

    async def _make_health_page(self) -> Page:
        failed = {name: reason.splitlines()[0][:500] for name, reason in self.failed.items() if reason}
        running = sum(one.is_running for one in self.queries)
        return json_page(503 if failed else 200, {
            "status": "failed" if failed else "ready", "running": running, "failed": failed,
        })  # fmt: skip

    def on_started(self, event: Any) -> None:
        """Spark has started a query."""
        with self._lock:
            self.queries.on_started(event.name or str(event.id), str(event.runId))

    def on_progress(self, event: Any) -> None:
        """A query has made progress."""
        document = json.loads(event.progress.json)
        with self._lock:
            name = document.get("name") or document["id"]
            self.queries.on_progress(name, document["runId"], document, time.time())

    def on_terminated(self, event: Any) -> None:
        """A query has ended."""
        with self._lock:
            self.queries.on_terminated(str(event.runId), event.exception)
