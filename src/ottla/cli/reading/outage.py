"""Waits for brokers that become unreachable while records are read.

Zone: real. A restarted broker comes back; a reader without --timeout waits for it, and prints that it does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.cli.options import ClientSettings, option_value, print_note

if TYPE_CHECKING:
    from ottla.client import ClientError, Consumer, ConsumerRecord

_NOTICED_AFTER_MS: Final = 10_000


def outage_settings() -> ClientSettings:
    """Client settings with which an outage is noticed soon; none when `--timeout` sets how long to wait."""
    return {} if option_value("timeout_s") is not None else {"default.api.timeout.ms": _NOTICED_AFTER_MS}


class PatientPoll:
    """Polls a consumer; without `--timeout` it waits while no broker can be reached."""

    def __init__(self, consumer: Consumer, topic: str) -> None:
        self._consumer = consumer
        self._topic = topic
        self._is_out = False

    def poll(self, timeout_s: float) -> list[ConsumerRecord]:
        """The next records; none during an outage. Raises ClientError for other errors."""
        from ottla.client import ClientError, DeadlineError

        try:
            records = self._consumer.poll(timeout_s)
            if self._is_out:
                self._consumer.partitions_for_topic(self._topic)
        except ClientError as error:
            last = (isinstance(error, DeadlineError) and error.last) or error
            if not _is_outage(last):
                raise
            if not self._is_out:
                print_note(f"no broker answers, waiting for one to come back (Ctrl-C stops): {last.cause}")
            self._is_out = True
            return []
        if self._is_out:
            self._is_out = False
            print_note("a broker answers again")
        return records


def _is_outage(error: ClientError) -> bool:
    from ottla.client import ConnectionLostError, RequestTimeoutError, UnreachableError

    if option_value("timeout_s") is not None:
        return False
    return isinstance(error, ConnectionLostError | RequestTimeoutError | UnreachableError)
