"""The safeguards of the product's clients by their names, and all but one.

Zone: deterministic. They have `client.` before the name; those of brokers have the names that they have in a cluster.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Final

from ottla.client.producer.safeguards import ProducerSafeguards

PREFIX: Final = "client."
NAMES: Final = tuple(f"{PREFIX}{switch.name}" for switch in fields(ProducerSafeguards))


def of_client(name: str | None) -> bool:
    """Whether a safeguard is one of the clients'."""
    return name is not None and name.startswith(PREFIX)


def without(name: str | None) -> ProducerSafeguards:
    """All safeguards of a client but the one of this name; all of them, if it is none of a client's."""
    if name is None or not of_client(name):
        return ProducerSafeguards()
    assert name in NAMES, name
    return replace(ProducerSafeguards(), **{name.removeprefix(PREFIX): False})
