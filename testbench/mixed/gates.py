"""The gates of formats, and what switches each off in this release.

Zone: pure. The rows follow the inventory (`testbench/formats/inventory.py`): a test compares them.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ottla.sim.mutants.mutant import Edit, Mutant

_RECORDS: Final = "ottla.groups.record_versions"
_OFFSETS: Final = "_newest_for(_OFFSETS, age, 1)"
_GROUPS: Final = "_newest_for(_GROUPS, age, 0)"


class FormatGate(NamedTuple):
    """A gate, the formats of the inventory that it decides about, and the property that notices its absence."""

    formats: tuple[str, ...]
    noticed_by: str
    mutant: Mutant


GATES: Final = {
    gate.mutant.name: gate
    for gate in (
        FormatGate(
            ("segment",),
            "messages_keep_to_their_format",
            Mutant(
                "message_format",
                "A topic keeps the message format of its setting. Off: the newest one is written.",
                (Edit("ottla.storage.log", "Log.apply_config", "self.magic = config.message_magic", "self.magic = 2"),),
            ),
        ),
        FormatGate(
            ("committed offset",),
            "records_keep_to_their_level",
            Mutant(
                "offset_record",
                "Offsets are written as the brokers of the level read them. Off: in the newest version.",
                (Edit(_RECORDS, "group_record_versions", _OFFSETS, "3"),),
            ),
        ),
        FormatGate(
            ("group",),
            "records_keep_to_their_level",
            Mutant(
                "group_record",
                "Groups are written as the brokers of the level read them. Off: in the newest version.",
                (Edit(_RECORDS, "group_record_versions", _GROUPS, "3"),),
            ),
        ),
        FormatGate(
            ("state of a transactional id",),
            "records_keep_to_their_level",
            Mutant(
                "transaction_record",
                "Under transaction.version 0 records of transactions have no tagged fields. Off: they have.",
                (
                    Edit(
                        "ottla.transactions.codec",
                        "TransactionCodec.encode",
                        "self._version.level < FLEXIBLE",
                        "self._version.level < 0",
                    ),
                ),
            ),
        ),
        FormatGate(
            ("finalized features",),
            "finalized_levels_are_followed",
            Mutant(
                "features_of_brokers",
                "A level is finalized when all registered brokers follow it. Off: without a look at the brokers.",
                (
                    Edit(
                        "ottla.cluster.controller.feature_updates",
                        "_check_brokers",
                        "if node is not None:",
                        "if node is not None and number < 0:",
                    ),
                ),
            ),
        ),
        FormatGate(
            ("FETCH",),
            "requests_keep_to_their_level",
            Mutant(
                "fetch_version",
                "Followers fetch in the version of the level. Off: in the newest one.",
                (
                    Edit(
                        "ottla.replication.follower.fetcher_manager",
                        "fetch_version",
                        "if found else (0, 0)",
                        "if not found else (99, 0)",
                    ),
                ),
            ),
        ),
        FormatGate(
            ("WRITE_TXN_MARKERS",),
            "requests_keep_to_their_level",
            Mutant(
                "markers_version",
                "Below transaction.version 2 markers are sent in version 1. Off: in version 2.",
                (
                    Edit(
                        "ottla.transactions.service",
                        "Transactions._markers_version",
                        "self._policy.version.level) >= BUMPED",
                        "self._policy.version.level) >= 0",
                    ),
                ),
            ),
        ),
    )
}
