"""A broker of release 0.1 on the seams of this release, with the methods that a broker of this release has.

Zone: deterministic. The methods of seams and brokers have other names now. Their arguments and meanings are the same,
and values that cross a seam are those of this release (`package.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from ottla.broker.listener import BrokerListener
from ottla.seams import Gate, Slot, World
from ottla.types import Endpoint
from testbench.mixed.package import earlier_module

_Names = Mapping[str, str]
CLOCK: Final[_Names] = MappingProxyType({"alarm": "set_alarm"})
ENTROPY: Final[_Names] = MappingProxyType({"below": "random_below", "octets": "random_bytes"})
DISK: Final[_Names] = MappingProxyType({"replace": "replace_file", "warm": "warm_regions"})
WORKERS: Final[_Names] = MappingProxyType({"run": "run_job"})
NETWORK: Final[_Names] = MappingProxyType(
    {
        "reply": "send_reply",
        "release": "open_gate",
        "hold": "hold_frame",
        "mute": "pause_reading",
        "close": "close_connection",
        "call": "call_broker",
        "locate": "set_address",
    }
)
STORE: Final[_Names] = MappingProxyType({"submit": "submit_ops", "get": "get_node", "children": "get_children"})
BROKER: Final[_Names] = MappingProxyType(
    {"run_background": "background", "hand_over_leaderships": "leave", "stop_broker": "stop"}
)


class Renamed:
    """An object, some methods of which have other names here."""

    def __init__(self, target: object, names: _Names) -> None:
        """`names`: the name here → the name of the target."""
        self._target: Any = target
        for here, there in names.items():
            setattr(self, here, getattr(target, there))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)


class EarlierBroker(Renamed):
    """A broker of release 0.1 in the place of one of this release."""

    def __init__(
        self,
        properties: Mapping[str, str],
        world: World,
        listener: BrokerListener,
        on_request: Callable[[str, memoryview], None],
    ) -> None:
        """`on_request` is called with the host that sends a request, and its frame.

        Raises ReleaseError, PackageError.
        """
        config, _ = earlier_module("config.broker").BrokerConfig.from_properties(dict(properties))
        broker = earlier_module("broker.broker").Broker(config, _earlier_world(world))
        broker.on_listening = listener.on_listening
        broker.on_ready = listener.on_ready
        broker.on_unheard = listener.on_failure_not_reported
        super().__init__(broker, BROKER)
        self._on_request = on_request

    def on_frame(self, slot: Slot, frame: memoryview) -> Gate:
        """Handle a request."""
        self._on_request(slot.peer.host, frame)
        gate: Gate = self._target.on_frame(slot, frame)
        return gate

    def start_broker(self, endpoints: Sequence[Endpoint]) -> None:
        """Join the cluster once there is a session with the metadata store. Raises Failure."""
        endpoint = earlier_module("types").Endpoint
        self._target.start([endpoint(*each) for each in endpoints])


def _earlier_world(world: World) -> Any:
    return earlier_module("seams").World(
        Renamed(world.clock, CLOCK),
        Renamed(world.entropy, ENTROPY),
        [Renamed(disk, DISK) for disk in world.disks],
        Renamed(world.network, NETWORK),
        Renamed(world.workers, WORKERS),
        Renamed(world.store, STORE),
    )
