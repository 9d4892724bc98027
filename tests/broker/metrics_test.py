"""Metrics say what happened."""

from __future__ import annotations

import pytest


def test_topics_count_records_and_bytes(node) -> None:
    node.produce("t", b"a", b"b")
    node.produce("t", b"c")
    assert node.produce("t", b"x", partition=9).error_code
    assert node.fetch("t", 99).error_code
    taken = len(node.fetch("t", 0).records)
    value = node.broker.metrics.value_of
    topic = "kafka_server_brokertopicmetrics_"
    assert value(f"{topic}messagesin_total", topic="t") == 3
    assert value(f"{topic}bytesin_total", topic="t") == value(f"{topic}bytesout_total", topic="t") == taken
    assert value(f"{topic}failedproducerequests_total", topic="t") == 1
    assert value(f"{topic}failedfetchrequests_total", topic="t") == 1
    assert value("kafka_network_requestmetrics_requests_total", request="Produce") == 3
    assert value("kafka_log_log_logendoffset", topic="t", partition="0") == 3


def test_everything_renders(node) -> None:
    node.create("safe", min_insync_replicas="2")
    assert node.broker.metrics.value_of("kafka_server_replicamanager_underminisrpartitioncount") == 0, (
        "one replica is all"
    )
    assert node.broker.metrics.value_of("kafka_server_replicamanager_atminisrpartitioncount") == 2
    safe = node.broker.hosted.find_partition("safe", 0)
    safe.replicas = (1, 2)
    safe.apply_config(safe.config)
    text = node.broker.metrics.render_text()
    assert "kafka_server_replicamanager_partitioncount 2\n" in text
    assert "kafka_server_replicamanager_underminisrpartitioncount 1\n" in text
    assert "kafka_server_replicamanager_leadercount 2\n" in text
    assert "kafka_server_replicamanager_underreplicatedpartitions 1\n" in text
    for name in ("offlinereplicacount", "isrshrinks_total", "isrexpands_total"):
        assert f"kafka_server_replicamanager_{name} 0\n" in text
    assert "kafka_server_replicamanager_atminisrpartitioncount 1\n" in text
    assert "kafka_log_logmanager_offlinelogdirectorycount 0\n" in text
    with pytest.raises(KeyError):
        node.broker.metrics.value_of("kafka_log_log_size", topic="nowhere", partition="0")


def test_followers_that_lag_or_gave_up_are_counted(node) -> None:
    for name in ("maxlag", "failedpartitionscount"):
        assert node.broker.metrics.value_of(f"kafka_server_replicafetchermanager_{name}") == 0
    assert node.broker.metrics.value_of("kafka_server_replicaalterlogdirsmanager_maxlag") == 0
    fetchers = node.broker._replicas.fetchers
    fetchers._on_failed(node.broker.hosted.find_partition("t", 0))
    assert node.broker.metrics.value_of("kafka_server_replicafetchermanager_failedpartitionscount") == 1
