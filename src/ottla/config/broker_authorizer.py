"""Keys of the authorizer: one row per key.

Zone: pure. Rows only: names, types, defaults and checks are Kafka's. In Kafka they belong to the authorizer's class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ottla.config.broker_coordinators import CoordinatorConfig
from ottla.config.rows import HIGH, LOW, Check, Type, key

AUTHORIZERS: Final = (
    "kafka.security.authorizer.AclAuthorizer",
    "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
)
"""Kafka's authorizers with ACLs, of Kafka 3 and 4. Both names mean the one that Ottla has."""


def split_principals(text: str) -> tuple[str, ...]:
    """The principals of `super.users`. Names may contain commas (CN=a,O=b), so semicolons separate them."""
    return tuple(word for each in text.split(";") if (word := each.strip()))


def _are_principals(text: str) -> bool:
    return all(":" in word for word in split_principals(text))


@dataclass(init=False, repr=False, eq=False, frozen=True, slots=True)
class AuthorizerConfig(CoordinatorConfig):
    """Who is allowed to do what."""

    authorizer_class_name: str = key(
        "authorizer.class.name",
        Type.STRING,
        "",
        "Authorizer of requests: the name of one of Kafka's authorizers with ACLs. Empty: everything is allowed.",
        Check(f"empty, or one of {', '.join(AUTHORIZERS)}", lambda name: name in ("", *AUTHORIZERS)),
        importance=LOW,
    )
    super_users: str = key(
        "super.users",
        Type.STRING,
        "",
        "Principals that may do everything, as User:name, separated by semicolons.",
        Check("principals of the form type:name, separated by semicolons", _are_principals),
        importance=HIGH,
    )
    allow_everyone_if_no_acl_found: bool = key(
        "allow.everyone.if.no.acl.found",
        Type.BOOLEAN,
        False,
        "Whether a resource without any ACL may be used by everyone; otherwise only by super users.",
    )
