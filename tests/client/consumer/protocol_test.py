"""The bytes that members of a group exchange: round trips, and invalid bytes of other members."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.client.consumer.protocol import (
    NO_GENERATION,
    Subscription,
    decode_assignment,
    decode_generation,
    decode_sticky,
    decode_subscription,
    encode_assignment,
    encode_generation,
    encode_sticky,
    encode_subscription,
    readable_members,
)
from ottla.client.errors import MalformedReplyError
from ottla.types import TopicPartition

NAMES = st.text("abc\udcff", min_size=1)
"""Bytes with a byte that is not UTF-8."""
PLACES = st.lists(st.builds(TopicPartition, NAMES, st.integers(0, 9)), unique=True).map(
    lambda found: tuple(sorted(found))
)
WANTED = st.builds(
    Subscription,
    st.lists(NAMES, unique=True).map(lambda found: tuple(sorted(found))),
    st.none() | st.binary(),
    PLACES,
    st.integers(-1, 2**31 - 1),
    st.none() | st.text("r", min_size=1),
    st.none(),
)


@given(wanted=WANTED)
def test_subscriptions_come_back_as_far_as_the_version_carries_them(wanted: Subscription) -> None:
    lost = [{"owned": ()}, {"generation": NO_GENERATION}, {"rack": None}, {}]
    expected = wanted
    for version in (3, 2, 1, 0):
        expected = expected._replace(**lost[version])  # type: ignore[arg-type]
        assert decode_subscription(encode_subscription(wanted, version)) == expected


@given(places=PLACES, generation=st.integers(-1, 2**31 - 1))
def test_assignments_and_user_data_come_back(places: tuple[TopicPartition, ...], generation: int) -> None:
    assert decode_assignment(encode_assignment(places)) == places
    owned, found = decode_sticky(encode_sticky(places, generation))
    assert (set(owned), found) == (set(places), generation)
    assert decode_sticky(encode_sticky(places, 0)[:-4])[1] is None
    assert decode_generation(encode_generation(generation)) == generation


def test_an_assignment_of_no_bytes_is_empty() -> None:
    assert decode_assignment(b"") == ()


@given(data=st.binary(max_size=60))
def test_bytes_of_others_are_read_or_refused(data: bytes) -> None:
    for read in (decode_subscription, decode_assignment):
        with contextlib.suppress(MalformedReplyError):
            read(data)
    owned, generation = decode_sticky(data)
    assert len(owned) <= len(data)
    assert generation is None or generation >= -(2**31)
    assert decode_generation(data) in (NO_GENERATION, int.from_bytes(data[:4], "big", signed=True))


BROKEN = [b"", b"\0", b"\0\1\0\0\0\1", b"\0\0\x7f\xff\xff\xff", b"\xff\xff\0\0\0\0\0\0\0\0"]


@pytest.mark.parametrize("data", BROKEN)
def test_broken_subscriptions_raise_malformed_reply_error(data: bytes) -> None:
    with pytest.raises(MalformedReplyError, match="subscription that cannot be decoded"):
        decode_subscription(data)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_subscription_that_ends_before_the_fields_of_its_version_has_their_defaults(version: int) -> None:
    old = encode_subscription(Subscription(("t",), b"data"), 0)
    assert decode_subscription(version.to_bytes(2, "big") + old[2:]) == Subscription(("t",), b"data")


def test_a_member_that_cannot_be_read_costs_the_others_nothing() -> None:
    fine = encode_subscription(Subscription(("t",)))
    rows = [
        ("first", fine, None),
        *((f"broken-{at}", data, None) for at, data in enumerate(BROKEN)),
        ("last", fine, "i"),
    ]
    assert list(readable_members(rows)) == ["first", "last"]
