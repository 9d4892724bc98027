"""Election of the controller: the broker that creates the ephemeral node /controller takes the next epoch.

Zone: deterministic. This module decides which broker is the controller; `controller` is what it does then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from ottla.broker_client import BrokerClient
from ottla.cluster.controller.channel import BrokerChannels
from ottla.cluster.controller.context import ControllerContext
from ottla.cluster.controller.controller import Controller
from ottla.cluster.controller.metrics import Counters, declare_metrics
from ottla.cluster.controller.partition_state_store import ControllerTerm, PartitionStateStore
from ottla.cluster.controller.queue import WorkQueue
from ottla.cluster.image import Delta
from ottla.cluster.store.layout import (
    CONTROLLER,
    CONTROLLER_EPOCH,
    BrokenNode,
    decode_controller,
    decode_epoch,
    encode_controller,
)
from ottla.cluster.store.watches import WatchedStore
from ottla.cluster.store.workflow import Workflow, read_node, run_workflow, submit_multi
from ottla.config.broker import BrokerConfig
from ottla.errors import ApiError, ErrorCode
from ottla.metrics import Registry
from ottla.purgatory.purgatory import Purgatory
from ottla.seams import Clock, Entropy, Failure, Kind, Network, Node, Op

logger = logging.getLogger(__name__)

NO_ID: Final = -1
RETRY_MS: Final = 100
"""Delay before a request is repeated that the store did not answer."""
_LANE: Final = "controller seat"


class ControllerElector:
    """One broker's part in the election of the controller."""

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
    ) -> None:
        """`config` gives the broker's settings in force; `later` queues an effect of this turn."""
        self.controller: Controller | None = None
        """The current term while this broker is the controller, else None."""
        self.controller_id = NO_ID
        """The number of the controller as last read from the store; -1: none."""
        self._node_id = node_id
        self._store = store
        self._clock = clock
        self._entropy = entropy
        self._peers = peers
        self._network = network
        self._purgatory = purgatory
        self._config = config
        self._later = later
        self._counters = Counters()
        self._core: PartitionStateStore | None = None
        self._claim = b""
        """What this broker last wrote to /controller in this session. The node with this content is its own."""
        self._broker_epoch = NO_ID
        self._competing = False
        self._is_checking = False
        self._check_again = False

    @property
    def is_settled(self) -> bool:
        """True unless this broker is the controller and its start-up work is unfinished."""
        return self.controller is None or self.controller.is_settled

    def on_settings_changed(self, delta: Delta) -> None:
        """Inform the controller, if it is on this broker: other settings may allow an election (unclean elections)."""
        if self.controller is None:
            return
        for name in delta.configured:
            self.controller.on_settings_changed(name)
        if delta.broker_config:
            self.controller.on_settings_changed(None)

    def declare_metrics(self, registry: Registry) -> None:
        """Register the controller's metrics; they are 0 on all other brokers."""
        declare_metrics(registry, self._counters, lambda: None if self._core is None else self._core.context)

    # -- session and shutdown --------------------------------------------------------------------------------------

    def start_competing(self, broker_epoch: int) -> None:
        """Compete in the session that registered this broker under `broker_epoch`.

        Call this at every OPEN of the session. With the same epoch all watches are set again and everything watched is
        read; with another epoch the term of the session before ends first.
        """
        if broker_epoch != self._broker_epoch:
            self._end_term()
        self._broker_epoch = broker_epoch
        self._competing = True
        if self.controller is not None:
            self.controller.refresh_all()
        self._check_election()

    def stop_competing(self) -> None:
        """End the term and stop competing. The store removes /controller when the session ends."""
        self._competing = False
        self._end_term()

    def on_session_lost(self) -> None:
        """End the term with its expired session. `start_competing` is called when there is a new session."""
        self.stop_competing()
        self._claim = b""
        self.controller_id = NO_ID

    # -- election --------------------------------------------------------------------------------------------------

    def _check_election(self) -> None:
        """Read /controller, and create it if it is missing. A call during a check repeats the check at its end."""
        if not self._competing:
            return
        if self._is_checking:
            self._check_again = True
            return
        self._is_checking = True
        epoch = self._broker_epoch
        run_workflow(self._store, self._find_controller(), lambda outcome: self._on_election_checked(epoch, outcome))

    def _on_election_checked(self, broker_epoch: int, outcome: ControllerTerm | int | Failure | ApiError) -> None:
        self._is_checking = False
        again, self._check_again = self._check_again, False
        # The session changed during the check, or the broker is leaving: the result is void.
        if not self._competing or broker_epoch != self._broker_epoch:
            self._check_election()
            return
        if isinstance(outcome, ControllerTerm):
            self._begin_term(outcome)
        elif isinstance(outcome, int):
            self._on_other_controller(outcome)
        elif isinstance(outcome, ApiError):
            logger.error("controller: this broker cannot become the controller: %s", outcome.message)
        # An expired session answers no request again; `start_competing` repeats the check in the next session.
        elif outcome.kind is not Kind.EXPIRED:
            self._purgatory.continue_after(RETRY_MS, self._check_election)
        if again:
            self._check_election()

    def _find_controller(self) -> Workflow[ControllerTerm | int]:
        """The number of the present controller, or the term that this broker has just won.

        1. The node has this broker's content. Its term is known: nothing to do. It is not: the term was lost, or the
           response to its creation was. The node is deleted, and the election is repeated.
        2. The node names another broker, which is the controller.
        3. The node is missing, or names no broker: try to create it.
        """
        while True:
            node = yield from read_node(CONTROLLER, self._check_election)
            if node is not None and node.data == self._claim:
                if self.controller is not None:
                    return self._node_id
                yield from submit_multi(_LANE, [Op("delete", CONTROLLER, version=node.version)])
                continue
            if node is not None:
                try:
                    return decode_controller(CONTROLLER, node.data)
                except BrokenNode as broken:
                    logger.warning("controller: %s; deleting the node and electing a controller", broken)
            office = yield from self._try_election(node)
            if office is not None:
                return office

    def _try_election(self, broken: Node | None) -> Workflow[ControllerTerm | None]:
        """Take the next epoch and create /controller in one multi. None: another broker won, or the outcome is open.

        `broken`: content of /controller that names no broker, which is deleted in the same multi.
        """
        node = yield from read_node(CONTROLLER_EPOCH)
        if broken is not None:
            seat = yield from read_node(CONTROLLER)  # another broker may have replaced it before the epoch was read
            if seat is None or seat.czxid != broken.czxid or seat.version != broken.version:
                return None
        try:
            epoch = 0 if node is None else decode_epoch(CONTROLLER_EPOCH, node.data)
        except BrokenNode as wrong:
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, str(wrong)) from None
        version = 0 if node is None else node.version
        # Set before the request: if its response is lost, a later check has to recognize the node.
        claim = self._claim = encode_controller(self._node_id, self._clock.now().wall_ms)
        first = [] if broken is None else [Op("delete", CONTROLLER, version=broken.version)]
        if node is None:
            # Created with version 0 and replaced in the same multi, so that the first election has the same put as all
            # later ones.
            first.append(Op("create", CONTROLLER_EPOCH, b"0"))
        content = str(epoch + 1).encode()
        # Both in one multi. With two writes, a crash in between would raise the epoch without a controller, or leave a
        # controller whose epoch does not fence the one before it.
        ops = [*first, Op("put", CONTROLLER_EPOCH, content, version), Op("ephemeral", CONTROLLER, claim)]
        try:
            results = yield from submit_multi(_LANE, ops)
        except Failure as failure:
            # 1. Another broker won: read again. 2. The outcome is open: compare. 3. Any other failure ends this check.
            if failure.kind is Kind.CONFLICT:
                return None
            if failure.kind not in (Kind.UNKNOWN, Kind.TIMEOUT):
                raise
            return (yield from self._resolve_unknown(claim, content, version + 1))
        return ControllerTerm(self._node_id, epoch + 1, results[-2][1])

    def _resolve_unknown(self, claim: bytes, epoch: bytes, version: int) -> Workflow[ControllerTerm | None]:
        """Compare the nodes with what this broker wrote, because the response to its multi was lost."""
        seat = yield from read_node(CONTROLLER, self._check_election)
        node = yield from read_node(CONTROLLER_EPOCH)
        if seat is None or node is None or (seat.data, node.data, node.version) != (claim, epoch, version):
            return None
        return ControllerTerm(self._node_id, int(epoch), version)

    # -- the term --------------------------------------------------------------------------------------------------

    def _begin_term(self, office: ControllerTerm) -> None:
        self._end_term()
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
        )
        queue = WorkQueue(self._store, self._purgatory, self._later, lambda: self._resign_term(core))
        self.controller = Controller(core, queue, self._later)
        self.controller_id = office.node_id
        self.controller.begin_term()
        self._check_election()  # watches /controller, which may expire or be deleted by an operator

    def _on_other_controller(self, controller_id: int) -> None:
        if controller_id != self._node_id or self.controller is None:
            self._end_term()
            self.controller_id = controller_id

    def _resign_term(self, core: PartitionStateStore) -> None:
        """End the term because another broker holds a later epoch, and compete again."""
        if core is self._core:
            logger.warning(
                "controller: another broker has taken a later epoch; this broker is not the controller any more"
            )
            self._end_term()
            self.controller_id = NO_ID
            self._check_election()

    def _end_term(self) -> None:
        if self.controller is not None:
            self.controller.end_term()
        self.controller = None
        self._core = None
