"""One simulated broker that is of either release, and its replacement.

Zone: deterministic. The drives stay when the release changes, as they do on a real machine.
"""

from __future__ import annotations

from typing import Final, cast

from ottla.broker.broker import Broker
from ottla.broker.listener import BrokerListener
from ottla.config.broker import BrokerConfig
from ottla.seams import World
from ottla.sim.cluster.node import ClusterNode
from ottla.sim.machines.machine import Death
from ottla.sim.world import MS, SECOND
from testbench.mixed.broker import EarlierBroker
from testbench.mixed.formats import Release
from testbench.mixed.watch import FormatWatch, WatchedNetwork, WatchedStore, watch_files, watch_frame

LEVEL_KEY: Final = "inter.broker.protocol.version"
_LOOK_NS: Final = 700 * MS
_PATIENCE_NS: Final = 6 * SECOND
"""A broker that has not stopped cleanly by then is killed."""


class MixedNode(ClusterNode):
    """A broker that can be replaced by one of the other release."""

    watch: FormatWatch
    release = Release.EARLIER
    """The release of the next process."""
    running: Release | None = None
    """The release of the present process, or of the last one."""

    def replace_release(self, release: Release, *, kill: bool) -> None:
        """End the process, and start the other release. Whatever ends and starts it meanwhile, the next one is that."""
        self.release = release
        if kill:
            self.kill_process(Death.KILL)
        self._end_other_release(release, self.timeline.now_ns + _PATIENCE_NS)

    def _end_other_release(self, release: Release, until_ns: int) -> None:
        if self.running is release or self.release is not release:
            return
        if self.timeline.now_ns < until_ns:
            self.stop_broker()
        else:
            self.kill_process(Death.KILL)
        self.timeline.schedule_after(_LOOK_NS, "roll", self._end_other_release, release, until_ns)

    def _build_broker(self, world: World, listener: BrokerListener) -> Broker:
        self.running = release = self.release
        self.timeline.trace_fact(f"node {self.number} is {release.value}")
        network = WatchedNetwork(world.network, self.watch, self.number, release)
        world = world._replace(network=network)
        settings = {**self.properties, LEVEL_KEY: self.watch.levels[release]}
        if release is Release.PRESENT:
            self.config, _ = BrokerConfig.from_properties(settings)
            return super()._build_broker(world, listener)
        watch_files(self.watch, self.number, self.drives)
        world = world._replace(store=WatchedStore(world.store, self.watch, self.number))
        broker = EarlierBroker(
            settings, world, listener, lambda host, frame: watch_frame(self.watch, self.number, host, frame)
        )
        # It has the methods and the attributes of a broker that the simulator uses.
        return cast("Broker", broker)
