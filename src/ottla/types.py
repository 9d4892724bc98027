"""Value types that all packages share.

Zone: pure. Small immutable values without behaviour; nothing that depends on bytes or files.
"""

from __future__ import annotations

import base64
from typing import Final, NamedTuple

NO_OFFSET: Final = -1
"""An offset that is not known (Kafka's INVALID_OFFSET / UNKNOWN_OFFSET)."""
UNBOUNDED: Final = 2**63 - 1
"""Above every offset."""
LAST_OFFSET: Final = UNBOUNDED - 1
"""The largest offset that a record may have: the offset after it, the end of its log, has to be a 64-bit number."""
NO_EPOCH: Final = -1
"""A leader epoch that is not known."""
NO_TIMESTAMP: Final = -1
"""A timestamp that is not known, in the unit milliseconds since 1970."""
NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""Topics to which only coordinators write, not clients."""
ZERO_UUID: Final = bytes(16)
"""The topic id in a message that identifies its topic by name."""


class TopicPartition(NamedTuple):
    """A partition of a topic; also the name of its directory, `<topic>-<partition>`."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Endpoint(NamedTuple):
    """The address of a listener."""

    listener: str
    host: str
    port: int
    protocol: str = "PLAINTEXT"


def uuid_to_text(uuid: bytes) -> str:
    """Kafka's text form of 16 bytes: URL-safe base64 without padding, 22 characters."""
    return base64.urlsafe_b64encode(uuid).rstrip(b"=").decode("ascii")


def uuid_from_text(text: str) -> bytes:
    """Inverse of `uuid_to_text`. Raises ValueError when `text` is not 22 base64 characters of 16 bytes."""
    uuid = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    if len(uuid) != 16:
        raise ValueError(f"not a Kafka uuid: {text!r}")
    return uuid
