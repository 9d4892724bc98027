"""The composition root: it only builds, and nothing in the broker gets a callback after its construction.

Zone: real.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.handnode import HandNetwork
from tests.ignoring import Listener

import ottla
from ottla.broker.assembly.forward import Forward
from ottla.broker.assembly.root import build_broker
from ottla.config.broker import BrokerConfig
from ottla.seams import World
from ottla.sim.disks.disk import SimDisk
from ottla.sim.disks.drive import Drive
from ottla.sim.disks.drive_faults import DriveFaults
from ottla.sim.entropy import Streams
from ottla.sim.machines.machine import Machine
from ottla.sim.machines.workers import SimWorkers
from ottla.sim.world import Timeline

SOURCE = Path(ottla.__file__).parent
ROOMS = ("broker", "cluster", "coordinator", "groups", "replication", "transactions")
PER_SESSION = "session.on_dirty"
"""Which request of a fetch session waits: a state that changes with each request, no wiring."""


SET_FROM_OUTSIDE = re.compile(r"^\s+((?!self\.on_)[\w.]+\.on_\w+)(?:: .+)? = ")
RECOGNIZED = re.compile(r"def _?on_\w+\((?:self, )?(\w+): object\b.*\n(?:.*\n){1,3}?\s+assert isinstance\(\1,")


def sources() -> Iterator[tuple[str, str]]:
    """The modules of the rooms of a broker."""
    for room in ROOMS:
        for path in sorted((SOURCE / room).rglob("*.py")):
            yield str(path.relative_to(SOURCE)), path.read_text()


def test_a_forward_that_is_not_bound_is_a_defect() -> None:
    heard: list[int] = []
    forward: Forward[[int]] = Forward("the listener")
    with pytest.raises(AssertionError, match="the listener is called before it is bound"):
        forward(1)
    forward.bind(heard.append)
    forward(2)
    with pytest.raises(AssertionError, match="the listener is bound twice"):
        forward.bind(heard.append)
    assert heard == [2]


def test_a_broker_that_is_built_has_not_used_its_world() -> None:
    drive, timeline = Drive("data"), Timeline()
    process = Machine(1, timeline, Streams(1), [drive]).boot_process()
    disks = [SimDisk(drive, DriveFaults(), process)]
    network = HandNetwork(process)
    config, _ = BrokerConfig.from_properties({"log.dirs": "data", "node.id": "1"})
    before = timeline.events
    broker = build_broker(
        config, World(process.clock, process.entropy, disks, network, SimWorkers(process)), Listener()
    )
    timeline.run_until(10_000_000_000)
    assert timeline.events == before, "no alarm was set"
    assert not list(drive.walk_files())
    assert not broker.listening
    assert not broker.ready


def test_callbacks_are_arguments_of_constructors() -> None:
    """`x.on_something = …` from outside of x: whether and when it is set cannot be seen where x is created."""
    lines = ((name, line) for name, text in sources() if ".on_" in text for line in text.splitlines() if ".on_" in line)
    found = [(name, match[1]) for name, line in lines if (match := SET_FROM_OUTSIDE.match(line))]
    assert not [each for each in found if not each[1].endswith(PER_SESSION)]


def test_no_callback_takes_an_object_that_it_has_to_recognize() -> None:
    assert not [name for name, text in sources() if "assert isinstance" in text and RECOGNIZED.search(text)]


def test_the_two_rules_above_find_what_they_refuse() -> None:
    assert SET_FROM_OUTSIDE.match("        self.shared.on_role = self._on_role")
    assert SET_FROM_OUTSIDE.match("        fence.on_new_controller: Callable[[], None] = self._start_over")
    assert not SET_FROM_OUTSIDE.match("        self.on_role = on_role")
    method = '    def _on_role(self, partition: object) -> None:\n        """Text."""\n'
    assert RECOGNIZED.search(f"{method}        assert isinstance(partition, Partition)\n")
