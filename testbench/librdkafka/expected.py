"""Tests of librdkafka that are expected to fail, by broker, each with its reason; and one that is run in parts.

Zone: pure.
"""

from __future__ import annotations

from typing import Final

PARTS: Final[dict[str, tuple[str, ...]]] = {
    "0081": tuple(
        f"do_test_{name}"
        for name in (
            "CreateTopics", "DeleteTopics", "CreatePartitions", "CreateAcls", "DescribeAcls", "DeleteAcls",
            "AlterConfigs", "IncrementalAlterConfigs", "DescribeConfigs", "DescribeConfigs_groups", "DeleteRecords",
            "ListConsumerGroups", "DescribeConsumerGroups", "DescribeConsumerGroups_with_authorized_ops",
            "DescribeTopics", "DescribeCluster", "DeleteGroups", "DeleteConsumerGroupOffsets", "ListOffsets",
            "AlterConsumerGroupOffsets", "ListConsumerGroupOffsets", "UserScramCredentials", "unclean_destroy",
        )
    )
}  # fmt: skip
"""Tests by number that end at their first failure, with the parts that are run in a process each instead."""

_AUTHORIZER = "it needs ACLs, and these brokers have no authorizer"
_NO_AUTHORIZER: Final = {
    "0081_admin/do_test_CreateAcls": _AUTHORIZER,
    "0081_admin/do_test_DescribeAcls": _AUTHORIZER,
    "0081_admin/do_test_DeleteAcls": _AUTHORIZER,
    "0109_auto_create_topics": _AUTHORIZER,
    "0115_producer_auth": _AUTHORIZER,
    "0119_consumer_auth": _AUTHORIZER,
}

_SECURITY_KEY: Final = "it alters sasl.kerberos.min.time.before.relogin, which is refused: there is no authentication"
_OTTLA: Final = {
    "0081_admin/do_test_AlterConfigs": _SECURITY_KEY,
    "0081_admin/do_test_IncrementalAlterConfigs": _SECURITY_KEY,
    "0081_admin/do_test_DescribeConfigs_groups": "groups have no settings of their own yet",
    "0081_admin/do_test_UserScramCredentials": "SASL and the credentials of its users are not there yet",
}

_JAVA: Final = {
    "0098_consumer_txn": "it needs a Java producer that librdkafka's makefile builds in Kafka's distribution"
}

EXPECTED: Final[dict[str, dict[str, str]]] = {
    "ottla": _NO_AUTHORIZER | _JAVA | _OTTLA,
    "kafka": _NO_AUTHORIZER | _JAVA,
}
"""Reasons by the broker and the name of the test, with a stroke before the part of a test that is run in parts."""
