"""Kafka's nodes of the settings of users, client ids and addresses: quotas, and the credentials of users for SCRAM.

Zone: pure. Paths only; the content is that of all settings (`ottla.cluster.store.layout.encode_config`). The layout is
that of Apache Kafka 3.9:

1. `/config/users/<user>`, with quotas of the user and SCRAM credentials.
2. `/config/clients/<client id>`.
3. `/config/users/<user>/clients/<client id>`.
4. `/config/ips/<address>`.

A name is URL-encoded, because it may contain a slash. `<default>` is the name for all entities without settings of
their own. A notification under `/config/changes` names the entity by the path after `/config/`.
"""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import quote, unquote

USER_CONFIGS: Final = "/config/users"
CLIENT_CONFIGS: Final = "/config/clients"
IP_CONFIGS: Final = "/config/ips"
DEFAULT: Final = "<default>"
NAME_MAX: Final = 1_000
"""Longest encoded name, so that two of them and their parents are a path of the embedded store."""


class Entity(NamedTuple):
    """A user, a client id, a client id of a user, or an address. "" is not given; None: the default of the kind."""

    user: str | None = ""
    client_id: str | None = ""
    ip: str | None = ""


def encode_name(name: str | None) -> str:
    """The name of a node for the name of an entity; None: the default."""
    if name is None:
        return DEFAULT
    # As Java's URLEncoder with Kafka's changes: everything is encoded but letters, digits and ". - _".
    return quote(name, safe="", errors="replace").replace("~", "%7E")


def decode_name(name: str) -> str | None:
    """The name of the entity for the name of a node; None: the default."""
    return None if name == DEFAULT else unquote(name.replace("+", " "))


def fault_of_entity_name(name: str) -> str:
    """Why an entity of this name cannot be stored; empty if it can be."""
    if name in ("", ".", ".."):
        return f"{name!r} cannot be the name of an entity"
    return "the name is too long" if len(encode_name(name)) > NAME_MAX else ""


def entity_path(entity: Entity) -> str:
    """Path of the settings of an entity. Raises ValueError for combinations that Kafka does not have."""
    return f"/config/{change_path(entity)}"


def change_path(entity: Entity) -> str:
    """The entity in a notification. Raises ValueError for combinations that Kafka does not have."""
    user, client_id, ip = entity
    if ip != "":
        if user != "" or client_id != "":
            raise ValueError("an address is not combined with a user or a client id")
        return f"ips/{encode_name(ip)}"
    if user == "" and client_id == "":
        raise ValueError("the entity is empty")
    parts = [] if user == "" else [f"users/{encode_name(user)}"]
    if client_id != "":
        parts.append(f"clients/{encode_name(client_id)}")
    return "/".join(parts)


def decode_change_path(path: str) -> Entity:
    """The entity that a notification names. Raises ValueError for other kinds (topics, brokers) and broken ones."""
    match path.split("/"):
        case ["users", user] if user:
            return Entity(user=decode_name(user))
        case ["clients", client_id] if client_id:
            return Entity(client_id=decode_name(client_id))
        case ["users", user, "clients", client_id] if user and client_id:
            return Entity(user=decode_name(user), client_id=decode_name(client_id))
        case ["ips", ip] if ip:
            return Entity(ip=decode_name(ip))
        case _:
            raise ValueError(f"{path[:100]!r} is neither a user nor a client id nor an address")
