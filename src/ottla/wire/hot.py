"""Produce and Fetch by hand: plain tuples, few calls, for the requests that are nearly all of the traffic.

Zone: pure. The face of the hot path; the four codecs are in `hot_produce` and `hot_fetch`; requests of many
partitions are read by `many_partitions`.

Each function here picks, for a version, a function to keep. Decoders take the frame and the position of the body; they
never copy record data, and what the fast code does not expect (a cut frame above all) is handed to the compiled codec,
which knows every case and raises MalformedMessage with the field's name. Encoders write what a broker answers in good
times; record errors, error texts and addresses of new leaders are for the compiled codec.
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
