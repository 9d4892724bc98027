"""The settings of the listeners with SASL: those of the broker, replaced by those of the listener and its mechanism.

Zone: pure. A key with the prefix `listener.name.<listener>.` replaces that of the broker for one listener; with
`listener.name.<listener>.<mechanism>.` for one mechanism of it. Both names are in lower case, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from ottla.config.broker_sasl import SaslConfig
from ottla.config.jaas import JaasEntry, parse_entry
from ottla.config.rows import ConfigError, Row, parse_value, rows_of
from ottla.types import Endpoint

FRAME_MAX: Final = 65_536
"""Largest frame before a login is complete, unless a bearer token is expected."""
PREFIX: Final = "listener.name."
SASL_PROTOCOLS: Final = ("SASL_PLAINTEXT", "SASL_SSL")
PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, OAUTHBEARER = "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"
SCRAM: Final = (SCRAM_SHA_256, SCRAM_SHA_512)
MECHANISMS: Final = (PLAIN, *SCRAM, OAUTHBEARER)
_MODULES: Final = {
    PLAIN: "PlainLoginModule",
    SCRAM_SHA_256: "ScramLoginModule",
    SCRAM_SHA_512: "ScramLoginModule",
    OAUTHBEARER: "OAuthBearerLoginModule",
}
_UNSECURED, _SECURED = "OAuthBearerUnsecuredValidatorCallbackHandler", "OAuthBearerValidatorCallbackHandler"
_ROWS: Final[Mapping[str, Row]] = {row.name: row for row in rows_of(SaslConfig)}
_BY_LISTENER: Final = frozenset(
    name for name in _ROWS if name.startswith("sasl.") or name == "connections.max.reauth.ms"
)
"""Keys that one listener may have for itself."""
_USER_OPTION: Final = "user_"


class BearerSettings(NamedTuple):
    """Which bearer tokens a listener accepts."""

    is_unsecured: bool
    """Tokens without a signature: everyone who can connect can be anyone."""
    jwks_url: str
    refresh_ms: int
    backoff_ms: int
    backoff_max_ms: int
    audiences: frozenset[str]
    issuer: str | None
    clock_skew_s: int
    scope_claim: str
    subject_claim: str
    required_scopes: frozenset[str]


class SaslListener(NamedTuple):
    """The settings of one listener."""

    name: str
    mechanisms: tuple[str, ...]
    max_receive_size: int
    reauth_ms: Mapping[str, int]
    """By mechanism; 0: unlimited."""
    entries: Mapping[str, JaasEntry]
    """The login modules by mechanism."""
    bearer: BearerSettings | None
    """None: OAUTHBEARER is not enabled."""

    @property
    def first_frame_max(self) -> int:
        """The largest frame of a connection that has not begun to log in."""
        return min(FRAME_MAX, self.max_receive_size)

    @property
    def users(self) -> dict[str, str]:
        """The passwords of the users of PLAIN."""
        options = self.entries[PLAIN].options if PLAIN in self.entries else {}
        begin = len(_USER_OPTION)
        return {name[begin:]: value for name, value in options.items() if name.startswith(_USER_OPTION)}


def is_listener_key(name: str) -> bool:
    """Whether a key is one of a listener about SASL: a known key, with a prefix."""
    return name.startswith(PREFIX) and any(name.endswith(f".{each}") for each in _BY_LISTENER)


def sasl_listeners(
    config: SaslConfig, endpoints: Iterable[Endpoint], own: Mapping[str, str]
) -> dict[str, SaslListener]:
    """The settings of all listeners with SASL, by name. `own`: the keys with a prefix. Raises ConfigError."""
    return {
        endpoint.listener: _Reader(config, endpoint.listener, own).read_listener()
        for endpoint in endpoints
        if endpoint.protocol in SASL_PROTOCOLS
    }


def credential_of_broker(config: SaslConfig, listener: SaslListener) -> tuple[str, str, str]:
    """Mechanism, user and password by which this broker logs in to others at that listener. Raises ConfigError."""
    mechanism = config.sasl_mechanism_inter_broker_protocol
    if mechanism not in (PLAIN, *SCRAM):
        raise ConfigError(
            "sasl.mechanism.inter.broker.protocol", f"{mechanism[:80]!r} is not one of {', '.join((PLAIN, *SCRAM))}"
        )
    if mechanism not in listener.mechanisms:
        raise ConfigError("sasl.mechanism.inter.broker.protocol", f"{mechanism} is not in sasl.enabled.mechanisms")
    entry = listener.entries.get(mechanism)
    options = entry.options if entry is not None else {}
    if not options.get("username") or not options.get("password"):
        raise ConfigError(
            f"{PREFIX}{listener.name.lower()}.{mechanism.lower()}.sasl.jaas.config",
            "needs username and password, by which this broker logs in to others",
        )
    return mechanism, options["username"], options["password"]


class _Reader:
    """Reads the settings of one listener."""

    def __init__(self, config: SaslConfig, listener: str, own: Mapping[str, str]) -> None:
        self._config = config
        self._listener = listener
        self._own = own

    def read_listener(self) -> SaslListener:
        """All settings. Raises ConfigError."""
        config = self._config
        mechanisms: tuple[str, ...] = self._value_of("sasl.enabled.mechanisms", config.sasl_enabled_mechanisms)
        unknown = [each for each in mechanisms if each not in MECHANISMS]
        if unknown or not mechanisms:
            raise ConfigError(
                "sasl.enabled.mechanisms",
                f"listener {self._listener} needs some of {', '.join(MECHANISMS)}, not {unknown[0][:80]!r}"
                if unknown
                else f"listener {self._listener} has none",
            )
        entries = {each: entry for each in mechanisms if (entry := self._entry_of(each)) is not None}
        size: int = self._value_of("sasl.server.max.receive.size", config.sasl_server_max_receive_size)
        of_broker = config.connections_max_reauth_ms
        reauth = {each: self._value_of("connections.max.reauth.ms", of_broker, each) for each in mechanisms}
        return SaslListener(
            self._listener,
            mechanisms,
            size,
            reauth,
            entries,
            self._read_bearer(entries.get(OAUTHBEARER)) if OAUTHBEARER in mechanisms else None,
        )

    def _value_of(self, name: str, of_broker: Any, mechanism: str = "") -> Any:
        """The value of a key: that of the mechanism, else of the listener, else of the broker. Raises ConfigError."""
        prefix = f"{PREFIX}{self._listener.lower()}."
        row = _ROWS[name]
        for full in ([f"{prefix}{mechanism.lower()}.{name}"] if mechanism else []) + [prefix + name]:
            if full in self._own:
                text = self._own[full]
                # An empty text removes the broker's value for this listener, if the key may be unset.
                return None if row.default is None and not text.strip() else parse_value(row._replace(name=full), text)
        return of_broker

    def _entry_of(self, mechanism: str) -> JaasEntry | None:
        name = f"{PREFIX}{self._listener.lower()}.{mechanism.lower()}.sasl.jaas.config"
        text = self._own.get(name)
        if text is None:
            return None
        try:
            entry = parse_entry(text)
        except ValueError as error:
            raise ConfigError(name, str(error)) from None
        if entry.module != _MODULES[mechanism]:
            raise ConfigError(name, f"{mechanism} needs the module {_MODULES[mechanism]}, not {entry.module[:80]!r}")
        return entry

    def _read_bearer(self, entry: JaasEntry | None) -> BearerSettings:
        key, of_broker = "sasl.server.callback.handler.class", self._config.sasl_server_callback_handler_class
        handler = str(self._value_of(key, of_broker, OAUTHBEARER) or _SECURED)
        word = handler.rpartition(".")[2]
        if word not in (_UNSECURED, _SECURED):
            raise ConfigError(key, f"{handler[:80]!r} is not supported; use {_SECURED} or {_UNSECURED}")
        settings = self._bearer_settings()
        if word == _UNSECURED:
            return _unsecured_settings(settings, entry.options if entry is not None else {})
        if not settings.jwks_url.startswith(("https://", "http://", "file:/")):
            raise ConfigError(
                "sasl.oauthbearer.jwks.endpoint.url",
                f"listener {self._listener} needs the https:, http: or file: URL of the keys of signed tokens; "
                f"tokens without a signature are only accepted with {key}={_UNSECURED}",
            )
        return settings

    def _bearer_settings(self) -> BearerSettings:
        def value(name: str, of_broker: Any) -> Any:
            return self._value_of(f"sasl.oauthbearer.{name}", of_broker, OAUTHBEARER)

        config = self._config
        return BearerSettings(
            is_unsecured=False,
            jwks_url=value("jwks.endpoint.url", config.sasl_oauthbearer_jwks_endpoint_url) or "",
            refresh_ms=value("jwks.endpoint.refresh.ms", config.sasl_oauthbearer_jwks_endpoint_refresh_ms),
            backoff_ms=value("jwks.endpoint.retry.backoff.ms", config.sasl_oauthbearer_jwks_endpoint_retry_backoff_ms),
            backoff_max_ms=value(
                "jwks.endpoint.retry.backoff.max.ms", config.sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms
            ),
            audiences=frozenset(value("expected.audience", config.sasl_oauthbearer_expected_audience) or ()),
            issuer=value("expected.issuer", config.sasl_oauthbearer_expected_issuer),
            clock_skew_s=value("clock.skew.seconds", config.sasl_oauthbearer_clock_skew_seconds),
            scope_claim=value("scope.claim.name", config.sasl_oauthbearer_scope_claim_name),
            subject_claim=value("sub.claim.name", config.sasl_oauthbearer_sub_claim_name),
            required_scopes=frozenset(),
        )


def _unsecured_settings(settings: BearerSettings, options: Mapping[str, str]) -> BearerSettings:
    """The settings with the options of Kafka's class for tokens without a signature. Raises ConfigError."""
    begin = "unsecuredValidator"
    return settings._replace(
        is_unsecured=True,
        subject_claim=options.get(f"{begin}PrincipalClaimName", settings.subject_claim),
        scope_claim=options.get(f"{begin}ScopeClaimName", settings.scope_claim),
        clock_skew_s=_skew_of(options.get(f"{begin}AllowableClockSkewMs"), settings.clock_skew_s),
        required_scopes=frozenset(options.get(f"{begin}RequiredScope", "").split()),
    )


def _skew_of(text: str | None, default: int) -> int:
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ConfigError("sasl.jaas.config", "unsecuredValidatorAllowableClockSkewMs is not a number")
    # Rounded up to seconds, so that a skew below one second does not become 0.
    return -(-int(text) // 1000)
