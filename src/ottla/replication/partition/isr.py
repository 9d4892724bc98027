"""A leader's followers and its ISR: the confirmed members, the possible ones, and the proposals to the controller.

Zone: deterministic. Keeps the values of `replica_state` for one partition while it is led here; the partition keeps the
log, watchers and the high watermark.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final, Protocol

from ottla.errors import ApiError, ErrorCode
from ottla.replication.partition.partition_context import PartitionContext
from ottla.replication.partition.replica_state import (
    NEVER,
    IsrOutcome,
    IsrProposal,
    PartitionState,
    Replica,
    after_fetch,
    is_caught_up,
    maximal_isr,
    may_join,
)
from ottla.types import NO_EPOCH, UNBOUNDED

_UNKNOWN: Final = Replica()
_PATIENCE_NS: Final = 500_000_000
"""Pause between a refused proposal of a joiner and the next one."""


_AWAITS_STATE: Final = frozenset(
    {
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.NEW_LEADER_ELECTED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INVALID_REQUEST,
    }
)
"""Errors after which the controller sends a newer state: until then nothing is proposed."""
_NOT_DONE: Final = frozenset({ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA})


class ProposalVerdict(Enum):
    """What follows from an answer of the controller."""

    NOTHING = 1
    """Nothing changes; a proposal that waits for a newer state still counts."""
    CHANGED = 2
    """The ISR, or the set of replicas that hold the high watermark back, has changed."""
    AGAIN = 3
    """The proposal may have been carried out: it still counts, and has to be sent again."""


class FetchProgress(Enum):
    """What a follower's fetch has changed."""

    NONE = 1
    START = 2
    """The follower's log start has changed."""
    END = 3
    """The follower's log end has moved, and the high watermark may move with it."""


def _do_nothing() -> None:
    pass


class FollowerContact(Protocol):
    """A partition in a follower's fetch session. An incremental fetch also counts for partitions it does not name."""

    @property
    def used_ns(self) -> int:
        """Time of the session's latest request."""
        ...

    @property
    def previous_ns(self) -> int:
        """Time of the session's request before that."""
        ...

    @property
    def is_requested(self) -> bool:
        """Whether the session still has the partition: a replica removes what it does not follow here any more."""
        ...

    def on_replaced(self) -> None:
        """Called when another session of the replica fetches the partition: if that fetch was an older one that came
        late, the session has to register its position again."""
        ...


class InSyncReplicas:
    """The followers of one partition that is led here."""

    __slots__ = (
        "_contacts",
        "_join_from_ns",
        "_last_retried",
        "_node_id",
        "_on_report_dropped",
        "_shared",
        "_waiting_joiners",
        "_was_refused",
        "cleaned",
        "counted",
        "epoch_start",
        "isr",
        "leader_epoch",
        "partition_epoch",
        "proposed",
        "replicas",
    )

    def __init__(
        self, node_id: int, shared: PartitionContext, on_report_dropped: Callable[[], object] = _do_nothing
    ) -> None:
        """on_report_dropped: called when a follower's report is not valid any more, because its log has shrunk."""
        self._node_id = node_id
        self._on_report_dropped = on_report_dropped
        self._shared = shared
        self.isr: tuple[int, ...] = ()
        """The ISR that the controller has confirmed."""
        self.replicas: dict[int, Replica] = {}
        """The assigned replicas without the leader."""
        self.cleaned: dict[int, int] = {}
        """How far followers have cleaned their logs, as they have reported in this leader epoch."""
        self.counted: tuple[int, ...] = ()
        """The followers whose end offsets hold the high watermark back: the maximal ISR without the leader."""
        self.proposed: IsrProposal | None = None
        """The proposal without an answer; there is at most one at a time."""
        self.epoch_start = 0
        self.leader_epoch = NO_EPOCH
        self.partition_epoch = NO_EPOCH
        self._contacts: dict[int, FollowerContact] = {}
        self._was_refused = False
        self._join_from_ns = NEVER
        self._waiting_joiners: dict[int, None] = {}
        """Replicas that could have joined while another proposal was open."""
        self._last_retried = -1
        """The replica that `propose_retry` proposed last; the next one gets its turn after it."""

    def apply_state(self, state: PartitionState, epoch_start: int | None, now_ns: int) -> None:
        """Apply a state of the controller. `epoch_start` is the log end in a new leader epoch, None in the same one."""
        # 1. In a new leader epoch followers are unknown: they may truncate records that they acknowledged before
        #    (KIP-320).
        if epoch_start is not None:
            self.replicas = {}
            self.cleaned = {}
            self._contacts = {}
            self.epoch_start = epoch_start
            self._waiting_joiners = {}
            self._was_refused = False
            self._join_from_ns = NEVER
        # 2. Members of the ISR get replica.lag.time.max.ms from now on to fetch.
        known = self.replicas
        joined = Replica(caught_up_ns=now_ns)
        self.replicas = {
            each: known.get(each) or (joined if each in state.isr else _UNKNOWN)
            for each in state.replicas
            if each != self._node_id
        }
        self.leader_epoch = state.leader_epoch
        # 3. A newer state replaces the ISR. The same state once more leaves a proposal that was made on top of it.
        if epoch_start is not None or state.partition_epoch != self.partition_epoch:
            self._confirm_isr(state.isr, state.partition_epoch)
        else:
            self._count_members()

    def _confirm_isr(self, isr: tuple[int, ...], partition_epoch: int) -> None:
        self.isr = isr
        self.partition_epoch = partition_epoch
        self.proposed = None
        self._count_members()

    def _count_members(self) -> None:
        members = self.isr
        if self.proposed is not None:
            # The controller may have carried out the proposal already: the high watermark must not pass a joiner, which
            # may be elected, nor a member whose removal it may still refuse (KIP-497).
            members = maximal_isr(self.isr, self.proposed.isr)
        self.counted = tuple(each for each in members if each != self._node_id and each in self.replicas)

    def lowest_end(self, own_end: int) -> int:
        """The smallest end offset in the maximal ISR; `own_end` is the leader's. -1 while one is not known."""
        replicas = self.replicas
        for each in self.counted:
            own_end = min(own_end, replicas[each].end_offset)
        return own_end

    # -- fetches -------------------------------------------------------------------------------------------------------

    def on_follower_fetch(
        self,
        replica_id: int,
        broker_epoch: int,
        offset: int,
        log_start: int,
        leader_end: int,
        now_ns: int,
        contact: FollowerContact,
    ) -> FetchProgress:
        """Note a follower's fetch from `offset` on. Returns what it changed.

        Raises ApiError NOT_LEADER_OR_FOLLOWER for a fetch that a broker sent before its latest restart.
        """
        before = self.replicas[replica_id]
        # KIP-903. Before version 15 of Fetch a replica sends no broker epoch, which is -1 here.
        if broker_epoch < before.broker_epoch and broker_epoch != NO_EPOCH:
            message = f"broker {replica_id} has broker epoch {before.broker_epoch}, the fetch has {broker_epoch}"
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, message)
        is_other = offset < before.end_offset or broker_epoch != before.broker_epoch
        if is_other and self.cleaned.pop(replica_id, None) is not None:
            self._on_report_dropped()  # its log may not be the one that it reported about
        # Before the contact is replaced below: the new one may be another session, which does not know the follower's
        # fetch before this one.
        contact_ns = self._contact_ns(replica_id, now_ns)
        self.replicas[replica_id] = after_fetch(before, offset, log_start, broker_epoch, leader_end, now_ns, contact_ns)
        known = self._contacts.get(replica_id)
        if known is not contact:
            self._contacts[replica_id] = contact
            if known is not None:
                known.on_replaced()
        if offset > before.end_offset and replica_id in self.counted:
            return FetchProgress.END
        return FetchProgress.NONE if log_start == before.log_start else FetchProgress.START

    def _contact_ns(self, replica_id: int, now_ns: int) -> int:
        """Time of the latest fetch in its session before the present one."""
        contact = self._contacts.get(replica_id)
        if contact is None:
            return NEVER
        # If the session is the one that fetches now, its latest request is this very one.
        return contact.used_ns if contact.used_ns < now_ns else contact.previous_ns

    def follows_since(self, ns: int) -> bool:
        """Whether all replicas that could lead instead have followed this leader since that time.

        A replica has, if its request before the latest came after that time. It sent the latest one after the response
        to that (in its session, or without one on its connection), and the partition is still in it; so it did not
        follow another leader, nor lead, before that time.
        """
        contacts = (self._contacts.get(each) for each in self.counted)
        return all(contact is not None and contact.is_requested and contact.previous_ns > ns for contact in contacts)

    # -- cleaning ------------------------------------------------------------------------------------------------------

    def note_cleaned(self, replica_id: int, broker_epoch: int, until: int) -> None:
        """Note that a follower has cleaned its log up to `until`. Ignores brokers that have restarted since, or have
        not fetched yet: their logs may be others."""
        known = self.replicas.get(replica_id, _UNKNOWN)
        if known.end_offset >= 0 and known.broker_epoch in (NO_EPOCH, broker_epoch):
            self.cleaned[replica_id] = until

    def cleaned_by_all(self, own: int) -> int:
        """The offset up to which all replicas have cleaned their logs; `own` is the leader's. 0 while one is not known.

        Without followers there is no bound. A follower cannot have cleaned more than it has.
        """
        if not self.replicas:
            return UNBOUNDED
        lowest = min(min(self.cleaned.get(node, 0), each.end_offset) for node, each in self.replicas.items())
        return max(0, min(own, lowest))

    # -- proposals -----------------------------------------------------------------------------------------------------

    def propose_joiner(self, replica_id: int, high_watermark: int, now_ns: int) -> IsrProposal | None:
        """The proposal to add a follower that has just fetched, if it may join; None: nothing to propose."""
        if not self._can_join(replica_id, high_watermark):
            return None
        # After a refusal proposals pause; while another one is open, the follower waits for `next_joiner`.
        if self._was_refused:
            self._was_refused = False
            self._join_from_ns = now_ns + _PATIENCE_NS
        if self.proposed is not None:
            self._waiting_joiners[replica_id] = None
        elif now_ns >= self._join_from_ns:
            return self._make_proposal((*self.isr, replica_id))
        return None

    def _can_join(self, replica_id: int, high_watermark: int) -> bool:
        return replica_id not in self.isr and may_join(self.replicas[replica_id], high_watermark, self.epoch_start)

    def next_joiner(self, high_watermark: int) -> IsrProposal | None:
        """The proposal of a replica that could have joined while another proposal was open; None: nothing to propose.

        An idle partition may get no further fetch that names it, so `propose_joiner` would not be called again.
        """
        while self._waiting_joiners and self.proposed is None and not self._was_refused:
            replica_id = next(iter(self._waiting_joiners))
            del self._waiting_joiners[replica_id]
            if replica_id in self.replicas and self._can_join(replica_id, high_watermark):
                return self._make_proposal((*self.isr, replica_id))
        return None

    def propose_retry(self, high_watermark: int, leader_end: int, now_ns: int) -> IsrProposal | None:
        """The proposal of a follower that keeps up but was refused earlier; None: nothing to propose."""
        if self.proposed is not None:
            return None
        fit = [each for each in self.replicas if self._can_join(each, high_watermark)]
        fit = sorted(each for each in fit if self.keeps_up(each, leader_end, now_ns))
        if not fit:
            return None
        # In turns, because the controller may refuse the first of them each time (its broker is shutting down, for
        # example), and there is one open proposal at most.
        self._last_retried = next((each for each in fit if each > self._last_retried), fit[0])
        return self._make_proposal((*self.isr, self._last_retried))

    def propose_shrink(self, leader_end: int, now_ns: int) -> IsrProposal | None:
        """The proposal to remove members that have lagged for too long; None: nothing to propose."""
        if self.proposed is not None:
            return None
        # A member that is not in `replicas` is this leader, or a broker that is not assigned any more, which the
        # controller removes.
        stay = [each for each in self.isr if each not in self.replicas or self.keeps_up(each, leader_end, now_ns)]
        return self._make_proposal(tuple(stay)) if len(stay) < len(self.isr) else None

    def keeps_up(self, replica_id: int, leader_end: int, now_ns: int) -> bool:
        """Whether a follower is caught up, or was so within replica.lag.time.max.ms."""
        contact = self._contacts.get(replica_id)
        contact_ns = NEVER if contact is None else contact.used_ns
        return is_caught_up(self.replicas[replica_id], leader_end, now_ns, contact_ns, self._shared.lag_ns)

    def _make_proposal(self, isr: tuple[int, ...]) -> IsrProposal:
        epochs = tuple(self._epoch_of(each) for each in isr)
        # From now on, and not only after the answer, the present and the proposed members both count: the controller
        # may write the proposal at any moment, and elect a leader from it if this broker fails (KIP-497).
        self.proposed = IsrProposal(isr, epochs, self.leader_epoch, self.partition_epoch)
        self._count_members()
        return self.proposed

    def _epoch_of(self, member: int) -> int:
        return self.replicas.get(member, _UNKNOWN).broker_epoch

    # -- answers -------------------------------------------------------------------------------------------------------

    def on_alter_partition_response(self, outcome: IsrOutcome) -> ProposalVerdict:
        """Apply the controller's answer to a proposal; an outdated one changes nothing."""
        # 1. The proposal was replaced by another one or by a state of the controller.
        if outcome.proposal is not self.proposed:
            return ProposalVerdict.NOTHING
        # 2. Refused. 3. Accepted, but a newer state has arrived first. 4. Accepted.
        if outcome.error is not ErrorCode.NONE:
            self._shared.failed_isr_updates += 1
            return self._on_refused(outcome.error)
        if outcome.leader_epoch != self.leader_epoch or outcome.partition_epoch < self.partition_epoch:
            return ProposalVerdict.NOTHING
        self._shared.isr_expands += len(outcome.isr) > len(self.isr)
        self._shared.isr_shrinks += len(outcome.isr) < len(self.isr)
        self._confirm_isr(outcome.isr, outcome.partition_epoch)
        return ProposalVerdict.CHANGED

    def _on_refused(self, error: ErrorCode) -> ProposalVerdict:
        # 1. This leader's state is outdated: the proposal may have been carried out by then, so it counts until the
        #    newer state comes. 2. Unknown outcome. 3. Surely not carried out: as if it had not been proposed.
        if error in _AWAITS_STATE:
            return ProposalVerdict.NOTHING
        if error not in _NOT_DONE:
            return ProposalVerdict.AGAIN
        self.proposed = None
        self._was_refused = True
        self._count_members()
        return ProposalVerdict.CHANGED
