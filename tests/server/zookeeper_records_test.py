"""ZooKeeper's wire format: messages are encoded and decoded, other clients' bytes are understood, noise is refused.

Zone: pure.
"""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kazoo.protocol import serialization as kazoo
from kazoo.security import OPEN_ACL_UNSAFE

from ottla.server.zookeeper.jute import Acl, BadMessage, Reader, Stat, read_fields, write_fields
from ottla.server.zookeeper.records import (
    FIELDS,
    MAX_OPS,
    OPEN_ACL,
    Create,
    Multi,
    Nothing,
    OpCode,
    PathVersion,
    PathWatch,
    SetData,
    SetWatches,
    ZkError,
    decode_connect,
    decode_request,
    encode_connected,
    encode_notice,
    encode_parts,
    encode_reply,
    encode_request,
)
from ottla.znodes.tree import EventKind

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(max_size=20)
VALUES = {
    "i": INT32,
    "q": INT64,
    "b": st.booleans(),
    "d": st.none() | st.binary(max_size=40),
    "t": TEXT,
    "T": st.lists(TEXT, max_size=4),
    "A": st.lists(st.builds(Acl, INT32, TEXT, TEXT), max_size=3),
    "s": st.builds(Stat, INT64, INT64, INT64, INT64, INT32, INT32, INT32, INT64, INT32, INT32, INT64),
}
TYPES = st.text("".join(VALUES), max_size=6)


def values_of(types: str):
    return st.tuples(*(VALUES[letter] for letter in types))


@st.composite
def records(draw, ops=tuple(FIELDS)):
    op = draw(st.sampled_from(ops))
    kind, types = FIELDS[op]
    return int(op), kind(*draw(values_of(types)))


@given(TYPES.flatmap(lambda types: st.tuples(st.just(types), values_of(types))))
def test_what_is_written_is_read_again(case):
    types, values = case
    reader = Reader(write_fields(types, values))
    assert read_fields(types, reader) == list(values)
    reader.check_end()


@given(INT32, records())
def test_requests_are_read_as_they_were_written(xid, request):
    op, record = request
    assert decode_request(encode_request(xid, op, record)) == (xid, op, record)


@given(
    INT32, st.lists(records((OpCode.CREATE, OpCode.CREATE2, OpCode.DELETE, OpCode.SET_DATA, OpCode.CHECK)), max_size=5)
)
def test_a_multi_is_read_as_it_was_written(xid, parts):
    assert decode_request(encode_request(xid, OpCode.MULTI, Multi(parts))) == (xid, OpCode.MULTI, Multi(parts))


@given(INT32, records(), st.data())
def test_a_request_that_is_cut_or_has_too_much_is_refused(xid, request, data):
    op, record = request
    whole = encode_request(xid, op, record)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(BadMessage):
        decode_request(whole[:cut])
    with pytest.raises(BadMessage, match="too many"):
        decode_request(whole + b"\0")


@given(st.binary(max_size=200))
def test_noise_is_refused_or_read_but_never_anything_else(noise):
    for decode in (decode_request, decode_connect):
        with contextlib.suppress(BadMessage):
            decode(noise)


def test_a_vector_that_claims_more_than_there_is_allocates_nothing():
    with pytest.raises(BadMessage, match="2147483647 elements"):
        decode_request(struct.pack(">iiq", 1, OpCode.SET_WATCHES, 0) + struct.pack(">i", 2**31 - 1))


def test_a_multi_has_a_bound():
    record = Multi([(OpCode.CHECK, PathVersion("", 0))] * (MAX_OPS + 1))
    with pytest.raises(BadMessage, match="more than"):
        decode_request(encode_request(1, OpCode.MULTI, record))


def test_only_writes_stand_in_a_multi():
    record = Multi([(OpCode.GET_DATA, PathWatch("/a", False))])
    with pytest.raises(BadMessage, match="operation 4 inside"):
        decode_request(encode_request(1, OpCode.MULTI, record))
    assert decode_request(encode_request(1, OpCode.MULTI_READ, record))[2] == record


def test_an_unknown_operation_has_no_record():
    assert decode_request(struct.pack(">ii", 7, 16) + b"whatever") == (7, 16, None)


# -- an independent client's bytes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "record"),
    [
        (kazoo.Create("/a", b"x", OPEN_ACL_UNSAFE, 3), Create("/a", b"x", list(OPEN_ACL), 3)),
        (kazoo.Create2("/a", None, OPEN_ACL_UNSAFE, 0), Create("/a", None, list(OPEN_ACL), 0)),
        (kazoo.Delete("/ä", -1), PathVersion("/ä", -1)),
        (kazoo.Exists("/a", print), PathWatch("/a", True)),
        (kazoo.GetData("/a", None), PathWatch("/a", False)),
        (kazoo.GetChildren2("/", None), PathWatch("/", False)),
        (kazoo.SetData("/a", b"", 5), SetData("/a", b"", 5)),
        (kazoo.CloseInstance, Nothing()),
    ],
)
def test_kazoos_requests_are_understood(sent, record):
    message = kazoo.int_int_struct.pack(9, sent.type) + sent.serialize()
    assert decode_request(bytes(message)) == (9, sent.type, record)


def test_kazoos_transaction_is_understood_and_it_understands_the_answer():
    sent = kazoo.Transaction([kazoo.CheckVersion("/a", 1), kazoo.SetData("/a", b"x", -1), kazoo.Delete("/b", 0)])
    _, op, record = decode_request(bytes(kazoo.int_int_struct.pack(9, sent.type) + sent.serialize()))
    assert op == OpCode.MULTI
    assert record == Multi(
        [
            (OpCode.CHECK, PathVersion("/a", 1)),
            (OpCode.SET_DATA, SetData("/a", b"x", -1)),
            (OpCode.DELETE, PathVersion("/b", 0)),
        ]
    )
    stat = Stat(1, 2, 3, 4, 5, 6, 0, 0, 1, 0, 2)
    done = kazoo.Transaction.deserialize(
        encode_parts([(OpCode.CHECK, 0, "", ()), (OpCode.SET_DATA, 0, "s", (stat,)), (OpCode.DELETE, 0, "", ())]), 0
    )
    assert [done[0], done[1].version, done[2]] == [True, 5, True]
    failed = kazoo.Transaction.deserialize(
        encode_parts([(-1, 0, "", ()), (-1, ZkError.BAD_VERSION, "", ()), (-1, -2, "", ())]), 0
    )
    assert [type(one).__name__ for one in failed] == ["RolledBackError", "BadVersionError", "RuntimeInconsistency"]


def test_kazoo_reads_the_answers():
    connected, _ = kazoo.Connect.deserialize(encode_connected(4000, 77, b"p" * 16), 0)
    assert (connected.time_out, connected.session_id, connected.passwd) == (4000, 77, b"p" * 16)
    header, at = kazoo.ReplyHeader.deserialize(encode_reply(3, 12, ZkError.NO_NODE), 0)
    assert (header, at) == ((3, 12, -101), 16)
    notice = encode_notice(EventKind.DELETED, "/a")
    header, at = kazoo.ReplyHeader.deserialize(notice, 0)
    assert header.xid == -1
    assert kazoo.Watch.deserialize(notice, at)[0] == (2, 3, "/a")


def test_a_connect_of_any_age_is_read():
    old = write_fields("iqiqd", (0, 5, 4000, 0, bytes(16)))
    assert decode_connect(old) == decode_connect(old + b"\x01") == (0, 5, 4000, 0, bytes(16))


def test_renewed_watches_come_in_two_forms():
    three = SetWatches(9, ["/a"], ["/b"], ["/c"])
    assert decode_request(encode_request(-8, OpCode.SET_WATCHES, three))[2] == three
    five = SetWatches(9, ["/a"], [], [], ["/d"], ["/e"])
    assert decode_request(encode_request(-8, OpCode.SET_WATCHES2, five))[2] == five
