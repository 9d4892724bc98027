"""Hand-written codecs for Produce and Fetch, which are nearly all of the traffic: plain tuples, few calls.

Zone: pure. The interface of the hot path; the four codecs are in `hot_produce` and `hot_fetch`, and `many_partitions`
decodes requests of many partitions.

Each function returns the function for a version, to be kept by the caller. Decoders take the frame and the position of
the body. They never copy record data, and leave unexpected input (a truncated frame above all) to the compiled codec,
which handles every case and raises MalformedMessage with the field's name. Encoders write responses without errors;
record errors, error texts and addresses of new leaders need the compiled codec.
"""

from __future__ import annotations

from ottla.wire.hot_fetch import FetchRequest, decode_fetch, encode_fetch
from ottla.wire.hot_produce import MANY, ManyPartitions, OneAnswer, decode_produce, encode_produce

__all__ = [
    "MANY",
    "FetchRequest",
    "ManyPartitions",
    "OneAnswer",
    "decode_fetch",
    "decode_produce",
    "encode_fetch",
    "encode_produce",
]
