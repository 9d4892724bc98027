"""The safeguards of authorization and of logins, and what switches each off.

Zone: pure.
"""

from __future__ import annotations

from typing import Final

from ottla.sim.mutants.mutant import Edit, Mutant

_AUTHORIZER: Final = "ottla.security.authorization.authorizer"
_INDEX: Final = "ottla.security.authorization.acl_index"
_CACHE: Final = "ottla.security.authorization.decision_cache"
_STORE: Final = "ottla.cluster.acls.acl_store"
_SESSION: Final = "ottla.security.sasl.session"
_PRODUCERS: Final = "ottla.transactions.producer_handlers"
_OFFSETS: Final = "ottla.groups.handlers.txn_offset_handlers"
_PRODUCE: Final = "ottla.replication.produce.produce_rights"
_CHECK: Final = "context.check_allowed(_WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)"


def _unchecked(verb: str, api: str, module: str, function: str, text: str, replacement: str = "pass") -> Mutant:
    guards = f"{api} needs Write on the transactional id, also from a client that knows its producer id (KIP-98)."
    return Mutant(f"security.may_{verb}", guards, (Edit(module, function, text, replacement),))


SECURITY: Final = (
    Mutant(
        "security.denial_wins",
        "An ACL that denies wins over all that allow.",
        (
            Edit(
                _AUTHORIZER,
                "Authorizer.allowed_operations",
                "denied = rights >> DENY_SHIFT",
                "denied = 0",
            ),
        ),
    ),
    Mutant(
        "security.prefix_matches",
        "A prefixed ACL is about names that begin with its prefix. Off: about all names that are as long or longer.",
        (
            Edit(
                _INDEX,
                "_Prefixes.prefixes_of",
                "if prefix in self.rights:\n                yield prefix",
                "yield from (each for each in self.rights if len(each) == length)",
            ),
        ),
    ),
    Mutant(
        "security.decisions_forgotten",
        "The decisions that a connection has cached are forgotten when an ACL changes.",
        (
            Edit(
                _CACHE,
                "DecisionCache.is_allowed",
                "if self._generation != self._authorizer.generation:",
                "if False:",
            ),
        ),
    ),
    Mutant(
        "security.changes_notified",
        "A change of ACLs leaves a notification, by which other brokers learn of it.",
        (
            Edit(
                _STORE,
                "_submit_change",
                '[op, Op("sequential", change.path_prefix, change.data)]',
                "[op]",
            ),
        ),
    ),
    Mutant(
        "security.sessions_end",
        "A session that has not been renewed in its lifetime serves no request (KIP-368).",
        (
            Edit(
                _SESSION,
                "SaslSession._has_ended",
                "return self._ends_ns is not None and now.mono_ns > self._ends_ns",
                "return False",
            ),
        ),
    ),
    _unchecked(
        "begin_as_producer",
        "InitProducerId",
        _PRODUCERS,
        "ProducerHandlers.init_producer_id",
        "if not context.is_allowed(_WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id):",
        "if False:",
    ),
    _unchecked(
        "add_partitions",
        "AddPartitionsToTxn",
        _PRODUCERS,
        "ProducerHandlers.add_partitions",
        "context.check_allowed(_WRITE, ResourceType.TRANSACTIONAL_ID, request.v3_and_below_transactional_id)",
    ),
    _unchecked("add_offsets", "AddOffsetsToTxn", _PRODUCERS, "ProducerHandlers.add_offsets", _CHECK),
    _unchecked("end_transaction", "EndTxn", _PRODUCERS, "ProducerHandlers.end_txn", _CHECK),
    _unchecked(
        "commit_offsets",
        "TxnOffsetCommit",
        _OFFSETS,
        "TxnOffsetHandlers.txn_offset_commit",
        "context.check_allowed(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)",
    ),
    _unchecked(
        "produce",
        "Produce",
        _PRODUCE,
        "ProduceRights._check_items",
        "if is_transactional and not _may_use(rights, transactional_id):",
        "if False:",
    ),
)
