"""Reads at the end what restricted clients have written: the numbers in records and in positions of groups.

Zone: deterministic. The reader is a super user.
"""

from __future__ import annotations

from typing import Final

from ottla.sim.cluster.client import REFRESH_NS
from ottla.sim.security.history import SecurityHistory
from ottla.sim.security.logins import LoginClient
from ottla.sim.security.requests import codes_in, fetch_offsets
from ottla.sim.security.restricted_clients import GROUPS, TOPICS
from ottla.sim.transactions.polling import parse_row
from ottla.wire.messages import FetchRequest, FetchResponse, OffsetFetchResponse
from ottla.wire.schema import Message

VERSION: Final = 11
MAX_BYTES: Final = 200_000


class EffectReader:
    """Reads the topics and the positions."""

    def __init__(self, client: LoginClient, history: SecurityHistory) -> None:
        self._client = client
        self._history = history
        self.unread: dict[str, None] = {}
        """Topics and groups that are not read yet."""

    def start_reading(self) -> None:
        """Read everything from its start."""
        self.unread = dict.fromkeys((*TOPICS, *GROUPS))
        self._client.mark_metadata_stale()
        for topic in TOPICS:
            self._fetch_next(topic, 0)
        for group in GROUPS:
            self._fetch_positions(group)

    def _fetch_next(self, topic: str, position: int) -> None:
        row = FetchRequest.FetchPartition(partition=0, fetch_offset=position, partition_max_bytes=MAX_BYTES)
        topics = [FetchRequest.FetchTopic(topic=topic, partitions=[row])]
        request = FetchRequest(max_wait_ms=0, max_bytes=MAX_BYTES, topics=topics)

        def on_response(response: Message | None, _node: int) -> None:
            if not isinstance(response, FetchResponse) or any(codes_in(response)):
                self._client.mark_metadata_stale()
                self._client.timeline.schedule_after(REFRESH_NS, "effects", self._fetch_next, topic, position)
            else:
                self._on_records(topic, position, response.responses[0].partitions[0])

        self._client.send_request(request, VERSION, FetchResponse, on_response, (topic, 0))

    def _on_records(self, topic: str, position: int, row: FetchResponse.PartitionData) -> None:
        found = parse_row(row, position, committed=False)
        self._history.effects.update(int(record.value) for record in found.records)
        if found.end >= row.high_watermark or found.damage:
            self.unread.pop(topic, None)
        else:
            self._fetch_next(topic, found.end)

    def _fetch_positions(self, group: str) -> None:
        sending = fetch_offsets(group, TOPICS)

        def on_response(response: Message | None, _node: int) -> None:
            if not isinstance(response, OffsetFetchResponse) or any(codes_in(response)):
                self._client.timeline.schedule_after(REFRESH_NS, "effects", self._fetch_positions, group)
                return
            texts = [row.metadata or "" for topic in response.topics for row in topic.partitions]
            self._history.effects.update(int(text) for text in texts if text.isdecimal())
            self.unread.pop(group, None)

        # Any broker may be asked: those that do not coordinate the group refuse.
        self._client.send_request(sending.message, sending.version, sending.response, on_response)
