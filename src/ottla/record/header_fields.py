"""The positions of the fields in the tuple of a batch's header (`unpack_header`, `HeaderTuple`).

Zone: pure. `header[BASE_OFFSET]` costs 2 ns more than a number (CPython 3.11), while a NamedTuple costs 120 ns per
header to make and 7 ns per access: what handles every batch uses the tuple. `BatchHeader` has the same fields as
attributes, where a header is looked at once.
"""

from __future__ import annotations

from typing import Final

BASE_OFFSET: Final = 0
BATCH_LENGTH: Final = 1
"""The bytes after this field: a batch has LOG_OVERHEAD bytes more."""
LEADER_EPOCH: Final = 2
MAGIC: Final = 3
CRC: Final = 4
ATTRIBUTES: Final = 5
LAST_OFFSET_DELTA: Final = 6
BASE_TIMESTAMP: Final = 7
MAX_TIMESTAMP: Final = 8
PRODUCER_ID: Final = 9
PRODUCER_EPOCH: Final = 10
BASE_SEQUENCE: Final = 11
RECORD_COUNT: Final = 12
