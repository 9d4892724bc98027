"""Each property of a producer's guarantees detects its planted anomaly.

Zone: real.
"""

from __future__ import annotations

import pytest

from ottla.sim.clients.checkers import CHECKERS, find_violations
from ottla.sim.clients.history import ClientHistory, Owned, Promise, Sent
from ottla.sim.cluster import checkers as cluster
from ottla.sim.history import Outcome, Write
from ottla.types import TopicPartition

LOG = "t-0@id"
SECOND = 10**9
ALONE = Promise(idempotent=True, ordered=True, alone=True, patience_ns=5 * SECOND)


def sent(number, offset, promise=ALONE, *, error=""):
    """A record that was decided after a second; offset -1: its offset is unknown."""
    write = Write("p", LOG, [b"v%d" % number], -1, 7, 0, number - 1, number * SECOND, (number + 1) * SECOND)
    write.outcome = Outcome.FAIL if error else Outcome.OK
    write.offset, write.life, write.sends = offset, 1, 1
    return Sent(number, write, promise, outcomes=1, error=error, turn=number)


def history_of(*records, there):
    history = ClientHistory(sent=list(records), writes=[record.write for record in records])
    history.final[LOG] = {offset: b"v%d" % number for offset, number in enumerate(there)}
    return history


def healthy():
    """Three records in the log, the second with an unknown offset; one that was refused."""
    refused = sent(4, -1, error="RefusedError: MESSAGE_TOO_LARGE")
    refused.calm = True
    return history_of(sent(1, 0), sent(2, -1), sent(3, 2), refused, there=[1, 2, 3])


def flagged(history):
    return {name for name, _ in find_violations(history)}


def test_a_healthy_history_is_clean():
    history = healthy()
    tp = TopicPartition("t", 0)
    history.owned += [Owned("g", 3, "a", (tp,), 1), Owned("g", 4, "b", (tp,), 2)]
    assert not find_violations(history)


def no_outcome(history):
    history.sent[1].outcomes = 0


def two_outcomes(history):
    history.sent[1].outcomes = 2


def late_outcome(history):
    history.sent[0].write.completed_ns += 5 * SECOND


def acknowledged_before_the_one_before(history):
    history.sent[2].turn = 1
    history.sent[0].turn = 3


def failed_for_nothing(history):
    history.unfounded.append("record 1 of p: UsageError: x")


def acknowledged_and_nowhere(history):
    history.final[LOG][1] = b"v9"


def behind_a_later_one(history):
    history.final[LOG] = {0: b"v3", 1: b"v2", 2: b"v1"}


def told_a_smaller_offset(history):
    history.sent[0].write.offset = 2
    history.sent[2].write.offset = 0


def failed_in_a_healthy_cluster(history):
    history.sent[3].error = "DeadlineError: x"


def asks_again_and_again(history):
    history.restless.append("p at 3.000 s")


def two_owners(history):
    tp = TopicPartition("t", 0)
    history.owned += [Owned("g", 3, "a", (tp,), 1), Owned("g", 3, "b", (tp,), 2)]


def gave_up_its_membership(history):
    history.expelled.append("a: group g: INCONSISTENT_GROUP_PROTOCOL")


PLANTED = {
    "outcomes_come_once": (no_outcome, two_outcomes),
    "outcomes_come_in_time": (late_outcome,),
    "outcomes_come_in_order": (acknowledged_before_the_one_before,),
    "failures_have_a_reason": (failed_for_nothing,),
    "acknowledged_is_there": (acknowledged_and_nowhere,),
    "sent_order_is_kept": (behind_a_later_one,),
    "told_order_is_kept": (told_a_smaller_offset,),
    "calm_is_delivered": (failed_in_a_healthy_cluster,),
    "clients_sleep": (asks_again_and_again,),
    "one_owner_per_generation": (two_owners,),
    "members_stay": (gave_up_its_membership,),
}


@pytest.mark.parametrize(("name", "plant"), [(name, plant) for name, plants in PLANTED.items() for plant in plants])
def test_a_planted_anomaly_is_flagged(name, plant):
    history = healthy()
    plant(history)
    assert name in flagged(history)


def test_every_property_has_a_planted_anomaly():
    assert {checker.__name__ for checker in CHECKERS} - {each.__name__ for each in cluster.CHECKERS} == set(PLANTED)


def test_what_was_promised_less_is_judged_less():
    several = Promise(idempotent=False, ordered=False, alone=False, patience_ns=5 * SECOND)
    history = history_of(sent(1, 1, several), sent(2, 0, several), there=[2, 1])
    history.sent[1].turn = 0
    for record in history.sent:
        record.write.producer_id = -1
    assert not find_violations(history)


def test_an_acknowledged_record_may_have_been_deleted():
    history = healthy()
    history.deleted[LOG] = 2
    del history.final[LOG][0], history.final[LOG][1]
    assert not find_violations(history)


@pytest.mark.parametrize(("log", "is_judged"), [("__consumer_offsets-0@x", False), ("t-0@id", True)])
def test_generations_are_not_judged_when_the_topic_of_groups_lost_data(log, is_judged):
    history = healthy()
    two_owners(history)
    history.excused[log] = 8
    assert ("one_owner_per_generation" in flagged(history)) is is_judged
