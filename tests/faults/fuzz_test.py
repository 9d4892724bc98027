"""Hostile input against a broker process: the corpus, and a minute of mutations."""

from __future__ import annotations

import random
import tempfile

import pytest
from bench.fuzz import Broken, Fuzz, fuzzing
from bench.fuzz_stream import SHOWN, keep
from bench.hostile_cases import ANSWERED, CLOSED, REFUSED, Case, corpus, good_batch, produce
from bench.hostile_cases import PLAIN as TOPIC

pytestmark = [pytest.mark.slow]

SEED = 1
"""Always the same here: what is found anew is found by `make fuzz`, whose seed is another one every time."""


def test_a_minute_of_hostile_input(node) -> None:
    broker = node()
    broker.start()
    try:
        fuzz = fuzzing(broker, SEED, 60)
    except Broken as error:
        pytest.fail(f"bench/fuzz.py --seed {SEED}: {error}")
    assert fuzz.cases > 2_000
    assert fuzz.answers > 500
    assert fuzz.closes > 500
    broker.stop()


def test_streams_of_extreme_requests_reach_what_is_there(node) -> None:
    broker = node()
    broker.start()
    fuzz = Fuzz(broker, SEED)
    try:
        fuzz.stream_round()
        fuzz.check()
    finally:
        fuzz.close()
    assert fuzz.stream.requests > 500
    assert len(fuzz.stream.by_api) > 30
    assert fuzz.stream.answers > 10 * fuzz.stream.closes, "most are well-formed"
    broker.stop()


def test_the_corpus_is_what_it_says() -> None:
    cases = list(corpus(random.Random(1)))
    assert len(cases) > 1_500
    assert len({case.name for case in cases}) > 1_400
    assert {case.outcome for case in cases} >= {ANSWERED, CLOSED, REFUSED}


def test_all_bytes_of_a_finding_are_kept(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    shown = keep(b"request", bytes(SHOWN))
    assert "72657175657374" in shown
    assert len(shown) < SHOWN + 500
    kept = {each.suffix: each.read_bytes() for each in tmp_path.iterdir()}
    assert kept == {".request": b"request", ".answer": bytes(SHOWN)}
    assert all(str(each) in shown for each in tmp_path.iterdir())


def test_the_fuzzer_notices_a_broker_that_misbehaves(node) -> None:
    broker = node()
    broker.start()
    fuzz = Fuzz(broker, 1)
    fuzz.run(Case("a good batch", produce(TOPIC, bytes(good_batch())), ANSWERED))
    with pytest.raises(Broken, match="was accepted"):
        fuzz.run(Case("a good batch", produce(TOPIC, bytes(good_batch())), REFUSED))
    with pytest.raises(Broken, match="should have been closed"):
        fuzz.run(Case("a good batch", produce(TOPIC, bytes(good_batch())), CLOSED))
    broker.kill()
    with pytest.raises(Broken, match="no connection"):
        fuzz.run(Case("a good batch", produce(TOPIC, bytes(good_batch())), ANSWERED))
    with pytest.raises(Broken):
        fuzz.check()
    fuzz.close()
