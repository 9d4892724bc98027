"""Hand-written codec for Produce requests of one batch and their usual response: the client's side of `hot_produce`.

Zone: pure. The bytes that are the same for all batches of a partition are encoded once; a request adds the correlation
id and the records. A response is compared with the expected bytes, and three numbers are read from it. From version 3
on, the first one with batches of format v2.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from ottla.utf8 import encode_text
from ottla.wire.apis import ApiKey
from ottla.wire.header import encode_request_header
from ottla.wire.messages import ProduceRequest
from ottla.wire.primitives import uvarint

FIRST_VERSION: Final = 3
_FLEXIBLE: Final = 9
_IDENTIFIED: Final = 13
_CORRELATION_POS: Final = 4
"""Position of the correlation id in a request header, after API key and version."""
_new = tuple.__new__  # takes a third of the time of LoneAnswer(…)
_int16: Final = struct.Struct(">h").pack
_int32: Final = struct.Struct(">i").pack


class LoneAnswer(NamedTuple):
    """The usual response: the batch was appended."""

    base_offset: int
    append_time_ms: int
    """-1 unless the broker has stamped the records."""
    throttle_ms: int


class LoneProduce:
    """The layout of all requests with one batch for one partition on one connection."""

    __slots__ = (
        "_answer_head",
        "_answer_size",
        "_answer_tail",
        "_before",
        "_flexible",
        "_start",
        "_unpack",
        "tail",
        "version",
    )

    def __init__(
        self,
        version: int,
        client_id: str | None,
        transactional_id: str | None,
        acks: int,
        timeout_ms: int,
        topic: str,
        topic_id: bytes,
        partition: int,
    ) -> None:
        """Raises struct.error or UnicodeEncodeError for a value that does not fit the protocol."""
        assert FIRST_VERSION <= version <= ProduceRequest.VERSIONS[-1], version
        self.version = version
        self._flexible = version >= _FLEXIBLE
        header = encode_request_header(ApiKey.PRODUCE, version, 0, client_id)
        head = self._encode_text(transactional_id) + struct.pack(">hi", acks, timeout_ms)
        where = self._encode_partition(version, topic, topic_id, partition)
        self._start = header[:_CORRELATION_POS]
        self._before = header[_CORRELATION_POS + 4 :] + head + where
        self.tail = b"\0\0\0" if self._flexible else b""
        """The bytes after the records: empty tag sections of the partition, the topic, the request."""
        self._answer_head = (b"\0" if self._flexible else b"") + where
        self._lay_out_answer(version)

    def _encode_text(self, text: str | None) -> bytes:
        if text is None:
            return b"\0" if self._flexible else _int16(-1)
        raw = encode_text(text)
        return (uvarint(len(raw) + 1) if self._flexible else _int16(len(raw))) + raw

    def _encode_partition(self, version: int, topic: str, topic_id: bytes, partition: int) -> bytes:
        """One topic with one partition: the same bytes in the request and in its response."""
        one = b"\2" if self._flexible else _int32(1)
        name = topic_id if version >= _IDENTIFIED else self._encode_text(topic)
        return one + name + one + _int32(partition)

    def _lay_out_answer(self, version: int) -> None:
        """Lay out the response after the partition: error, base offset, append time, log start, empty record errors,
        throttle time, empty tags."""
        numbers = "hqq" + ("q" if version >= 5 else "")
        if self._flexible:
            details, tail = b"\1\0\0\0", b"\0"
        else:
            details, tail = _int32(0) + _int16(-1) if version >= 8 else b"", b""
        layout = struct.Struct(f">{numbers}{len(details)}si{len(tail)}s")
        self._unpack = layout.unpack_from
        self._answer_size = 4 + len(self._answer_head) + layout.size
        self._answer_tail = (details, tail)

    def frame_head(self, correlation_id: int, size: int) -> bytes:
        """The bytes before records of `size` bytes, with the frame's length prefix; `tail` follows the records."""
        length = uvarint(size + 1) if self._flexible else _int32(size)
        behind = self._before + length
        whole = len(behind) + size + len(self.tail) + 8
        return _int32(whole) + self._start + _int32(correlation_id) + behind

    def read(self, frame: memoryview) -> LoneAnswer | None:
        """Decode a response without its length prefix; None if it is not the usual one, or is malformed."""
        at = 4 + len(self._answer_head)
        # A usual response differs from others in its size, or in these bytes; the compiled codec reads the others.
        if len(frame) != self._answer_size or frame[4:at] != self._answer_head:
            return None
        error, base_offset, append_time_ms, *_, details, throttle_ms, tail = self._unpack(frame, at)
        if error or (details, tail) != self._answer_tail:
            return None
        return _new(LoneAnswer, (base_offset, append_time_ms, throttle_ms))
