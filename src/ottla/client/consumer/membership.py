"""One member of a consumer group as a state machine: joining, syncing, heartbeats, leaving.

Zone: pure. Its inputs are times (seconds of a monotonic clock) and answers (messages), its outputs are actions.
Callbacks of the application are also actions: the machine waits for `on_prepared`, which reports their end. The rules
are those of Java's ConsumerCoordinator and AbstractCoordinator (KIP-62, KIP-345, KIP-394, KIP-429).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum, auto
from typing import Final

from ottla.client.consumer.actions import (
    NO_MEMBER,
    Action,
    Assign,
    Assigned,
    Failed,
    FindCoordinator,
    GroupSettings,
    Heartbeat,
    Join,
    Leave,
    Member,
    Prepare,
    Sync,
)
from ottla.client.consumer.cooperative_revocation import CooperativeRevocation
from ottla.client.consumer.member_requests import MemberRequests
from ottla.client.consumer.protocol import (
    NO_GENERATION,
    Subscription,
    decode_assignment,
    encode_assignment,
    readable_members,
)
from ottla.client.errors import ClientError, MalformedReplyError, RefusedError, error_code
from ottla.errors import ErrorCode
from ottla.types import TopicPartition
from ottla.wire.messages import (
    HeartbeatResponse,
    JoinGroupResponse,
    SyncGroupResponse,
)


class Phase(Enum):
    """The state: IDLE → PREPARING → READY → JOINING → (the leader: ASSIGNING →) SYNCING → STABLE → PREPARING …"""

    IDLE = auto()
    """Not in the group, and no reason to join."""
    PREPARING = auto()
    """It must join; the application revokes partitions first."""
    READY = auto()
    """It sends JoinGroup as soon as the coordinator is known and the backoff is over."""
    JOINING = auto()
    ASSIGNING = auto()
    """It leads the group and computes the assignment."""
    SYNCING = auto()
    STABLE = auto()
    FAILED = auto()
    """The coordinator refused it with an error that is not retriable; it has no group and no partitions."""


_FOR_GOOD: Final = {ErrorCode.FENCED_INSTANCE_ID}
"""Errors after which it does not join again by itself: that would fence the member that took its place."""
_GONE: Final = {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}
_FORGOTTEN: Final = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION}


class Membership:
    """The state machine. Methods return nothing; `take_actions` returns the new actions."""

    def __init__(self, settings: GroupSettings) -> None:
        self.settings = settings
        self.phase = Phase.IDLE
        self.member = NO_MEMBER
        """Generation and member id for requests, as far as they are valid."""
        self.owned: tuple[TopicPartition, ...] = ()
        """The partitions that the application has."""
        self.failure: ClientError | None = None
        """Why the group refused it; `on_poll` raises it until there is an assignment or the application subscribes."""
        self._topics: tuple[str, ...] = ()
        self._actions: list[Action] = []
        self._coordinator = False
        self._finding_coordinator = False
        self._not_before = 0.0
        self._last_poll = 0.0
        self._last_answer = 0.0
        self._next_heartbeat = 0.0
        self._heartbeat_sent = False
        self._requests = MemberRequests(settings)
        self._rejoin_reason = ""
        self._next_rejoin_reason = ""
        """Why it must join once more after it gets its assignment; empty: no reason."""
        self._poll_timed_out = False
        self._members: Mapping[str, Subscription] = {}
        """During ASSIGNING: the members of the group."""
        self._back = ""
        """Its member id, if it restarted as the leader of a group that needs no assignment (KIP-814)."""
        self._revocation = CooperativeRevocation()

    # -- the application -----------------------------------------------------------------------------------------------

    def subscribe_topics(self, now: float, topics: Iterable[str], reason: str = "the subscription changed") -> None:
        """Change the subscribed topics; may be empty (a pattern without a match yet)."""
        topics = tuple(sorted(topics))
        changed = topics != self._topics
        self._topics = topics
        self.forget_failure()
        if self.phase is Phase.IDLE:
            self._last_poll = now
            self._prepare_rejoin(reason)
        elif changed:
            self.request_rejoin(reason)

    def forget_failure(self) -> None:
        """Forget a refusal, because the application subscribes or unsubscribes."""
        self.failure = None
        if self.phase is Phase.FAILED:
            self.phase = Phase.IDLE

    def on_match(self, now: float, topics: Iterable[str]) -> None:
        """Change the topics that match the subscription's pattern. A refused member stays refused."""
        if self.phase is Phase.FAILED:
            self._topics = tuple(sorted(topics))
        else:
            self.subscribe_topics(now, topics, "other topics match the pattern")

    def request_rejoin(self, reason: str) -> None:
        """Ask for a rebalance, because something that the assignment depends on has changed (partitions of a topic)."""
        if self.phase is Phase.STABLE:
            self._prepare_rejoin(reason)
        # The coordinator answers only one JoinGroup of a member at a time: remember the reason, and join again after
        # it.
        elif self.phase in (Phase.JOINING, Phase.ASSIGNING, Phase.SYNCING):
            self._next_rejoin_reason = reason

    def on_poll(self, now: float) -> None:
        """The application called `on_poll`. A refused member tries to join again."""
        self._last_poll = now
        self._poll_timed_out = False
        if self.phase is Phase.FAILED and now >= self._not_before and not _is_for_good(self.failure):
            self.phase = Phase.IDLE
            self._prepare_rejoin("the group refused it before")
        self.do_due_work(now)

    @property
    def committing_member(self) -> Member:
        """The member that commits; NO_MEMBER after a refusal, until it has an assignment."""
        return self.member if self.failure is None or self.phase is Phase.STABLE else NO_MEMBER

    @property
    def is_rejoining(self) -> bool:
        """Whether it has revoked its partitions, and has no new assignment yet."""
        return self.phase in (Phase.READY, Phase.JOINING, Phase.ASSIGNING, Phase.SYNCING)

    def on_prepared(self, now: float, owned: Iterable[TopicPartition]) -> None:
        """The application has revoked partitions, and still has `owned`."""
        self.owned = tuple(owned)
        if self.phase is Phase.PREPARING:
            self.phase = Phase.READY
            self.do_due_work(now)

    def end_subscription(self, reason: str) -> None:
        """Leave the group, without a subscription."""
        self._leave_group(reason)
        self.phase = Phase.IDLE
        self.failure = None
        self._topics = self.owned = ()
        self._requests.forget_assignment()

    def _leave_group(self, reason: str) -> None:
        if self.member.member_id:
            self._leave_as(self.member.member_id, reason)
        self.member = NO_MEMBER

    def _leave_as(self, member_id: str, reason: str) -> None:
        request = self._requests.leave_group(member_id, reason)
        if request is not None and self._coordinator:
            self._actions.append(Leave(request))

    # -- time ----------------------------------------------------------------------------------------------------------

    def do_due_work(self, now: float) -> None:
        """Do everything that is due at `now`."""
        if self.phase in (Phase.IDLE, Phase.FAILED):
            return
        self._check_timeouts(now)
        # 1. Find the coordinator. 2. Join. 3. Unassigned partitions need a rebalance. 4. Heartbeats, one at a time.
        if not self._coordinator:
            if not self._finding_coordinator and now >= self._not_before and not self._poll_timed_out:
                self._finding_coordinator = True
                self._actions.append(FindCoordinator())
        elif self.phase is Phase.READY and now >= self._not_before:
            self._send_join(now)
        elif self.phase is Phase.STABLE and now >= self._revocation.due:
            self._prepare_rejoin("partitions that members had to give up are still unassigned")
        elif self._sends_heartbeats and now >= self._next_heartbeat and not self._heartbeat_sent:
            self._send_heartbeat(now)

    def wakes_at(self) -> float:
        """When to call `do_due_work` next."""
        if self.phase in (Phase.IDLE, Phase.FAILED) or self._poll_timed_out:
            return float("inf")
        due = [self._last_poll + self.settings.max_poll_interval]
        # In these states only the backoff counts: READY sends no heartbeats, and without a coordinator there is no
        # session to keep.
        if self.phase is Phase.READY if self._coordinator else not self._finding_coordinator:
            due.append(self._not_before)
        elif self._coordinator and self._sends_heartbeats:
            due.append(self._last_answer + self.settings.session_timeout)
            due.append(self._revocation.due if self.phase is Phase.STABLE else float("inf"))
            if not self._heartbeat_sent:
                due.append(self._next_heartbeat)
        return min(due)

    @property
    def _sends_heartbeats(self) -> bool:
        """Whether to send heartbeats: it has a generation, and no JoinGroup is due or unanswered."""
        # The coordinator does not expire a member whose JoinGroup waits for the other members.
        return self.member.generation != NO_GENERATION and self.phase not in (Phase.JOINING, Phase.READY)

    def _check_timeouts(self, now: float) -> None:
        if now - self._last_poll > self.settings.max_poll_interval and not self._poll_timed_out:
            self._on_poll_timeout()
        elif self._coordinator and self._sends_heartbeats and now - self._last_answer > self.settings.session_timeout:
            self._lose_coordinator(now)

    def _on_poll_timeout(self) -> None:
        """The application did not poll in time: leave, so that others get its partitions. The next poll joins again."""
        # Set before leaving: no look-up of the coordinator begins until the application polls again.
        self._poll_timed_out = True
        if self.member.member_id:
            self._leave_group("the application did not call poll within max.poll.interval.ms")
            self.phase = Phase.IDLE
            self._prepare_rejoin("poll was called too late")

    # -- the coordinator -----------------------------------------------------------------------------------------------

    def on_coordinator(self, now: float, error: ErrorCode = ErrorCode.NONE) -> None:
        """The look-up of the coordinator ended, with an error or without."""
        self._finding_coordinator = False
        if error is ErrorCode.NONE:
            self._coordinator = True
            # The session counts from here: the time of the search is no silence of this coordinator.
            self._last_answer = self._next_heartbeat = now
            self._heartbeat_sent = False
            if self.phase is Phase.SYNCING:
                self._prepare_rejoin("the coordinator moved while the group was syncing")
            self.do_due_work(now)
        elif error.retriable:
            self._not_before = now + self.settings.retry_backoff
        else:
            self._fail_with_code(now, error)

    def on_disconnect(self, now: float) -> None:
        """The connection to the coordinator is lost; requests on it will not be answered."""
        self._lose_coordinator(now)
        if self.phase is Phase.JOINING:
            self.phase = Phase.READY
        elif self.phase in (Phase.SYNCING, Phase.ASSIGNING):
            # The assignment was in the answer that is lost: only another rebalance brings it.
            self._prepare_rejoin("the connection broke while the group was syncing")

    def on_join(self, now: float, answer: JoinGroupResponse) -> None:
        """JoinGroup was answered."""
        # 1. It unsubscribed, for instance: leave. 2. Joined. 3. KIP-394: join again with the answer's id. 4. An error.
        code = error_code(answer.error_code)
        if self.phase is not Phase.JOINING:
            if code is ErrorCode.NONE:
                self._leave_as(answer.member_id, "the subscription changed while it was joining")
            return
        if code is ErrorCode.NONE:
            self._on_joined(now, answer)
            return
        self.phase = Phase.READY
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            # Without the id of the first answer, each JoinGroup that is sent again would add a member to the group,
            # which the others then wait for until its session ends.
            self.member = Member(NO_GENERATION, answer.member_id)
            self.do_due_work(now)
        else:
            self._join_failed(now, code)

    def on_assigned(self, now: float, assignment: Mapping[str, Iterable[TopicPartition]]) -> None:
        """The assignor returned `assignment`."""
        if self.phase is Phase.ASSIGNING:
            members, self._members = self._members, {}
            if self.settings.is_cooperative:
                self._revocation.on_assignment(members, assignment, self._back)
            # KIP-814: a static leader that restarts sends no rows, and the group keeps its assignment. The assignor ran
            # so that this member knows which topics to watch.
            rows = {member: encode_assignment(partitions) for member, partitions in assignment.items()}
            self._send_sync(now, {} if self._back else rows)

    def on_sync(self, now: float, answer: SyncGroupResponse) -> None:
        """SyncGroup was answered."""
        if self.phase is not Phase.SYNCING:
            return
        code = error_code(answer.error_code)
        if code is ErrorCode.NONE:
            self._last_answer = now
            self._take_assignment(now, answer.assignment)
            return
        self._join_failed(now, code)
        if self.phase is Phase.SYNCING:
            self._prepare_rejoin(f"SyncGroup was answered with {code.name}")

    def on_heartbeat(self, now: float, answer: HeartbeatResponse) -> None:
        """Heartbeat was answered."""
        if not self._heartbeat_sent:
            return
        self._heartbeat_sent = False
        code = error_code(answer.error_code)
        # 1. Known; in a rebalance it must join. 2. Find the coordinator. 3. Join as a new member. 4. Refused.
        if code in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
            self._last_answer = now
            if code is not ErrorCode.NONE and self.phase is Phase.STABLE:
                self._prepare_rejoin("the group is rebalancing")
        elif code in _GONE:
            self._lose_coordinator(now)
        elif code in _FORGOTTEN:
            self.member = NO_MEMBER
            self._prepare_rejoin(f"the coordinator answered {code.name}")
        elif not code.retriable:
            self._fail_with_code(now, code)

    def on_commit_refused(self, now: float, member: Member, code: ErrorCode) -> None:
        """The coordinator refused a commit of `member`: it does not know it, or another member has its instance id."""
        if member != self.member:
            return  # the commit was sent before it joined again
        if code in _FOR_GOOD:
            self._fail_with_code(now, code)
        elif self.phase is Phase.STABLE:
            self.member = NO_MEMBER
            self._prepare_rejoin("a commit was refused")

    def take_actions(self) -> list[Action]:
        """The actions since the last call, in order."""
        actions, self._actions = self._actions, []
        return actions

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _fail_with_code(self, now: float, code: ErrorCode) -> None:
        instance = "" if self.settings.instance_id is None else f", instance {self.settings.instance_id}"
        self._fail_membership(now, RefusedError(code, f"group {self.settings.group_id}{instance}"))

    def _fail_membership(self, now: float, error: ClientError) -> None:
        """The member has left, its partitions are lost. The next `on_poll` joins again, except after `_FOR_GOOD`."""
        self.phase = Phase.FAILED
        self.failure = error
        self._not_before = now + self.settings.retry_backoff
        self.member = NO_MEMBER
        # First the lost partitions, so that the application stops processing them; then the reason.
        if self.owned:
            self._actions.append(Prepare(self.owned, lost=True))
        self._actions.append(Failed(error))

    def _lose_coordinator(self, now: float) -> None:
        self._coordinator = False
        self._heartbeat_sent = False
        self._not_before = now + self.settings.retry_backoff

    def _prepare_rejoin(self, reason: str) -> None:
        """In any state: revoke the partitions that must be revoked, then join."""
        self._rejoin_reason = reason
        self._next_rejoin_reason = ""
        # Lost without a generation; else revoked: all (eager), or those of unsubscribed topics (cooperative).
        lost = self.member.generation == NO_GENERATION and bool(self.owned)
        # The application is revoking already. Only a loss changes its work: lost partitions must not be committed.
        if self.phase is Phase.PREPARING and not lost:
            return
        self.phase = Phase.PREPARING
        if lost or not self.settings.is_cooperative:
            self._actions.append(Prepare(self.owned, lost))
        else:
            wanted = set(self._topics)
            self._actions.append(Prepare(tuple(tp for tp in self.owned if tp.topic not in wanted), lost))

    def _send_join(self, now: float) -> None:
        self.phase = Phase.JOINING
        self._heartbeat_sent = False
        self._last_answer = now
        request = self._requests.join_group(self.member, self._topics, self.owned, self._rejoin_reason)
        self._actions.append(Join(request))

    def _join_failed(self, now: float, code: ErrorCode) -> None:
        """Handle an error of JoinGroup or SyncGroup."""
        if code in _FORGOTTEN:
            self.member = NO_MEMBER
            self.phase = Phase.READY
            self._prepare_rejoin(f"the coordinator answered {code.name}")
        elif code in _GONE:
            self._lose_coordinator(now)
        elif code is ErrorCode.REBALANCE_IN_PROGRESS or code.retriable:
            self._not_before = now + self.settings.retry_backoff
        else:
            self._fail_with_code(now, code)

    def _on_joined(self, now: float, answer: JoinGroupResponse) -> None:
        self.member = Member(answer.generation_id, answer.member_id)
        protocol = answer.protocol_name or ""
        assignor = self._requests.choose_assignor(protocol)
        self._last_answer = now
        self._next_heartbeat = now + self.settings.heartbeat_interval
        self._revocation.reset_generation()
        # A follower syncs at once without an assignment: the coordinator answers when it has the leader's.
        if answer.leader != answer.member_id:
            self._send_sync(now, {})
            return
        if assignor is None:
            what = f"the coordinator chose the assignor {protocol!r}, which this member did not offer"
            self._leave_group("the member does not know the assignor of the group")
            self._fail_membership(now, MalformedReplyError(what))
            return
        rows = answer.members
        self._members = readable_members((row.member_id, row.metadata, row.group_instance_id) for row in rows)
        self._back = answer.member_id if answer.skip_assignment else ""
        self.phase = Phase.ASSIGNING
        self._actions.append(Assign(assignor, self._members))

    def _send_sync(self, now: float, rows: Mapping[str, bytes]) -> None:
        self.phase = Phase.SYNCING
        self._next_heartbeat = now + self.settings.heartbeat_interval
        self._actions.append(Sync(self._requests.sync_group(self.member, rows)))

    def _take_assignment(self, now: float, assignment: bytes | memoryview) -> None:
        """Take the assignment; revoked partitions need one more rebalance. If it cannot be decoded, it is empty."""
        self.failure = None
        try:
            partitions = decode_assignment(assignment)
        except MalformedReplyError as error:
            # Without partitions nothing is read in the wrong place; `failure` has the reason for the application.
            partitions = ()
            self.failure = error
            self._actions.append(Failed(error))
        self._revocation.on_partitions_taken(partitions, now + self.settings.max_poll_interval)
        # The revoked partitions are free for others only after this member has joined again without them (KIP-429).
        before = set(self.owned)
        revoked = tuple(tp for tp in self.owned if tp not in set(partitions))
        added = tuple(tp for tp in partitions if tp not in before)
        self.phase = Phase.STABLE
        self.owned = partitions
        self._requests.note_assignment(partitions, self.member.generation)
        self._actions.append(Assigned(added, revoked))
        if revoked or self._next_rejoin_reason:
            self._prepare_rejoin(self._next_rejoin_reason or "partitions were given up for others")

    def _send_heartbeat(self, now: float) -> None:
        self._heartbeat_sent = True
        self._next_heartbeat = now + self.settings.heartbeat_interval
        self._actions.append(Heartbeat(self._requests.heartbeat(self.member)))


def _is_for_good(failure: ClientError | None) -> bool:
    return isinstance(failure, RefusedError) and failure.code in _FOR_GOOD
