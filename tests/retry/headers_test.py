"""The headers of failed records: written as by Spring, and read from any writer, with any content.

Zone: pure.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ottla.retry.headers import (
    Failure,
    Names,
    Origin,
    Trail,
    failure_of,
    is_ours,
    read_due_ms,
    read_trail,
    with_trail,
    without_trail,
)

INT32 = st.integers(0, 2**31 - 1)
BELIEVABLE = st.integers(-1, 2**60)
"""Offsets and times; what is larger may look like digits."""
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
TRAILS = st.builds(
    Trail,
    attempts=st.integers(1, 10_000),
    due_ms=st.none() | st.integers(0, 2**44),
    first_ms=st.none() | st.integers(0, 2**44),
    origin=st.none()
    | st.builds(Origin, TEXT, st.integers(-1, 100_000), BELIEVABLE, BELIEVABLE, TEXT, st.none() | TEXT),
    failure=st.none() | st.builds(Failure, TEXT, st.text(max_size=20), st.none() | TEXT, st.none() | TEXT),
    passes=st.integers(-1, 1000),
    redrives=st.integers(0, 1000),
    back_to=st.none() | TEXT,
)
PLAIN = st.lists(
    st.tuples(TEXT.filter(lambda name: not is_ours(name)), st.none() | st.binary(max_size=9)), max_size=4
).map(tuple)


@given(TRAILS, PLAIN, st.booleans())
def test_what_is_written_is_read_and_the_application_s_headers_stay(
    trail: Trail, own: tuple[tuple[str, bytes | None], ...], text: bool
) -> None:
    names = Names(text=text)
    headers = with_trail(with_trail(own, Trail(attempts=7), names), trail, names)
    assert read_trail(headers, names) == trail
    assert without_trail(headers, names) == own


FULL = Trail(1, 1, 1, Origin("t", group="g"), Failure("k", "m", "c", "s"), passes=1, redrives=1, back_to="b")
KNOWN = [*dict(with_trail((), FULL)), "__dlq.errors.topic", "__dlq.errors.offset", "__connect.errors.topic"]


@given(st.lists(st.tuples(st.sampled_from(KNOWN), st.none() | st.binary())))
def test_whatever_bytes_stand_in_headers_they_are_read_without_an_error_and_in_range(
    headers: list[tuple[str, bytes | None]],
) -> None:
    trail = read_trail(headers)
    assert 1 <= trail.attempts < 2**31
    assert trail.due_ms is None or 0 <= trail.due_ms < 2**63
    assert -1 <= trail.passes < 2**31
    assert read_trail(with_trail(headers, trail)).attempts == trail.attempts
    assert read_due_ms(headers) == trail.due_ms


def test_a_time_whose_bytes_look_like_digits_is_read_as_what_it_was() -> None:
    for time_ms in (48, 57, 0x3939, 0x313233343536):
        assert read_trail(with_trail((), Trail(first_ms=time_ms))).first_ms == time_ms


def test_bytes_are_those_of_spring() -> None:
    trail = Trail(attempts=2, due_ms=1_700_000_000_000, first_ms=128, origin=Origin("orders", 3, 70, 5, group="bill"))
    assert dict(with_trail((), trail)) == {
        "retry_topic-attempts": b"\0\0\0\2",
        "retry_topic-backoff-timestamp": bytes.fromhex("018bcfe56800"),  # BigInteger.toByteArray of it
        "retry_topic-original-timestamp": b"\0\x80",  # with a sign
        "kafka_dlt-original-topic": b"orders",
        "kafka_dlt-original-partition": b"\0\0\0\3",
        "kafka_dlt-original-offset": b"\0\0\0\0\0\0\0\x46",
        "kafka_dlt-original-timestamp": b"\0\0\0\0\0\0\0\5",
        "kafka_dlt-original-timestamp-type": b"CreateTime",
        "kafka_dlt-original-consumer-group": b"bill",
    }


def test_a_group_whose_name_is_not_utf8_is_kept_as_it_is() -> None:
    trail = Trail(origin=Origin("orders", group="caf\udce9"))
    headers = with_trail((), trail)
    assert dict(headers)["kafka_dlt-original-consumer-group"] == b"caf\xe9"
    assert read_trail(headers) == trail


def test_attempts_of_one_byte_and_numbers_in_digits_are_read() -> None:
    assert read_trail([("retry_topic-attempts", b"\3")]).attempts == 3
    assert read_trail([("retry_topic-attempts", b"12")]).attempts == 12
    assert read_trail([("retry_topic-backoff-timestamp", b"1700000000000")]).due_ms == 1_700_000_000_000


def test_headers_of_share_groups_and_of_connect_are_read() -> None:
    share = read_trail([("__dlq.errors.topic", b"t"), ("__dlq.errors.partition", b"1"), ("__dlq.errors.offset", b"9"),
                  ("__dlq.errors.message", b"5 deliveries")])  # fmt: skip
    assert share.origin == Origin("t", 1, 9)
    assert share.failure == Failure("5 deliveries", "5 deliveries")
    connect = read_trail([("__connect.errors.topic", b"t"), ("__connect.errors.exception.class.name", b"java.Bad"),
                    ("__connect.errors.exception.message", b"no")])  # fmt: skip
    assert connect.failure == Failure("java.Bad", "no")


def test_headers_that_cannot_be_read_are_named_and_count_as_missing() -> None:
    trail = read_trail([("retry_topic-attempts", b"-4"), ("retry_topic-backoff-timestamp", b"\xff" * 30),
                  ("kafka_dlt-original-topic", b"\xff"), ("kafka_dlt-exception-message", b"\xff")])  # fmt: skip
    assert (trail.attempts, trail.due_ms, trail.origin) == (1, None, None)
    assert trail.failure == Failure("\N{REPLACEMENT CHARACTER}", "\N{REPLACEMENT CHARACTER}")
    assert trail.bad == ("retry_topic-attempts", "retry_topic-backoff-timestamp", "kafka_dlt-original-topic")


def test_an_exception_is_described_with_its_cause_and_cut_where_it_is_too_long() -> None:
    try:
        try:
            raise KeyError("price")
        except KeyError as error:
            raise ValueError("x" * 9_000) from error
    except ValueError as error:
        found = failure_of(error)
    assert (found.kind, found.cause) == ("builtins.ValueError", "builtins.KeyError")
    again = read_trail(with_trail((), Trail(failure=found))).failure
    assert again is not None
    assert again.message == "x" * 2_000
