"""Keys of logins by SASL: one row per key.

Zone: pure. Rows only: names, types, defaults and checks are Kafka's. `sasl_listeners` reads them for each listener.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ottla.config.broker_authorizer import AuthorizerConfig
from ottla.config.rows import LOW, Type, at_least, between, key

_LATER: Final = "0.2.0"


@dataclass(init=False, repr=False, eq=False, frozen=True, slots=True)
class SaslConfig(AuthorizerConfig):
    """Keys of logins. Sizes in bytes; times in the unit of the key's last word."""

    sasl_enabled_mechanisms: tuple[str, ...] = key(
        "sasl.enabled.mechanisms",
        Type.LIST,
        ("GSSAPI",),
        "Mechanisms of the SASL listeners: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER. GSSAPI is not supported.",
        since=_LATER,
    )
    sasl_mechanism_inter_broker_protocol: str = key(
        "sasl.mechanism.inter.broker.protocol",
        Type.STRING,
        "GSSAPI",
        "Mechanism by which this broker logs in to others: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512.",
        since=_LATER,
    )
    sasl_jaas_config: str | None = key(
        "sasl.jaas.config",
        Type.PASSWORD,
        None,
        "Login module of one mechanism of one listener, with its users and this broker's own user; written as "
        "listener.name.LISTENER.MECHANISM.sasl.jaas.config, in lower case.",
        since=_LATER,
    )
    sasl_server_callback_handler_class: str | None = key(
        "sasl.server.callback.handler.class",
        Type.CLASS,
        None,
        "For OAUTHBEARER: OAuthBearerUnsecuredValidatorCallbackHandler accepts tokens without a signature, "
        "OAuthBearerValidatorCallbackHandler those whose signature is right. Other classes are not supported.",
        since=_LATER,
    )
    sasl_server_max_receive_size: int = key(
        "sasl.server.max.receive.size",
        Type.INT,
        524_288,
        "Largest request before the login is complete; without a bearer token 65536 is the limit.",
        at_least(1),
        since=_LATER,
    )
    connection_failed_authentication_delay_ms: int = key(
        "connection.failed.authentication.delay.ms",
        Type.INT,
        100,
        "Delay before a failed login is answered and its connection closed; also where a listener requires a "
        "certificate and the client has none that is accepted. Apache Kafka closes those at once, and a client of "
        "TLS 1.3, which sends its first request before it knows, may see a reset instead of the reason.",
        at_least(0),
        importance=LOW,
    )
    connections_max_reauth_ms: int = key(
        "connections.max.reauth.ms",
        Type.LONG,
        0,
        "Lifetime of a login, after which the client has to log in again; 0 is unlimited.",
    )
    ottla_sasl_users_file: str | None = key(
        "ottla.sasl.users.file",
        Type.STRING,
        None,
        "File with users of this broker, as properties: user=password, or user=SCRAM-SHA-256=[salt=…,stored_key=…,"
        "server_key=…,iterations=…]. Only the broker's user should be able to read it. Not a key of Kafka.",
        since=_LATER,
    )
    sasl_oauthbearer_jwks_endpoint_url: str | None = key(
        "sasl.oauthbearer.jwks.endpoint.url",
        Type.STRING,
        None,
        "Where the keys of signed tokens are: an https:, http: or file: URL.",
        since=_LATER,
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = key(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        Type.LONG,
        3_600_000,
        "Interval at which the keys are read again.",
        at_least(1),
        importance=LOW,
        since=_LATER,
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: int = key(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
        Type.LONG,
        100,
        "First delay before the keys are read again after a failure.",
        at_least(1),
        importance=LOW,
        since=_LATER,
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: int = key(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
        Type.LONG,
        10_000,
        "Longest delay before the keys are read again after a failure.",
        at_least(1),
        importance=LOW,
        since=_LATER,
    )
    sasl_oauthbearer_expected_audience: tuple[str, ...] | None = key(
        "sasl.oauthbearer.expected.audience",
        Type.LIST,
        None,
        "Audiences of which a token has to name one; without any a token that names an audience is refused.",
        importance=LOW,
        since=_LATER,
    )
    sasl_oauthbearer_expected_issuer: str | None = key(
        "sasl.oauthbearer.expected.issuer",
        Type.STRING,
        None,
        "Issuer of accepted tokens.",
        importance=LOW,
        since=_LATER,
    )
    sasl_oauthbearer_clock_skew_seconds: int = key(
        "sasl.oauthbearer.clock.skew.seconds",
        Type.INT,
        30,
        "Difference of clocks that is tolerated when the times of a token are checked.",
        between(0, 86_400),
        importance=LOW,
        since=_LATER,
    )
    sasl_oauthbearer_scope_claim_name: str = key(
        "sasl.oauthbearer.scope.claim.name",
        Type.STRING,
        "scope",
        "Claim with the scopes.",
        importance=LOW,
        since=_LATER,
    )
    sasl_oauthbearer_sub_claim_name: str = key(
        "sasl.oauthbearer.sub.claim.name", Type.STRING, "sub", "Claim with the user.", importance=LOW, since=_LATER
    )
    delegation_token_secret_key: str | None = key(
        "delegation.token.secret.key",
        Type.PASSWORD,
        None,
        "Key from which all brokers compute delegation tokens, the same on each; without it there are no tokens.",
        since=_LATER,
        synonyms=("delegation.token.master.key",),
    )
    delegation_token_max_lifetime_ms: int = key(
        "delegation.token.max.lifetime.ms",
        Type.LONG,
        604_800_000,
        "Longest lifetime of a delegation token, with all renewals.",
        at_least(1),
        since=_LATER,
    )
    delegation_token_expiry_time_ms: int = key(
        "delegation.token.expiry.time.ms",
        Type.LONG,
        86_400_000,
        "Time after which a delegation token has to be renewed.",
        at_least(1),
        since=_LATER,
    )
    delegation_token_expiry_check_interval_ms: int = key(
        "delegation.token.expiry.check.interval.ms",
        Type.LONG,
        3_600_000,
        "Interval at which delegation tokens that have expired are removed.",
        at_least(1),
        importance=LOW,
        since=_LATER,
    )
