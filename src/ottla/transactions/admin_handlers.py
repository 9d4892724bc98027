"""DescribeTransactions, ListTransactions: transactions as an administrator sees them (KIP-664).

Zone: deterministic.

Version notes. ListTransactions 1 filters by duration (KIP-994), 2 by a pattern of transactional ids (KIP-1152). The
pattern is a regular expression that any client can choose, so its cost is limited (`ottla.linear_regex`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Final

from ottla.acls import Operation, ResourceType
from ottla.errors import ApiError, ErrorCode
from ottla.fan_in import FanIn
from ottla.linear_regex import Pattern, PatternError, TooCostly
from ottla.requests import Context, Parts, denied_error, handles
from ottla.transactions.commands import DescribeTransaction
from ottla.transactions.messages import description_row, list_rows, unknown_states
from ottla.transactions.service import Transactions
from ottla.transactions.state import Transaction
from ottla.wire.apis import ApiKey
from ottla.wire.messages import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)

PATTERN_STEPS: Final = 100_000
PATTERN_STEPS_PER_ID: Final = 64
"""The limit of a pattern's cost: `PATTERN_STEPS`, and these for each transactional id; some hundredths of a second."""
IDS_PER_TURN: Final = 64
"""The number of ids that one turn compares with a pattern. The longest likely ids take 4 ms."""
PLAIN_IDS_PER_TURN: Final = 1_000
"""The number of ids that one turn lists without a pattern."""
_Row = DescribeTransactionsResponse.TransactionState


class TransactionAdminHandlers:
    """Handlers of the requests that tools send."""

    def __init__(self, transactions: Transactions, now_ms: Callable[[], int]) -> None:
        """`now_ms` returns the wall time."""
        self._transactions = transactions
        self._now_ms = now_ms

    @handles(
        ApiKey.DESCRIBE_TRANSACTIONS,
        0,
        0,
        resource="TransactionalId",
        operation="Describe",
        also=(("Topic", "Describe"),),
        parts=Parts(cost_us=40, request=(("transactional_ids",),), response=(("transaction_states",),), once=str),
    )
    def describe_transactions(self, context: Context, request: DescribeTransactionsRequest) -> None:
        """Describe state, producer and partitions of transactions. Each row has an error of its own."""
        names = list(dict.fromkeys(request.transactional_ids))
        gather: FanIn[_Row] = FanIn(
            lambda rows: context.send_reply(DescribeTransactionsResponse(transaction_states=rows))
        )
        for name in names:
            done = _row_for(context, name, gather.new_slot())
            if context.is_allowed(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, name):
                self._transactions.submit_command(DescribeTransaction(name, done))
            else:
                done(denied_error(ResourceType.TRANSACTIONAL_ID))
        gather.close_slots()

    @handles(
        ApiKey.LIST_TRANSACTIONS,
        0,
        2,
        resource="TransactionalId",
        operation="Describe",
        undivided="its arrays are filters; the ids are listed in slices",
    )
    def list_transactions(self, context: Context, request: ListTransactionsRequest) -> None:
        """List the transactions that this broker coordinates, and that the client may describe.

        INVALID_REGULAR_EXPRESSION: the pattern is malformed, or matching it takes too many steps.
        """
        unknown = unknown_states(request)
        pattern = _pattern_of(request)

        def send_response(outcome: Mapping[str, Transaction] | ApiError) -> None:
            if isinstance(outcome, ApiError):
                context.send_reply(ListTransactionsResponse(error_code=outcome.code))
                return
            response = ListTransactionsResponse(unknown_state_filters=unknown)
            self._list_slice(context, request, response, iter(list(outcome.items())), pattern)

        self._transactions.list_all(send_response)

    def _list_slice(
        self,
        context: Context,
        request: ListTransactionsRequest,
        response: ListTransactionsResponse,
        left: Iterator[tuple[str, Transaction]],
        pattern: Pattern | None,
    ) -> None:
        """List the next ids, and the others in later turns; answer after the last one."""
        count = IDS_PER_TURN if pattern is not None else PLAIN_IDS_PER_TURN
        ids = dict(islice(left, count))
        if not ids:
            context.send_reply(response)
            return
        matches = None
        if pattern is not None:
            # The allowance grows with the ids, so that a cheap pattern may list any number of them.
            pattern.allowance += PATTERN_STEPS_PER_ID * len(ids)
            matches = pattern.matches_name
        shown = ids if context.rights is None else {name: ids[name] for name in ids if _may_describe(context, name)}
        try:
            response.transaction_states += list_rows(request, shown, self._now_ms(), matches)
        except TooCostly:
            context.send_reply(ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION))
            return
        if len(ids) < count:
            context.send_reply(response)
        else:
            self._transactions.coordinator.run_soon(lambda: self._list_slice(context, request, response, left, pattern))


def _pattern_of(request: ListTransactionsRequest) -> Pattern | None:
    """The pattern of a request; None: all ids. Raises ApiError INVALID_REGULAR_EXPRESSION."""
    if not request.transactional_id_pattern:
        return None
    try:
        pattern = Pattern(request.transactional_id_pattern)
    except PatternError as error:
        raise ApiError(ErrorCode.INVALID_REGULAR_EXPRESSION, str(error)) from error
    pattern.allowance = PATTERN_STEPS
    return pattern


def _may_describe(context: Context, name: str) -> bool:
    return context.is_allowed(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, name, logs=False)


def _row_for(context: Context, name: str, done: Callable[[_Row], None]) -> Callable[[Transaction | ApiError], None]:
    """Answers with a row, without topics that the client may not describe."""

    def on_described(outcome: Transaction | ApiError) -> None:
        row = description_row(name, outcome)
        if context.rights is not None:
            row.topics = [
                topic
                for topic in row.topics
                if context.is_allowed(Operation.DESCRIBE, ResourceType.TOPIC, topic.topic, logs=False)
            ]
        done(row)

    return on_described
