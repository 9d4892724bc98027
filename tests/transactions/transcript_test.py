"""Transcripts: the commands of the state machine, line by line, and its answers.

> init NAME [PRODUCER/EPOCH] [ms]      InitProducerId
> add|add1 NAME ID/EPOCH PARTITION…    AddPartitionsToTxn of a producer of transaction version 2, or 0
> verify NAME ID/EPOCH PARTITION…      the same, verification only
> commit|abort|commit1|abort1 NAME ID/EPOCH
> written NAME ID/EPOCH PARTITION…     partitions have their marker
> show NAME | list | records           the view of an administrator; the records since the last call
> hold | release                       nothing is committed in between
> refuse | accept                      the journal refuses appends in between
> lead | lose                          another leader, which has the uncommitted records, or lacks them
> pass MS | impatient | no-ids | ids
> age NAME EPOCH                       the journal gets a record with that epoch of the producer

`tests/transcripts.py` describes how they are compared and written.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.transactions.bench import Bench, Ticket
from tests.transcripts import check_transcript

from ottla.errors import ErrorCode
from ottla.storage.dump.decoders import as_transactions
from ottla.transactions.commands import Markers
from ottla.transactions.state import ProducerIdentity, Transaction
from ottla.types import TopicPartition

HERE = Path(__file__).parent / "transcripts"


def identity_of(text: str) -> ProducerIdentity:
    producer_id, epoch = text.split("/")
    return ProducerIdentity(int(producer_id), int(epoch))


def partition_of(text: str) -> TopicPartition:
    topic, _, partition = text.rpartition("-")
    return TopicPartition(topic, int(partition))


def shown(value: object) -> str:
    if isinstance(value, ErrorCode):
        return value.name
    if isinstance(value, ProducerIdentity):
        return f"{value.producer_id}/{value.epoch}"
    if isinstance(value, Transaction):
        names = " ".join(map(str, sorted(value.partitions)))
        return f"{value.status.label} {shown(value.identity)} {names}".strip()
    if isinstance(value, Markers):
        what = "COMMIT" if value.commit else "ABORT"
        names = " ".join(map(str, value.partitions))
        return f"{what} {shown(value.identity)} v{value.version} epoch {value.coordinator_epoch} → {names}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {shown(part)}" for key, part in value.items()) or "nothing"
    return "ok" if value is None else str(value)


class Player:
    def __init__(self) -> None:
        self.bench = Bench()
        self.open: list[tuple[str, Ticket]] = []
        self.seen = 0

    def play(self, line: str) -> list[str]:
        verb, *words = line.split()
        ticket = self.asked(verb, words)
        said = []
        if ticket is not None:
            self.open.append((line, ticket))
        for asked, waiting in list(self.open):
            if waiting:
                self.open.remove((asked, waiting))
                said.append(shown(waiting.value) if asked is line else f"({asked}) {shown(waiting.value)}")
        said += [shown(markers) for markers in self.bench.sent]
        self.bench.sent.clear()
        return said + (self.records() if verb == "records" else [])

    def asked(self, verb: str, words: list[str]) -> Ticket | None:
        bench = self.bench
        if verb == "init":
            expected = next((identity_of(word) for word in words[1:] if "/" in word), None)
            timeout = next((int(word) for word in words[1:] if "/" not in word), 60_000)
            return bench.init(words[0] if words[0] != '""' else "", expected, timeout)
        if verb in ("add", "add1", "verify", "written"):
            name, who, partitions = words[0], identity_of(words[1]), [partition_of(word) for word in words[2:]]
            if verb.startswith("add"):
                return bench.add(name, who, *partitions, version=0 if verb == "add1" else 2)
            return getattr(bench, verb)(name, who, *partitions)
        if verb.rstrip("1") in ("commit", "abort"):
            version = 0 if verb.endswith("1") else 2
            return bench.end(words[0], identity_of(words[1]), verb.startswith("commit"), version)
        return self.played(verb, words)

    def played(self, verb: str, words: list[str]) -> Ticket | None:
        bench = self.bench
        if verb == "show":
            return bench.describe(words[0])
        if verb == "list":
            return bench.listed()
        if verb in ("hold", "release"):
            bench.held = verb == "hold"
            bench.settle()
        elif verb in ("refuse", "accept"):
            bench.refused = verb == "refuse"
        elif verb in ("lead", "lose"):
            bench.lead(lose=verb == "lose")
        elif verb == "age":
            bench.age(words[0], int(words[1]))
        elif verb == "pass":
            bench.pass_ms(int(words[0]))
        elif verb == "impatient":
            bench.lose_patience()
        elif verb in ("no-ids", "ids"):
            bench.ids_gone = verb == "no-ids"
        else:
            assert verb == "records", f"nobody knows what {verb!r} is"
        return None

    def records(self) -> list[str]:
        new = self.bench.records[self.seen :]
        self.seen = len(self.bench.records)
        return [f"{as_transactions(0, key, value).payload}" for key, value in new]


@pytest.mark.parametrize("path", sorted(HERE.glob("*.txt")), ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    check_transcript(path, Player().play)
