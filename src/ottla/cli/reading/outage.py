"""Waits for records, and for brokers that become unreachable while records are read.

Zone: real. A restarted broker comes back; a reader without --timeout waits for it, and prints that it does. It also
prints what it waits for when no record comes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ottla.cli.options import ClientSettings, option_value, print_note

if TYPE_CHECKING:
    from ottla.client import ClientError, Consumer, ConsumerRecord, TopicPartition

_NOTICED_AFTER_MS: Final = 10_000
_SILENT_S: Final = 2.0
"""After this time without a record a reader prints what it waits for."""


def outage_settings() -> ClientSettings:
    """Client settings with which an outage is noticed soon; none when `--timeout` sets how long to wait."""
    return {} if option_value("timeout_s") is not None else {"default.api.timeout.ms": _NOTICED_AFTER_MS}


class PatientPoll:
    """Polls and commits; without `--timeout` it waits while no broker can be reached."""

    def __init__(
        self,
        consumer: Consumer,
        topic: str | None,
        awaited: Callable[[], str],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """topic: one that is asked about after an outage; None: all, where only a pattern is known. awaited: tells what
        the reader waits for, when no record has come for a while."""
        self._consumer = consumer
        self._topic = topic
        self._awaited = awaited
        self._now = now
        self._silent_since = now()
        self._may_note_silence = option_value("timeout_s") is None
        self._is_out = False

    def poll(self, timeout_s: float) -> list[ConsumerRecord]:
        """The next records; none during an outage. Raises ClientError for other errors."""
        from ottla.client import ClientError

        try:
            records = self._consumer.poll(timeout_s)
            if self._is_out:
                self._ask_broker()
        except ClientError as error:
            self._note_outage(error)
            return []
        self._note_answer()
        self._note_silence(records)
        return records

    def _note_silence(self, records: list[ConsumerRecord]) -> None:
        """Print once, in the first silence, what is waited for."""
        if records:
            self._silent_since = self._now()
        elif self._may_note_silence and self._now() >= self._silent_since + _SILENT_S:
            self._may_note_silence = False
            print_note(self._awaited())

    def _ask_broker(self) -> None:
        if self._topic is None:
            self._consumer.list_topics()
        else:
            self._consumer.partitions_for_topic(self._topic)

    def commit_offsets(self, offsets: dict[TopicPartition, int]) -> bool:
        """Commit; False during an outage: then they have to be committed later. Raises ClientError for other errors."""
        from ottla.client import ClientError

        try:
            self._consumer.commit(offsets)
        except ClientError as error:
            self._note_outage(error)
            return False
        self._note_answer()
        return True

    def _note_outage(self, error: ClientError) -> None:
        """Print once that no broker answers. Raises the error if it is another one."""
        from ottla.client import DeadlineError

        last = (isinstance(error, DeadlineError) and error.last) or error
        if not _is_outage(last):
            raise error
        if not self._is_out:
            print_note(f"no broker answers, waiting for one to come back (Ctrl-C stops): {last.cause}")
        self._is_out = True

    def _note_answer(self) -> None:
        if self._is_out:
            self._is_out = False
            print_note("a broker answers again")


def _is_outage(error: ClientError) -> bool:
    from ottla.client import ConnectionLostError, RequestTimeoutError, UnreachableError

    if option_value("timeout_s") is not None:
        return False
    return isinstance(error, ConnectionLostError | RequestTimeoutError | UnreachableError)
