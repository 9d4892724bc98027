"""The seat of the controller: brokers compete for one ephemeral node; whoever creates it holds the next epoch.

Zone: deterministic. Who sits and since when lives here; what the controller does stands in `controller`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from ottla.broker_client import BrokerClient
from ottla.cluster.controller.channel import BrokerChannels
from ottla.cluster.controller.context import ControllerContext
from ottla.cluster.controller.controller import Controller
from ottla.cluster.controller.metrics import Counters, declare
from ottla.cluster.controller.partition_state_store import ControllerTerm, PartitionStateStore
from ottla.cluster.controller.queue import WorkQueue
from ottla.cluster.controller.safeguards import ControllerSafeguards
from ottla.cluster.store.layout import (
    CONTROLLER,
    CONTROLLER_EPOCH,
    BrokenNode,
    decode_controller,
    decode_epoch,
    encode_controller,
)
from ottla.cluster.store.watches import WatchedStore
from ottla.cluster.store.workflow import Workflow, get, run, submit
from ottla.config.broker import BrokerConfig
from ottla.errors import ApiError, ErrorCode
from ottla.metrics import Registry
from ottla.purgatory.purgatory import Purgatory
from ottla.seams import Clock, Entropy, Failure, Kind, Network, Node, Op

logger = logging.getLogger(__name__)

NOBODY: Final = -1
RETRY_MS: Final = 100
"""Wait before the store is asked again when it did not answer."""
_LANE: Final = "controller seat"


class ControllerElector:
    """One broker's claim to be the controller."""

    def __init__(
        self,
        node_id: int,
        store: WatchedStore,
        clock: Clock,
        entropy: Entropy,
        peers: BrokerClient,
        network: Network,
        purgatory: Purgatory,
        config: Callable[[], BrokerConfig],
        later: Callable[[Callable[[], None]], None],
        safeguards: ControllerSafeguards | None = None,
    ) -> None:
        """`config` gives the broker's settings in force; `later` queues an effect of this turn."""
        self.on_change: Callable[[int], None] = _do_nothing
        """Told the controller's number, -1 for none, whenever it is another one."""
        self.controller: Controller | None = None
        """The office while this broker holds it, else None."""
        self.controller_id = NOBODY
        """Who is the controller, as far as the store said; -1: nobody."""
        self._node_id = node_id
        self._store = store
        self._clock = clock
        self._entropy = entropy
        self._peers = peers
        self._network = network
        self._purgatory = purgatory
        self._config = config
        self._later = later
        self._safeguards = safeguards or ControllerSafeguards()
        self._counters = Counters()
        self._core: PartitionStateStore | None = None
        self._claim = b""
        """Content of /controller when it is ours, or may be: what we wrote last in this session."""
        self._broker_epoch = NOBODY
        self._competing = False
        self._looking = False
        self._look_once_more = False

    @property
    def is_settled(self) -> bool:
        """Whether the office, if it is here, has begun, and this broker has done all that it was told by it."""
        return self.controller is None or self.controller.is_settled

    def declare_metrics(self, registry: Registry) -> None:
        """Register the controller's metrics; they are 0 on brokers that are not it."""
        declare(registry, self._counters, lambda: None if self._core is None else self._core.context)

    # -- what the broker says --------------------------------------------------------------------------------------

    def start(self, broker_epoch: int) -> None:
        """Compete for the seat with the session that registered this broker under `broker_epoch`.

        Call again at every OPEN of the session: with the same epoch all watches are set anew and everything watched is
        looked at; with another one the office of the session before is dropped first.
        """
        if broker_epoch != self._broker_epoch:
            self._leave()
        self._broker_epoch = broker_epoch
        self._competing = True
        if self.controller is not None:
            self.controller.look_again()
        self._check_election()

    def stop(self) -> None:
        """Leave the office and compete no more; the seat falls free when the session ends."""
        self._competing = False
        self._leave()

    def on_session_lost(self) -> None:
        """The session is EXPIRED: the office is lost with it. `start` follows when there is a new one."""
        self.stop()
        self._claim = b""
        self._note_controller(NOBODY)

    # -- the seat --------------------------------------------------------------------------------------------------

    def _check_election(self) -> None:
        """See who sits; take the seat when nobody does. One look at a time, another one after it when asked for."""
        if not self._competing:
            return
        if self._looking:
            self._look_once_more = True
            return
        self._looking = True
        epoch = self._broker_epoch
        run(self._store, self._compete(), lambda outcome: self._on_election_checked(epoch, outcome))

    def _on_election_checked(self, broker_epoch: int, outcome: ControllerTerm | int | Failure | ApiError) -> None:
        self._looking = False
        again, self._look_once_more = self._look_once_more, False
        if not self._competing or broker_epoch != self._broker_epoch:
            self._check_election()
            return
        if isinstance(outcome, ControllerTerm):
            self._take_office(outcome)
        elif isinstance(outcome, int):
            self._somebody(outcome)
        elif isinstance(outcome, ApiError):
            logger.error("this broker cannot be the controller: %s", outcome.message)
        elif outcome.kind is not Kind.EXPIRED:
            self._purgatory.after(RETRY_MS, self._check_election)
        if again:
            self._check_election()

    def _compete(self) -> Workflow[ControllerTerm | int]:
        """Who sits now: the number of another broker (or of this one's present office), or the office just won."""
        while True:
            node = yield from get(CONTROLLER, self._check_election)
            if node is not None and node.data == self._claim:
                if self.controller is not None:
                    return self._node_id
                yield from submit(
                    _LANE, [Op("delete", CONTROLLER, version=node.version)]
                )  # an office that was lost, or never known
                continue
            if node is not None:
                try:
                    return decode_controller(CONTROLLER, node.data)
                except BrokenNode as broken:
                    logger.warning("%s; deleting the node and electing a controller", broken)
            office = yield from self._try(node)
            if office is not None:
                return office

    def _try(self, broken: Node | None) -> Workflow[ControllerTerm | None]:
        """Take the next epoch and the seat in one multi; None: somebody was faster, or it is not known: look again.

        `broken`: content of /controller that names no broker, which is deleted in the same multi.
        """
        node = yield from get(CONTROLLER_EPOCH)
        if broken is not None:
            seat = yield from get(CONTROLLER)  # another broker may have replaced it before the epoch was read
            if seat is None or seat.czxid != broken.czxid or seat.version != broken.version:
                return None
        try:
            epoch = 0 if node is None else decode_epoch(CONTROLLER_EPOCH, node.data)
        except BrokenNode as wrong:
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, str(wrong)) from None
        version = 0 if node is None else node.version
        claim = self._claim = encode_controller(self._node_id, self._clock.now().wall_ms)
        first = [] if broken is None else [Op("delete", CONTROLLER, version=broken.version)]
        if node is None:
            first.append(Op("create", CONTROLLER_EPOCH, b"0"))
        content = str(epoch + 1).encode()
        ops = [*first, Op("put", CONTROLLER_EPOCH, content, version), Op("ephemeral", CONTROLLER, claim)]
        try:
            results = yield from submit(_LANE, ops)
        except Failure as failure:
            if failure.kind is Kind.CONFLICT:
                return None
            if failure.kind not in (Kind.UNKNOWN, Kind.TIMEOUT):
                raise
            return (yield from self._was_it_done(claim, content, version + 1))
        return ControllerTerm(self._node_id, epoch + 1, results[-2][1])

    def _was_it_done(self, claim: bytes, epoch: bytes, version: int) -> Workflow[ControllerTerm | None]:
        """The answer to our claim was lost: compare what is there with what we wrote."""
        seat = yield from get(CONTROLLER, self._check_election)
        node = yield from get(CONTROLLER_EPOCH)
        if seat is None or node is None or (seat.data, node.data, node.version) != (claim, epoch, version):
            return None
        return ControllerTerm(self._node_id, int(epoch), version)

    # -- the office ------------------------------------------------------------------------------------------------

    def _take_office(self, office: ControllerTerm) -> None:
        self._leave()
        context = ControllerContext()
        channels = BrokerChannels(
            office.node_id, office.epoch, context, self._peers, self._network, self._purgatory, self._config
        )
        core = self._core = PartitionStateStore(
            office,
            self._store,
            self._clock,
            self._entropy,
            self._purgatory,
            self._config,
            context,
            channels,
            self._counters,
            self._safeguards,
        )
        queue = WorkQueue(self._store, self._purgatory, self._later, lambda: self._resign(core))
        self.controller = Controller(core, queue, self._later)
        self._note_controller(office.node_id)
        self.controller.begin_term()
        self._check_election()  # be told when the seat falls free, or is taken away by hand

    def _somebody(self, controller_id: int) -> None:
        if controller_id != self._node_id or self.controller is None:
            self._leave()
            self._note_controller(controller_id)

    def _resign(self, core: PartitionStateStore) -> None:
        """Another broker holds a later epoch: this office is over."""
        if core is self._core:
            logger.warning("this broker is not the controller any more")
            self._leave()
            self._note_controller(NOBODY)
            self._check_election()

    def _leave(self) -> None:
        if self.controller is not None:
            self.controller.close()
        self.controller = None
        self._core = None

    def _note_controller(self, controller_id: int) -> None:
        if controller_id != self.controller_id:
            self.controller_id = controller_id
            self.on_change(controller_id)


def _do_nothing(_: int) -> None:
    """Nobody listens yet."""
