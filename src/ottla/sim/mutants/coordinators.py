"""The safeguards of the transaction coordinator and of the group coordinator, and what switches each off.

Zone: pure.
"""

from __future__ import annotations

from typing import Final

from ottla.sim.mutants.mutant import Edit, Mutant

_MACHINE: Final = "ottla.transactions.machine"
_COMMITS: Final = "ottla.groups.commits"
_SHARD: Final = "ottla.groups.shard"

_PRESENT_IDENTITY: Final = "command if txn is None else command._replace(identity=txn.identity)"
"""The command as if it came from the producer's present epoch."""


def _unbumped(before: str, condition: str = "True") -> str:
    """A statement: `after` keeps the epoch of `before`, in the protocol without epochs per transaction."""
    condition = f"{condition} and {before} is not None and {before}.producer_id == after.producer_id"
    return f"after = after._replace(epoch={before}.epoch, version=0) if {condition} else after\n"


_INIT: Final = "if not after.status.ending:"
_END: Final = "return self._journal_transition(command, command.transactional_id, after, after.successor)"
_TIMED_OUT: Final = "entries, effects = self._entries_and_markers(name, after)"

TRANSACTIONS: Final = (
    Mutant(
        "transactions.epoch_check",
        "A request of another epoch than the present one changes nothing.",
        (
            Edit(
                _MACHINE,
                "TransactionMachine._add_partitions",
                "rules.add_partitions(txn, command, now_ms)",
                f"rules.add_partitions(txn, {_PRESENT_IDENTITY}, now_ms)",
            ),
            Edit(
                _MACHINE,
                "TransactionMachine._verify_partitions",
                "rules.verify_partitions(txn, command)",
                f"rules.verify_partitions(txn, {_PRESENT_IDENTITY})",
            ),
            Edit(
                _MACHINE,
                "TransactionMachine._end_transaction",
                "rules.end_transaction(txn, command, now_ms)",
                f"rules.end_transaction(txn, {_PRESENT_IDENTITY}, now_ms)",
            ),
        ),
    ),
    Mutant(
        "transactions.bump_at_end",
        "Under transaction version 2 every end of a transaction gives its producer another epoch (KIP-890).",
        (Edit(_MACHINE, "TransactionMachine._end_transaction", _END, f"{_unbumped('txn')}        {_END}"),),
    ),
    Mutant(
        "transactions.bump_at_abort",
        "A transaction that the coordinator itself aborts ends in another epoch: its producer is fenced (KIP-98).",
        (
            Edit(
                _MACHINE,
                "TransactionMachine._init_producer_id",
                _INIT,
                f"{_unbumped('txn', 'after.status.ending')}        {_INIT}",
            ),
            Edit(
                _MACHINE,
                "TransactionMachine._abort_some",
                _TIMED_OUT,
                f"{_unbumped('before')}            {_TIMED_OUT}",
            ),
        ),
    ),
    Mutant(
        "transactions.bump_at_start",
        "A producer that starts under a transactional id gets another epoch: earlier ones are fenced (KIP-98).",
        (
            Edit(
                _MACHINE,
                "TransactionMachine._init_producer_id",
                _INIT,
                f"{_unbumped('txn', 'not after.status.ending')}        {_INIT}",
            ),
        ),
    ),
    Mutant(
        "transactions.decided_before_marked",
        "Markers are written when the decision is committed, not when it is made.",
        (
            Edit(
                _MACHINE,
                "TransactionMachine._journal_transition",
                "return _new(Decision, ((), records, (), (told, *markers), None))",
                "return Decision(records=records, now=markers, committed=(told,))",
            ),
        ),
    ),
    Mutant(
        "transactions.marked_again",
        "A new coordinator writes the markers of transactions that were decided before it took over.",
        (
            Edit(
                _MACHINE,
                "TransactionMachine.on_loaded",
                "unmarked = self.unmarked.items()",
                "unmarked = ()",
            ),
        ),
    ),
    Mutant(
        "transactions.complete_when_marked",
        "A transaction is complete when all its partitions have their markers; until then the next one waits.",
        (
            Edit(
                _MACHINE,
                "TransactionMachine._entries_and_markers",
                "return [entry], [self._markers_effect(",
                "return [entry, Entry(name, complete_transaction(after, after.update_ms))], [self._markers_effect(",
            ),
        ),
    ),
)

GROUPS: Final = (
    Mutant(
        "groups.generation_check",
        "Only members of the current generation commit offsets.",
        (Edit(_COMMITS, "commit_offsets", "if code:", "if code and command.generation < 0:"),),
    ),
    Mutant(
        "groups.pending_positions",
        "Offsets of a transaction become valid with its marker. Off: at once.",
        (
            Edit(
                _SHARD,
                "GroupShard.apply",
                "self.offsets.apply_commit(entry, origin.offset, origin.producer_id)",
                "self.offsets.apply_commit(entry, origin.offset, -1)",
            ),
        ),
    ),
    Mutant(
        "groups.stable_positions",
        "A fetch of stable offsets gets none that has a pending transactional commit (KIP-447).",
        (
            Edit(
                _SHARD,
                "GroupShard._fetch_offsets",
                "commits.fetch_offsets(self.offsets, command)",
                "commits.fetch_offsets(self.offsets, command._replace(require_stable=False))",
            ),
        ),
    ),
    Mutant(
        "groups.answer_when_committed",
        "A commit is answered when all in-sync replicas have it.",
        (
            Edit(
                _COMMITS,
                "commit_offsets",
                "return Decision(heard, records, (), answer, command.producer)",
                "return Decision(heard, records, answer, (), command.producer)",
            ),
        ),
    ),
)
