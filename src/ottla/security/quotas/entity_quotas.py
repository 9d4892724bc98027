"""Takes the settings of users, client ids and addresses from the metadata store: their quotas, and users' credentials.

Zone: deterministic. A quota that cannot be read limits nothing, as in Kafka, and is named in the log.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable, Mapping
from typing import Final

from ottla.security.quotas.client_quotas import ClientQuotas, parse_quotas
from ottla.znodes.entity_nodes import Entity, decode_change_path

logger = logging.getLogger(__name__)

OnUserConfig = Callable[[str, Mapping[str, str]], None]
"""Receives the name of a user and all its settings, which may contain credentials for SCRAM."""
_SHOWN: Final = 100


class EntityQuotas:
    """Receives settings of entities."""

    def __init__(self, quotas: ClientQuotas, on_quotas: Callable[[], None], on_user_config: OnUserConfig) -> None:
        """`on_quotas` is called after every change of the quotas."""
        self._quotas = quotas
        self._on_quotas = on_quotas
        self._on_user_config = on_user_config

    def on_config(self, path: str, config: Mapping[str, str]) -> None:
        """Take the settings of `users/…`, `clients/…` or `ips/…`; none: they were deleted."""
        try:
            entity = decode_change_path(path)
            if entity.ip:
                entity = Entity(ip=canonical_address(entity.ip))
        except ValueError as error:
            logger.error("ignoring the settings of %s: %s; delete /config/%s", path[:_SHOWN], error, path[:_SHOWN])
            return
        quotas, ignored = parse_quotas(config)
        if ignored:
            text = "%s: ignoring %s, which must be a positive number; set it again or delete it"
            logger.error(text, path[:_SHOWN], ", ".join(ignored))
        # A change of a password alone must not make all connections look up their limits again.
        if quotas or self._quotas.quotas_of(entity):
            self._quotas.replace_entity(entity, quotas)
            self._on_quotas()
        # Credentials belong to a user, not to one of its client ids.
        if entity.user and entity.client_id == "":
            self._on_user_config(entity.user, config)


def canonical_address(text: str) -> str:
    """The usual text of an IP address; an IPv4 address that is mapped to IPv6 becomes IPv4. Raises ValueError."""
    found = ipaddress.ip_address(text.partition("%")[0])
    return str(getattr(found, "ipv4_mapped", None) or found)
