"""Spark's listener of streaming queries: its events for one receiver.

Zone: real. Spark calls it in a thread of its own.
"""

from __future__ import annotations

from typing import Any, Protocol


class QueryEvents(Protocol):
    """Receives the events of a session's streaming queries."""

    def on_started(self, event: Any) -> None:
        """Spark has started a query."""

    def on_progress(self, event: Any) -> None:
        """A query has ended a batch, or has looked for new data in vain."""

    def on_terminated(self, event: Any) -> None:
        """A query has ended."""


class Attached:
    """The sessions whose events a receiver gets."""

    def __init__(self, receiver: QueryEvents) -> None:
        self._receiver = receiver
        self._sessions: list[tuple[Any, Any]] = []

    def attach(self, spark: Any) -> None:
        """Receive the events of a session from now on. A session is attached once."""
        if all(session is not spark for session, _ in self._sessions):
            listener = _make_listener(self._receiver)
            spark.streams.addListener(listener)
            self._sessions.append((spark, listener))

    def detach(self) -> None:
        """Receive no more. Spark's errors are those of its listeners."""
        while self._sessions:
            session, listener = self._sessions.pop()
            session.streams.removeListener(listener)


def _make_listener(receiver: QueryEvents) -> Any:
    from pyspark.sql.streaming import StreamingQueryListener  # noqa: PLC0415 - slow to import

    class Listener(StreamingQueryListener):  # type: ignore[misc]
        """Hands Spark's events on."""

        def onQueryStarted(self, event: Any) -> None:  # noqa: N802
            receiver.on_started(event)

        def onQueryProgress(self, event: Any) -> None:  # noqa: N802
            receiver.on_progress(event)

        def onQueryIdle(self, event: Any) -> None:  # noqa: N802
            """An idle query has nothing to tell."""

        def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
            receiver.on_terminated(event)

    return Listener()
