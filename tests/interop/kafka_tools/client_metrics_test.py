"""kafka-client-metrics beside Apache Kafka's own."""

from __future__ import annotations

import pytest
from tests.interop.kafka_tools.comparison import Comparison

pytestmark = [pytest.mark.interop, pytest.mark.kafka, pytest.mark.slow]


def test_subscriptions(both: Comparison) -> None:
    both.compare(
        "kafka-client-metrics",
        """
        BS --alter --name {name}m --metrics org.apache.kafka.,x --interval 30000 --match client_id=x.*
        BS --describe --name {name}m
        BS --alter --name {name}m --interval "" --metrics a --metrics b --match client_id=a --match client_source_port=2
        BS --describe --name {name}m
        BS --alter --name {name}m --metrics ""
        BS --describe --name {name}m
        BS --alter --name {name}m
        BS --alter --name {name}m --interval 5
        BS --alter --name {name}m --interval -1
        BS --alter --name {name}m --match nonsense=1
        BS --alter --name "" --metrics a
        BS --delete --name {name}m
        BS --describe --name {name}m
        BS --delete --name {name}nothing
        BS --describe --name {name}nothing
        """,
    )
    both.compare("kafka-client-metrics", "BS --alter --name {name}n --metrics a")
    both.compare("kafka-client-metrics", "BS --list\nBS --describe", same_words=True, ordered=False)


def test_words_that_do_not_fit(both: Comparison) -> None:
    both.compare(
        "kafka-client-metrics",
        """
        BS
        --list
        BS --list --describe
        BS --alter
        BS --alter --name {name}a --generate-name
        BS --alter --name {name}a --interval abc
        BS --alter --name {name}a --interval 2147483648
        BS --alter --name {name}a --interval 1_000
        BS --alter --name {name}a --name {name}b --metrics a
        BS --alter --name {name}a --interval 1000 --interval 2000
        BS --alter --generate-name --name
        BS --delete
        BS --delete --generate-name
        BS --delete --name {name}a --metrics b
        BS --describe --interval 5
        BS --describe --generate-name
        BS --list --name x
        BS --list --match a
        BS --nonsense
        """,
    )
