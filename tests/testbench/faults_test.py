"""The faults of chaos runs, without a cluster: every kind can be made, and says what it touches."""

from __future__ import annotations

import inspect
import random
from types import SimpleNamespace

import pytest
from testbench.chaos.arena import ENGINES, View
from testbench.chaos.faults import ANY_BROKER, FLUSHED, WEIGHTS, Faults, weights

VIEW = View(frozenset({1, 2, 3}), 2, {0: 3, 1: 3}, {0: frozenset({1, 2, 3}), 1: frozenset({1, 2})})


def arena(engine: str) -> SimpleNamespace:
    """Things that need only be there."""
    server = SimpleNamespace(
        name="server", pid=1, kill=list, start=list, stop=list, pause=list, resume=list, begin=list, store="h:1"
    )
    hosts = [SimpleNamespace(address=f"10.77.0.{number}", kill_connections=list) for number in range(7)]
    return SimpleNamespace(
        engine=engine,
        brokers=[server] * 3,
        stores=[server] * 3,
        supervisor=server,
        disks=[SimpleNamespace()] * 3,
        network=SimpleNamespace(hosts=hosts, heal=list),
        client=hosts[0],
        broker_hosts=hosts[1:2] if engine == "embedded" else hosts[1:4],
        store_hosts=hosts[4:],
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_every_kind_is_made_again_by_the_same_seed(engine: str) -> None:
    for kind in weights(engine, flush=True):
        one, other = (Faults(arena(engine), random.Random(7)).make(kind, VIEW) for _ in range(2))
        assert (one.kind, one.target, one.seconds) == (kind, other.target, other.seconds)
        assert 0 <= one.seconds < 12
    one = Faults(arena(engine), random.Random(7)).make("kill", None)
    assert "any" in one.target, "nobody knows who leads"


def test_every_method_is_of_use_to_some_engine() -> None:
    kinds = {name for name, _ in inspect.getmembers(Faults, inspect.isfunction) if not name.startswith("_")}
    assert kinds - {"make", "power_cut_of"} == {kind for each in [*WEIGHTS.values(), FLUSHED] for kind in each}


def test_leaders_and_controllers_are_hunted() -> None:
    makes = Faults(arena("zookeeper"), random.Random(1))
    targets = {makes.make("kill", VIEW).target for _ in range(100)}
    assert {"broker 3 (leader)", "broker 2 (controller)"} < targets
    assert makes.make("power_cut", VIEW).alone
    assert makes.make("kill_all", VIEW).touches == ANY_BROKER
