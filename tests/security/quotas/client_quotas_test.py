"""Which quota is that of a client, what may be set, and what the waits are.

Zone: pure.
"""

from __future__ import annotations

import itertools

import pytest

from ottla.security.quotas import throttling
from ottla.security.quotas.client_quotas import (
    ClientQuotas,
    Limit,
    Quota,
    fault_of_quota,
    parse_quotas,
    quota_text,
)
from ottla.security.quotas.rates import Windows
from ottla.security.quotas.throttling import (
    RATES_MAX,
    Admission,
    ClientRates,
    ConnectionLimits,
    ConnectionRates,
    MutationRates,
)
from ottla.znodes.entity_nodes import Entity

PRODUCE = Quota.PRODUCER_BYTE_RATE
EIGHT = [
    (Entity(user="ann", client_id="c"), ("ann", "c")),
    (Entity(user="ann", client_id=None), ("ann", "c")),
    (Entity(user="ann"), ("ann", "")),
    (Entity(user=None, client_id="c"), ("ann", "c")),
    (Entity(user=None, client_id=None), ("ann", "c")),
    (Entity(user=None), ("ann", "")),
    (Entity(client_id="c"), ("", "c")),
    (Entity(client_id=None), ("", "c")),
]
"""The entities in Kafka's order, and who shares the rate."""


@pytest.mark.parametrize("chosen", [*itertools.combinations(range(8), 2), *itertools.combinations(range(8), 5)])
def test_the_first_of_eight_entities_decides(chosen: tuple[int, ...]) -> None:
    quotas = ClientQuotas()
    for number in reversed(chosen):
        quotas.replace_entity(EIGHT[number][0], {PRODUCE: float(number + 1)})
    first = chosen[0]
    assert quotas.find_limit(PRODUCE, "ann", "c") == Limit(EIGHT[first][1], first + 1)
    assert quotas.find_limit(Quota.CONSUMER_BYTE_RATE, "ann", "c").bound is None


def test_other_clients_have_the_quotas_of_all() -> None:
    quotas = ClientQuotas()
    for number, (entity, _) in enumerate(EIGHT):
        quotas.replace_entity(entity, {PRODUCE: float(number + 1)})
    assert quotas.find_limit(PRODUCE, "ann", "d") == Limit(("ann", "d"), 2)
    assert quotas.find_limit(PRODUCE, "bob", "c") == Limit(("bob", "c"), 4)
    assert quotas.find_limit(PRODUCE, "bob", "d") == Limit(("bob", "d"), 5)
    assert quotas.find_limit(PRODUCE, "bob", "") == Limit(("bob", ""), 5)
    assert quotas.find_limit(PRODUCE, "ann", "") == Limit(("ann", ""), 2)
    assert quotas.find_limit(PRODUCE, "", "") == Limit(("", ""), 5)
    quotas.replace_entity(EIGHT[1][0], {})
    quotas.replace_entity(EIGHT[4][0], {})
    assert quotas.find_limit(PRODUCE, "ann", "") == Limit(("ann", ""), 3)
    assert quotas.find_limit(PRODUCE, "bob", "") == Limit(("bob", ""), 6)


def test_a_quota_that_is_removed_is_gone_and_the_generation_rises() -> None:
    quotas = ClientQuotas()
    ann = Entity(user="ann")
    quotas.replace_entity(ann, {PRODUCE: 1.0, Quota.REQUEST_PERCENTAGE: 50.0})
    before = quotas.generation
    quotas.replace_entity(ann, {Quota.REQUEST_PERCENTAGE: 50.0})
    assert quotas.generation > before
    assert quotas.find_limit(PRODUCE, "ann", "c").bound is None
    assert quotas.quotas_of(ann) == {Quota.REQUEST_PERCENTAGE: 50.0}
    assert quotas.entities() == [ann]
    quotas.replace_entity(ann, {})
    assert quotas.entities() == []


def test_quotas_of_addresses() -> None:
    quotas = ClientQuotas()
    assert quotas.find_address_limit("10.0.0.1") is None
    quotas.replace_entity(Entity(ip=None), {Quota.CONNECTION_CREATION_RATE: 5.0})
    quotas.replace_entity(Entity(ip="10.0.0.1"), {Quota.CONNECTION_CREATION_RATE: 7.0})
    assert quotas.find_address_limit("10.0.0.1") == 7
    assert quotas.find_address_limit("10.0.0.2") == 5


@pytest.mark.parametrize(
    ("entity", "name", "value", "fault"),
    [
        (Entity(user="a"), "producer_byte_rate", 1.0, ""),
        (Entity(user="a"), "producer_byte_rate", 1.0000001, ""),
        (Entity(user="a"), "producer_byte_rate", 2.9999999, ""),
        (Entity(client_id=None), "request_percentage", 0.5, ""),
        (Entity(ip="1.2.3.4"), "connection_creation_rate", 2147483647.0, ""),
        (Entity(user="a"), "request_percentage", float("inf"), ""),
        (Entity(user="a"), "producer_byte_rate", 0.0, "Quota producer_byte_rate must be greater than 0"),
        (Entity(user="a"), "request_percentage", -1.0, "Quota request_percentage must be greater than 0"),
        (Entity(user="a"), "producer_byte_rate", float("nan"), "Quota producer_byte_rate must be greater than 0"),
        (Entity(user="a"), "producer_byte_rate", 1.5, "producer_byte_rate cannot be a fractional value."),
        (
            Entity(user="a"),
            "consumer_byte_rate",
            float("inf"),
            "Proposed value for consumer_byte_rate is too large for a LONG.",
        ),
        (
            Entity(ip="1.2.3.4"),
            "connection_creation_rate",
            2147483648.0,
            "Proposed value for connection_creation_rate is too large for a INT.",
        ),
        (Entity(user="a"), "connection_creation_rate", 1.0, "Invalid configuration key connection_creation_rate"),
        (Entity(ip=None), "producer_byte_rate", 1.0, "Invalid configuration key producer_byte_rate"),
        (Entity(user="a"), "SCRAM-SHA-256", 1.0, "Invalid configuration key SCRAM-SHA-256"),
        (Entity(user="a"), "", 1.0, "Invalid configuration key "),
    ],
)
def test_what_may_be_set(entity: Entity, name: str, value: float, fault: str) -> None:
    assert fault_of_quota(entity, name, value) == fault


def test_stored_quotas() -> None:
    config = {
        "producer_byte_rate": "1024",
        "request_percentage": "12.5",
        "SCRAM-SHA-256": "salt=…",
        "consumer_byte_rate": "0",
        "controller_mutation_rate": "NaN",
        "connection_creation_rate": "many",
    }
    found, ignored = parse_quotas(config)
    assert found == {PRODUCE: 1024.0, Quota.REQUEST_PERCENTAGE: 12.5}
    assert sorted(ignored) == ["connection_creation_rate", "consumer_byte_rate", "controller_mutation_rate"]
    assert quota_text(PRODUCE, 1024.0) == "1024"
    assert quota_text(PRODUCE, 2.9999999) == "3"
    assert quota_text(Quota.REQUEST_PERCENTAGE, 12.5) == "12.5"


# -- waits -------------------------------------------------------------------------------------------------------------

LIMIT = Limit(("ann", ""), 100.0)
UNLIMITED = Limit(("", "c"), None)


def test_clients_that_share_a_quota_wait_together() -> None:
    rates = ClientRates(Windows())
    assert rates.record_use(LIMIT, 1_000, 0) == 0
    assert rates.record_use(Limit(("bob", ""), 100.0), 1_000, 0) == 0
    assert rates.record_use(LIMIT, 500, 0) == 5_000
    assert rates.record_use(UNLIMITED, 10**12, 0) == 0
    rates.take_back(LIMIT, 500, 0)
    rates.take_back(UNLIMITED, 500, 0)
    assert rates.record_use(LIMIT, 0, 0) == 0
    assert rates.most_at_once(LIMIT) == 1_000
    assert rates.most_at_once(UNLIMITED) is None


def test_a_client_above_its_percentage_waits_for_one_window_at_most() -> None:
    rates = ClientRates(Windows(), waits_one_window=True)
    assert rates.record_use(LIMIT, 10**6, 0) == 1_000


def test_a_changed_quota_counts_for_what_was_recorded_before() -> None:
    rates = ClientRates(Windows())
    assert rates.record_use(LIMIT, 1_000, 0) == 0
    assert rates.record_use(LIMIT._replace(bound=50.0), 0, 0) == 10_000


def test_mutations_of_new_and_of_old_versions() -> None:
    limit = Limit(("ann", ""), 2.0)
    strict = MutationRates(Windows())
    assert strict.admit_mutations(limit, 30, 0) == 0, "a burst is accepted as a whole"
    assert strict.admit_mutations(limit, 1, 0) == 4_000
    assert strict.admit_mutations(limit, 1, 0) == 4_000, "what is refused is not recorded"
    assert strict.admit_mutations(limit, 1, 4_000) == 0
    assert strict.admit_mutations(UNLIMITED, 10**9, 0) == 0
    permissive = MutationRates(Windows())
    assert permissive.record_mutations(limit, 22, 0) == 0
    assert permissive.record_mutations(limit, 10, 0) == 5_000
    assert permissive.record_mutations(limit, 10, 0) == 10_000
    assert permissive.record_mutations(UNLIMITED, 10**9, 0) == 0


def test_connections_by_broker_listener_and_address() -> None:
    rates = ConnectionRates(Windows())
    unlimited = ConnectionLimits()
    assert rates.admit_connection("A", "1.1.1.1", unlimited, 0) == Admission()
    one = unlimited._replace(listener=1)
    for _ in range(9):
        assert rates.admit_connection("A", "1.1.1.1", one, 0) == Admission()
    assert rates.admit_connection("A", "1.1.1.1", one, 0) == Admission(pause_ms=1_000)
    assert rates.admit_connection("B", "1.1.1.1", one, 0) == Admission(), "each listener has its own rate"
    assert rates.admit_connection("B", "1.1.1.1", unlimited._replace(broker=1), 0).pause_ms == 1_000


def test_a_refused_address_takes_nothing_from_others() -> None:
    rates = ConnectionRates(Windows())
    limits = ConnectionLimits(broker=2, listener=2, address=1.0)
    for _ in range(10):
        assert rates.admit_connection("A", "6.6.6.6", limits, 0) == Admission()
    for _ in range(100):
        admission = rates.admit_connection("A", "6.6.6.6", limits, 0)
        assert admission.refuse_ms == 1_000
        assert admission.pause_ms == 0
    for _ in range(10):
        assert rates.admit_connection("A", "7.7.7.7", limits, 0) == Admission()


def test_many_client_ids_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert RATES_MAX == 10_000
    monkeypatch.setattr(throttling, "RATES_MAX", 100)
    rates = ClientRates(Windows())
    rates.record_use(LIMIT, 10**9, 5)
    for number in range(1_000):
        rates.record_use(Limit(("", f"c{number}"), 1.0), 5, 5)
        assert rates.record_use(LIMIT, 0, 5) > 0, "a rate in use is kept"
    assert len(rates._rates._rates) == 100
