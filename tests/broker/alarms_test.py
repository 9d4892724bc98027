"""A defect in a callback of an alarm fails that call if nothing was changed yet, else it stops the broker.

Zone: real. The defects are real ones: a clock, a list and a lookup that raise.
"""

from __future__ import annotations

import logging

import pytest

from ottla.broker.containment import LINES_PER_S
from ottla.purgatory.purgatory import AGAIN_MS, DelayedOperation
from ottla.replication.produce.verifier import VerificationRequest
from ottla.sim.machines.machine import Death
from ottla.sim.mutants.ablation import without_safeguard


def contained(node) -> float:
    return node.broker.metrics.value_of("ottla_contained_defects_total", request="callback")


def fail(*_arguments: object) -> None:
    raise ZeroDivisionError


def test_a_look_that_fails_costs_itself_and_comes_again(node, caplog) -> None:
    calls = []

    def look() -> None:
        calls.append(node.process.clock.now().mono_ns)
        if len(calls) < 3:
            raise MemoryError

    node.broker._purgatory.look_after(5, look)
    node.pass_ms(10 * AGAIN_MS)
    first, second, third = calls
    assert (second - first, third - second) == (AGAIN_MS * 1_000_000,) * 2
    assert contained(node) == 2
    assert f"failed with MemoryError at broker/alarms_test.py:{look.__code__.co_firstlineno + 3}" in caplog.text
    assert "retrying in 1000 ms" in caplog.text
    assert node.produce("t", b"a").error_code == 0


def test_others_that_are_due_at_the_same_time_are_called(node) -> None:
    calls = []
    node.broker._purgatory.look_after(5, fail)
    node.broker._purgatory.continue_after(5, lambda: calls.append("after"))
    node.broker._purgatory.look_after(5, lambda: calls.append("look"))
    node.pass_ms(20)
    assert calls == ["after", "look"]


def test_looks_that_fail_are_not_a_flood_of_lines(node, caplog) -> None:
    for _ in range(3 * LINES_PER_S):
        node.broker._purgatory.look_after(5, fail)
    with caplog.at_level(logging.ERROR):
        node.pass_ms(AGAIN_MS // 2)
    assert caplog.text.count("failed with ZeroDivisionError") == LINES_PER_S
    assert contained(node) == 3 * LINES_PER_S


def test_a_defect_in_the_rest_of_a_change_stops_the_broker(node) -> None:
    node.broker._purgatory.continue_after(5, fail)
    with pytest.raises(AssertionError, match="HalfChanged: fail was left in the middle of a change"):
        node.pass_ms(20)
    assert node.machine.deaths[Death.CRASH] == 1


def test_an_operation_that_cannot_be_ended_stops_the_broker(node) -> None:
    """Its request would never be answered."""

    class Broken(DelayedOperation):
        def try_complete(self) -> bool:
            return False

        def on_complete(self) -> None:
            raise ZeroDivisionError

    node.broker._purgatory.try_complete_else_watch(Broken(), ["key"], 5)
    with pytest.raises(AssertionError, match="HalfChanged: Broken was left in the middle of a change"):
        node.pass_ms(20)


def test_the_look_at_in_sync_replicas_comes_again_after_a_defect(node) -> None:
    replicas = node.broker._replicas
    followed, calls = replicas._followed, []

    class Once(dict):
        def __iter__(self):
            calls.append(1)
            if len(calls) == 1:
                raise ZeroDivisionError
            return super().__iter__()

    replicas._followed = Once(followed)
    node.pass_ms(3 * replicas._shrink_check_ms)
    assert len(calls) > 2, "it is periodic as before"
    assert contained(node) == 1


def test_a_defect_while_an_isr_is_proposed_stops_the_broker(node, monkeypatch) -> None:
    partition = node.broker.hosted.find_partition("t", 0)
    replicas = node.broker._replicas
    replicas._followed[partition] = None
    monkeypatch.setattr(type(partition.leader_role.in_sync), "propose_shrink", fail)
    with pytest.raises(AssertionError, match=r"HalfChanged: LeaderRole.shrink_if_lagging"):
        node.pass_ms(2 * replicas._shrink_check_ms)


@without_safeguard("containment.stops_when_half_changed")
def test_without_the_safeguard_a_half_changed_state_stays(node, monkeypatch) -> None:
    partition = node.broker.hosted.find_partition("t", 0)
    node.broker._replicas._followed[partition] = None
    monkeypatch.setattr(type(partition.leader_role.in_sync), "propose_shrink", fail)
    node.pass_ms(2 * node.broker._replicas._shrink_check_ms)
    assert not node.machine.deaths[Death.CRASH]


def test_a_verification_that_fails_stops_the_broker(node) -> None:
    """The questions that it took from its queue would never be answered."""
    node.broker.verifier.ask_local, node.broker.verifier.coordinator_of = None, fail
    question = VerificationRequest("id", 1, 0, {}, True, lambda _codes: None)
    node.process.post_turn(0, "ask", lambda: (node.broker.verifier.ask_at_once(question), node.broker.end_turn()))
    with pytest.raises(AssertionError, match=r"HalfChanged: Verifier._send_pending"):
        node.pass_ms(1)
