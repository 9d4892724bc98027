"""The settings of TLS and SASL: Kafka's keys and defaults, and the checks between them.

Zone: pure. `tls` reads the files, `tokens` fetches the tokens. Secret values do not appear in a repr or an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ottla.client.errors import ConfigError
from ottla.client.setting_values import check_settings, join_words, parse_setting
from ottla.config.jaas import parse_entry
from ottla.config.options import FUNCTION, LIST, PASSWORD, TEXT, Option, option, options_of

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
TLS_VERSIONS: Final = ("TLSv1.2", "TLSv1.3")
_JAAS_EXAMPLE: Final = (
    'Write org.apache.kafka.common.security.plain.PlainLoginModule required username="…" password="…";'
    " or set sasl.username and sasl.password"
)


class Token(NamedTuple):
    """A bearer token for OAUTHBEARER."""

    value: str
    expires_at: float = float("inf")
    """Unix time in seconds; a new token is requested before that."""
    extensions: Mapping[str, str] | None = None
    """SASL extensions (KIP-342)."""


TokenProvider = Callable[[], Token]
"""Called by the thread that connects, when it needs a token and has no valid one."""


@dataclass(frozen=True, slots=True)
class SecurityConfig:
    """How connections are protected. Files are PEM; Java's stores are refused with an error that names them.

    Source: the documentation of Kafka's client configuration; KIP-651 (PEM), KIP-768 (OAUTHBEARER with a token
    endpoint). `sasl.username` and `sasl.password` are librdkafka's names, for users without a JAAS line.
    """

    security_protocol: str = option(
        "security.protocol",
        TEXT,
        "PLAINTEXT",
        "How connections are protected: `SSL` is TLS, the two with `SASL` begin with a login.",
        PROTOCOLS,
    )
    ssl_truststore_location: str = option(
        "ssl.truststore.location",
        TEXT,
        "",
        "A PEM file with the trusted certificates; without it and `ssl.truststore.certificates`: those of the system.",
    )
    ssl_truststore_certificates: str = option(
        "ssl.truststore.certificates", TEXT, "", "The trusted certificates themselves, as the text of a PEM file."
    )
    ssl_truststore_type: str = option(
        "ssl.truststore.type",
        TEXT,
        "PEM",
        "The format of the trusted certificates.",
        unused="`PEM` is the only format; a store of Java is an error",
    )
    ssl_keystore_location: str = option(
        "ssl.keystore.location",
        TEXT,
        "",
        "A PEM file with the client's private key and certificate chain, for brokers that request one "
        "(`ssl.client.auth`).",
    )
    ssl_keystore_certificate_chain: str = option(
        "ssl.keystore.certificate.chain",
        TEXT,
        "",
        "The client's certificate chain as the text of a PEM file; needs `ssl.keystore.key`.",
    )
    ssl_keystore_key: str = option(
        "ssl.keystore.key", PASSWORD, "", "The client's private key as the text of a PEM file."
    )
    ssl_keystore_type: str = option(
        "ssl.keystore.type",
        TEXT,
        "PEM",
        "The format of the client's key and certificates.",
        unused="`PEM` is the only format; a store of Java is an error",
    )
    ssl_key_password: str = option("ssl.key.password", PASSWORD, "", "The password of the private key.")
    ssl_endpoint_identification_algorithm: str = option(
        "ssl.endpoint.identification.algorithm",
        TEXT,
        "https",
        "`https`: the certificate must be for the host of the connection. Empty: any trusted certificate will do.",
    )
    ssl_enabled_protocols: str = option(
        "ssl.enabled.protocols", LIST, "TLSv1.2,TLSv1.3", "The versions of TLS that may be used."
    )
    sasl_mechanism: str = option(
        "sasl.mechanism",
        TEXT,
        "GSSAPI",
        "The kind of login: `PLAIN`, `SCRAM-SHA-256`, `SCRAM-SHA-512` or `OAUTHBEARER`. Kafka's default, Kerberos, is "
        "not supported.",
    )
    sasl_jaas_config: str = option(
        "sasl.jaas.config",
        PASSWORD,
        "",
        'The login as in Java: `org.apache.kafka.common.security.plain.PlainLoginModule required username="…" '
        'password="…";`; with `tokenauth="true"` these are the id and the HMAC of a delegation token.',
    )
    sasl_username: str = option(
        "sasl.username", TEXT, "", "The user name (librdkafka's key), in place of `sasl.jaas.config`."
    )
    sasl_password: str = option(
        "sasl.password", PASSWORD, "", "The password (librdkafka's key), in place of `sasl.jaas.config`."
    )
    sasl_oauthbearer_token_endpoint_url: str = option(
        "sasl.oauthbearer.token.endpoint.url", TEXT, "", "Where tokens are requested with the client's credentials."
    )
    sasl_oauthbearer_client_credentials_client_id: str = option(
        "sasl.oauthbearer.client.credentials.client.id",
        TEXT,
        "",
        "The client id for the token endpoint, or `clientId` in `sasl.jaas.config`.",
    )
    sasl_oauthbearer_client_credentials_client_secret: str = option(
        "sasl.oauthbearer.client.credentials.client.secret",
        PASSWORD,
        "",
        "The client secret for the token endpoint, or `clientSecret` in `sasl.jaas.config`.",
    )
    sasl_oauthbearer_scope: str = option(
        "sasl.oauthbearer.scope", TEXT, "", "The scope of the requested tokens, or `scope` in `sasl.jaas.config`."
    )
    sasl_login_callback_handler_class: TokenProvider | None = option(
        "sasl.login.callback.handler.class",
        FUNCTION,
        None,
        "A function that returns an `ottla.client.Token`, where Java takes the name of a class.",
    )

    def __post_init__(self) -> None:
        self._check_choices()
        if self.tls:
            _check_known("ssl.enabled.protocols", self.tls_versions, TLS_VERSIONS)
            if bool(self.ssl_keystore_key) != bool(self.ssl_keystore_certificate_chain):
                raise ConfigError("ssl.keystore.key and ssl.keystore.certificate.chain belong together", "Set both")
        if self.sasl:
            self._check_sasl()

    def _check_choices(self) -> None:
        check_settings(SECURITY_OPTIONS, self)
        for name in ("ssl_truststore_type", "ssl_keystore_type"):
            if getattr(self, name) != "PEM":
                raise ConfigError(
                    f"{name.replace('_', '.')}={getattr(self, name)} is not supported",
                    "Use PEM; keytool -importkeystore … -deststoretype PKCS12, then openssl pkcs12 -nodes, convert one",
                )
        if self.ssl_endpoint_identification_algorithm not in ("https", ""):
            raise ConfigError(
                "ssl.endpoint.identification.algorithm is neither https nor empty", "Use https, or leave it empty"
            )

    def _check_sasl(self) -> None:
        if self.sasl_mechanism == "GSSAPI":
            raise ConfigError(
                "sasl.mechanism=GSSAPI (Kerberos) is not supported", f"Set one of {', '.join(MECHANISMS)}"
            )
        _check_known("sasl.mechanism", [self.sasl_mechanism], MECHANISMS)
        if self.sasl_mechanism == "OAUTHBEARER":
            self._check_oauth()
        elif not all(self.login):
            raise ConfigError(
                f"sasl.mechanism={self.sasl_mechanism} needs a user name and a password",
                "Set sasl.jaas.config, or sasl.username and sasl.password",
            )

    def _check_oauth(self) -> None:
        if self.sasl_login_callback_handler_class is not None:
            if not callable(self.sasl_login_callback_handler_class):
                raise ConfigError(
                    "sasl.login.callback.handler.class is not a function", "Give a function that returns a Token"
                )
        elif self.sasl_oauthbearer_token_endpoint_url:
            if not all(self.client_credentials[:2]):
                raise ConfigError(
                    "sasl.oauthbearer.token.endpoint.url needs a client id and a secret",
                    "Set sasl.oauthbearer.client.credentials.client.id and ….client.secret, or clientId and"
                    " clientSecret in sasl.jaas.config",
                )
        elif not self.unsecured_subject:
            raise ConfigError(
                "sasl.mechanism=OAUTHBEARER has no source of tokens",
                "Set sasl.oauthbearer.token.endpoint.url, or a function as sasl.login.callback.handler.class",
            )

    @property
    def tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.security_protocol.endswith("SSL")

    @property
    def sasl(self) -> bool:
        """Whether connections begin with SASL."""
        return self.security_protocol.startswith("SASL")

    @property
    def tls_versions(self) -> list[str]:
        """The versions of TLS that may be used."""
        return [each.strip() for each in self.ssl_enabled_protocols.split(",")]

    @property
    def jaas(self) -> dict[str, str]:
        """The options of `sasl.jaas.config`. Raises ConfigError."""
        return parse_jaas(self.sasl_jaas_config) if self.sasl_jaas_config else {}

    @property
    def login(self) -> tuple[str, str]:
        """(user name, password)"""
        options = self.jaas
        return self.sasl_username or options.get("username", ""), self.sasl_password or options.get("password", "")

    @property
    def client_credentials(self) -> tuple[str, str, str]:
        """(client id, client secret, scope) for the token endpoint."""
        options = self.jaas
        return (
            self.sasl_oauthbearer_client_credentials_client_id or options.get("clientId", ""),
            self.sasl_oauthbearer_client_credentials_client_secret or options.get("clientSecret", ""),
            self.sasl_oauthbearer_scope or options.get("scope", ""),
        )

    @property
    def unsecured_subject(self) -> str:
        """The subject of tokens without a signature, for development (KIP-255)."""
        return self.jaas.get("unsecuredLoginStringClaim_sub", "")

    @classmethod
    def from_mapping(cls, settings: Mapping[str, Any]) -> SecurityConfig:
        """The configuration for settings by Kafka's keys, all from `SECURITY_KEYS`. Raises ConfigError."""
        values: dict[str, Any] = {}
        for key, raw in settings.items():
            row = SECURITY_OPTIONS[key]
            if raw is not None:
                # A handler is checked only if it is used, as the other keys of OAUTHBEARER.
                value = raw if row.type is FUNCTION else join_words(parse_setting(row, raw, strict=True))
                values[row.attribute] = value
        if "security_protocol" in values:
            values["security_protocol"] = values["security_protocol"].upper()
        return cls(**values)


def parse_jaas(text: str) -> dict[str, str]:
    """The options of `MODULE required key="value" …;` by name.

    Raises ConfigError, which does not quote the text, because it contains a password.
    """
    try:
        return parse_entry(text).options
    except ValueError as error:
        raise ConfigError(f"sasl.jaas.config {error}", _JAAS_EXAMPLE) from None


def _check_known(key: str, values: list[str], allowed: tuple[str, ...]) -> None:
    unknown = [value for value in values if value not in allowed]
    if unknown:
        raise ConfigError(f"{key}={unknown[0]} is not known", f"Use one of {', '.join(allowed)}")


SECURITY_OPTIONS: Final[Mapping[str, Option]] = options_of(SecurityConfig)
"""The rows of `SecurityConfig` by key."""
SECURITY_KEYS: Final = frozenset(SECURITY_OPTIONS)
