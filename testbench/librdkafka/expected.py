"""Tests of librdkafka that are expected to fail, by broker, each with its reason.

Zone: pure.
"""

from __future__ import annotations

from typing import Final

_NO_AUTHORIZER: Final = {
    "0115_producer_auth": "it takes a topic away by an ACL, and these brokers have no authorizer",
    "0119_consumer_auth": "it takes a topic away by an ACL, and these brokers have no authorizer",
}

EXPECTED: Final[dict[str, dict[str, str]]] = {"ottla": _NO_AUTHORIZER, "kafka": _NO_AUTHORIZER}
"""Reasons by the broker and the name of the test."""
