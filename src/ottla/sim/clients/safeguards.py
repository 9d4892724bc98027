"""The safeguards of Ottla's clients by name, and how to switch one off.

Zone: deterministic. Their names begin with `client.`; safeguards of brokers have the names of a cluster's run.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Final

from ottla.client.producer.safeguards import ProducerSafeguards

PREFIX: Final = "client."
NAMES: Final = tuple(f"{PREFIX}{switch.name}" for switch in fields(ProducerSafeguards))


def is_client_safeguard(name: str | None) -> bool:
    """Whether the name is that of a client's safeguard."""
    return name is not None and name.startswith(PREFIX)


def producer_safeguards_without(name: str | None) -> ProducerSafeguards:
    """All safeguards of a client except the named one; all of them if the name is not that of a client's safeguard."""
    if name is None or not is_client_safeguard(name):
        return ProducerSafeguards()
    assert name in NAMES, name
    return replace(ProducerSafeguards(), **{name.removeprefix(PREFIX): False})
