"""Quotas, and the settings of users, client ids, addresses and other entities.

Zone: deterministic. Construction only; `ottla.security.quotas` decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ottla.cluster.entities.entity_reader import EntityReader
from ottla.security.quotas.client_quotas import ClientQuotas
from ottla.security.quotas.entity_quotas import EntityQuotas, OnUserConfig


class EntityWing(NamedTuple):
    """What depends on the settings of entities."""

    reader: EntityReader
    quotas: ClientQuotas


def build_entities(on_user_config: OnUserConfig) -> EntityWing:
    """Create the objects. `on_user_config` receives the settings of each user, also its credentials."""
    quotas = ClientQuotas()
    return EntityWing(EntityReader(EntityQuotas(quotas, on_user_config).on_config), quotas)


def ignore_user_config(user: str, config: Mapping[str, str]) -> None:
    """Ignore the settings of a user beyond quotas: this broker has no SCRAM."""
