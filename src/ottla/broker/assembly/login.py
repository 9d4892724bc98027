"""Logins of clients and of other brokers.

Zone: deterministic. Construction only; `ottla.security` decides.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ottla.config.broker import BrokerConfig
from ottla.purgatory.purgatory import Purgatory
from ottla.seams import Failure, Kind, World
from ottla.security.broker_login import BrokerLogin
from ottla.security.broker_proof import MECHANISM
from ottla.security.client_login import ClientLogin, ListenerLogin
from ottla.security.sasl.mechanisms import Mechanisms
from ottla.security.sasl.session import SaslSettings
from ottla.security.sasl.users import FileUsers, SaslUsers
from ottla.security.tokens.token_table import TokenTable

_RANDOM: Final = 32


class LoginWing(NamedTuple):
    """The logins, and the users that can log in."""

    clients: ClientLogin
    users: SaslUsers
    tokens: TokenTable | None
    """Delegation tokens; None without `delegation.token.secret.key`."""


def new_users(config: BrokerConfig, world: World) -> SaslUsers:
    """Create the table of users. Raises Failure when the file of users cannot be used."""
    # A restart changes the salts of unknown users, unless the brokers share a secret.
    decoy_key = world.broker_secret or world.entropy.random_bytes("decoys", _RANDOM)
    return SaslUsers(decoy_key, _users_of_file(config, world))


def build_login(config: BrokerConfig, world: World, purgatory: Purgatory, users: SaslUsers) -> LoginWing:
    """Create the objects. A listener with SASL also accepts the mechanism of brokers that share a secret.

    Raises Failure when nothing checks the signatures of bearer tokens.
    """
    brokers = BrokerLogin(world.broker_secret, world.entropy, world.network) if world.broker_secret else None
    secret_key = config.delegation_token_secret_key
    tokens = TokenTable(secret_key, world.entropy) if secret_key else None
    listeners: dict[str, ListenerLogin] = {}
    for name, listener in config.sasl_listeners.items():
        names = (*listener.mechanisms, MECHANISM) if brokers is not None else listener.mechanisms
        if listener.bearer is not None and not listener.bearer.is_unsecured and name not in world.token_signatures:
            text = f"listener {name}: nothing checks the signatures of bearer tokens"
            raise Failure(Kind.NOT_DONE, text)
        settings = SaslSettings(names, listener.max_receive_size, listener.reauth_ms)
        mechanisms = Mechanisms(listener, users, world.entropy, world.token_signatures.get(name), brokers, tokens)
        listeners[name] = ListenerLogin(settings, mechanisms.start_exchange)
    delay_ms = config.connection_failed_authentication_delay_ms
    return LoginWing(ClientLogin(listeners, world.clock, world.network, purgatory, delay_ms, brokers), users, tokens)


def _users_of_file(config: BrokerConfig, world: World) -> FileUsers:
    try:
        return FileUsers(world.sasl_users, world.entropy.random_bytes("salts", _RANDOM) if world.sasl_users else b"")
    except ValueError as error:
        raise Failure(Kind.NOT_DONE, f"ottla.sasl.users.file {config.ottla_sasl_users_file}: {error}") from None
