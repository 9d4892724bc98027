"""A Produce request of one batch, and its usual answer, by hand: for the producer what `hot_produce` is for a broker.

Zone: pure. All that does not change from batch to batch of a partition is laid out once: a request is that around its
correlation id and its records, an answer is compared with what it has to be, and three numbers in it are read. From
version 3 on, the first one with batches of format v2.
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
"""Of the correlation id in a request header, behind API key and version."""
_new = tuple.__new__  # a third of the time of LoneAnswer(…)
_int16: Final = struct.Struct(">h").pack
_int32: Final = struct.Struct(">i").pack


class LoneAnswer(NamedTuple):
    """What a broker says of the one batch when it is written."""

    base_offset: int
    append_time_ms: int
    """-1 unless the broker has stamped the records."""
    throttle_ms: int


class LoneProduce:
    """The layout of all requests with one batch for one partition, over one connection."""

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
        head = self._text(transactional_id) + struct.pack(">hi", acks, timeout_ms)
        where = self._where(version, topic, topic_id, partition)
        self._start = header[:_CORRELATION_POS]
        self._before = header[_CORRELATION_POS + 4 :] + head + where
        self.tail = b"\0\0\0" if self._flexible else b""
        """What follows the records: no tags of the partition, the topic, the request."""
        self._answer_head = (b"\0" if self._flexible else b"") + where
        self._lay_out_answer(version)

    def _text(self, text: str | None) -> bytes:
        if text is None:
            return b"\0" if self._flexible else _int16(-1)
        raw = encode_text(text)
        return (uvarint(len(raw) + 1) if self._flexible else _int16(len(raw))) + raw

    def _where(self, version: int, topic: str, topic_id: bytes, partition: int) -> bytes:
        """One topic with one partition: written alike in the request and in its answer."""
        one = b"\2" if self._flexible else _int32(1)
        name = topic_id if version >= _IDENTIFIED else self._text(topic)
        return one + name + one + _int32(partition)

    def _lay_out_answer(self, version: int) -> None:
        """After the partition: error, base offset, append time, log start, then no details, throttle time, no tags."""
        numbers = "hqq" + ("q" if version >= 5 else "")
        if self._flexible:
            details, tail = b"\1\0\0\0", b"\0"
        else:
            details, tail = _int32(0) + _int16(-1) if version >= 8 else b"", b""
        layout = struct.Struct(f">{numbers}{len(details)}si{len(tail)}s")
        self._unpack = layout.unpack_from
        self._answer_size = 4 + len(self._answer_head) + layout.size
        self._answer_tail = (details, tail)

    def frame(self, correlation_id: int, size: int) -> bytes:
        """What goes before records of `size` bytes, the frame's length prefix included; `tail` goes behind them."""
        length = uvarint(size + 1) if self._flexible else _int32(size)
        behind = self._before + length
        whole = len(behind) + size + len(self.tail) + 8
        return _int32(whole) + self._start + _int32(correlation_id) + behind

    def read(self, frame: memoryview) -> LoneAnswer | None:
        """The answer in a frame without its length prefix; None when it is any but the usual one, or wrong."""
        at = 4 + len(self._answer_head)
        if len(frame) != self._answer_size or frame[4:at] != self._answer_head:
            return None
        error, base_offset, append_time_ms, *_, details, throttle_ms, tail = self._unpack(frame, at)
        if error or (details, tail) != self._answer_tail:
            return None
        return _new(LoneAnswer, (base_offset, append_time_ms, throttle_ms))
