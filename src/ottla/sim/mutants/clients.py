"""The safeguards of Ottla's own producer, and what switches each off.

Zone: pure.
"""

from __future__ import annotations

from typing import Final

from ottla.sim.mutants.mutant import Edit, Mutant

_CORE: Final = "ottla.client.producer.core"
_QUEUE: Final = "ottla.client.producer.partition_queue"

CLIENTS: Final = (
    Mutant(
        "client.sequences_kept",
        "A batch keeps its sequence numbers in all its attempts (KIP-98). Off: every attempt takes new ones.",
        (
            Edit(
                _QUEUE,
                "PartitionQueue.take_batch",
                "if self._numbered and batch.base_sequence < 0:",
                "if self._numbered:",
            ),
        ),
    ),
    Mutant(
        "client.in_flight_cap",
        "`max.in.flight.requests.per.connection` limits the unanswered requests to a node, and the unanswered batches "
        "of a partition.",
        (
            Edit(_CORE, "ProducerCore._drain_calls", "while len(unanswered) < most:", "while True:"),
            Edit(
                _QUEUE,
                "PartitionQueue.may_send",
                "return self._most > 1 or not self.in_flight",
                "return True",
            ),
            Edit(
                _QUEUE,
                "PartitionQueue._in_window",
                "return max(behind, len(self.in_flight)) < self._most",
                "return True",
            ),
        ),
    ),
    Mutant(
        "client.epoch_recovery",
        "Sequence numbers restart only in a new producer epoch (KIP-360). Off: in the same one.",
        (
            Edit(
                _CORE,
                "ProducerCore._rewind_queue",
                "if self.identity is not None and self.identity == lane.identity:",
                "if False:",
            ),
        ),
    ),
    Mutant(
        "client.refusals_doubted",
        "A refused batch counts as possibly in the log if its broker may have lost its leadership or its disk after "
        "the append. Off: only batches without any answer do.",
        (Edit(_CORE, "ProducerCore._on_answer", "if answer.code in MAY_BE_IN_LOG:", "if False:"),),
    ),
    Mutant(
        "client.first_repeated",
        "Only the first unanswered batch of a partition is repeated; later ones wait for its answer.",
        (
            Edit(
                _QUEUE,
                "PartitionQueue.may_send",
                "return self.in_flight[0] is self.queue[0]",
                "return True",
            ),
        ),
    ),
    Mutant(
        "client.first_alone",
        "Until the broker has acknowledged a batch of an epoch, only one batch of the partition is unanswered.",
        (Edit(_QUEUE, "PartitionQueue.may_send", "if self._acked < 0 and self.in_flight:", "if False:"),),
    ),
    Mutant(
        "client.doubtful_fail",
        "When sequence numbers restart, batches that may be in the log fail. Off: they are written again.",
        (
            Edit(
                _QUEUE,
                "PartitionQueue.restart_sequence",
                "doubtful = [batch for batch in self.in_flight if batch.uncertain]",
                "doubtful = []",
            ),
        ),
    ),
)
