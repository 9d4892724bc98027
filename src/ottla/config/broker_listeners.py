"""Keys of TLS, of single listeners and of the HTTP listener: one row per key.

Zone: pure. Rows, and the names of keys of one listener (`listener.name.<listener>.<key>`). Names and defaults are
Kafka's, except that stores are PEM files (KIP-651): Java's stores are refused with the commands that convert them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from ottla.config.broker_sasl import SaslConfig
from ottla.config.rows import HIGH, LOW, PER_BROKER, Check, Row, Type, key, one_of, subset_of

LISTENER_PREFIX: Final = "listener.name."
MECHANISMS: Final = ("plain", "scram-sha-256", "scram-sha-512", "oauthbearer", "gssapi")
"""SASL mechanisms, as they may precede a key of a listener: `listener.name.<listener>.<mechanism>.<key>`."""
_PER_LISTENER: Final = frozenset(
    {
        "connections.max.reauth.ms",
        "max.connections",
        "max.connection.creation.rate",
    }
)
CONVERT: Final = (
    "convert a store of Java with: keytool -importkeystore -srckeystore STORE -destkeystore STORE.p12 "
    "-deststoretype PKCS12 && openssl pkcs12 -in STORE.p12 -nodes -out STORE.pem"
)
"""The commands that make a PEM file from a store of Java."""
_JAVA: Final = "Python's TLS is used, which has no providers and algorithms to choose from"
_VERSIONS: Final = ("TLSv1.2", "TLSv1.3")


class ListenerKey(NamedTuple):
    """The parts of `listener.name.<listener>.<mechanism>.<key>`."""

    listener: str
    """In upper case, as in `listeners`."""
    mechanism: str
    """In lower case; empty for most keys."""
    key: str


def parse_listener_key(name: str) -> ListenerKey | None:
    """The parts of a name with the prefix of a listener; None for other names."""
    if not name.startswith(LISTENER_PREFIX):
        return None
    listener, _, rest = name[len(LISTENER_PREFIX) :].partition(".")
    mechanism, _, short = rest.partition(".")
    if mechanism in MECHANISMS:
        return ListenerKey(listener.upper(), mechanism, short)
    return ListenerKey(listener.upper(), "", rest)


def is_per_listener(row: Row) -> bool:
    """Whether a listener may have a value of its own for this key."""
    return row.name.startswith(("ssl.", "sasl.")) or row.name in _PER_LISTENER


@dataclass(init=False, repr=False, eq=False, frozen=True, slots=True)
class ListenerConfig(SaslConfig):
    """Keys of TLS. `listener.name.<listener>.<key>` overrides `<key>` for one listener."""

    ssl_keystore_type: str = key(
        "ssl.keystore.type",
        Type.STRING,
        "PEM",
        "Format of the broker's key and certificates. Kafka's default is JKS, which is not supported.",
        dynamic=PER_BROKER,
    )
    ssl_keystore_location: str | None = key(
        "ssl.keystore.location",
        Type.STRING,
        None,
        "PEM file with the broker's private key and its certificate chain; read again when it changes.",
        importance=HIGH,
        dynamic=PER_BROKER,
    )
    ssl_keystore_certificate_chain: str | None = key(
        "ssl.keystore.certificate.chain",
        Type.PASSWORD,
        None,
        "The broker's certificate chain as the text of a PEM file; needs ssl.keystore.key.",
        dynamic=PER_BROKER,
    )
    ssl_keystore_key: str | None = key(
        "ssl.keystore.key",
        Type.PASSWORD,
        None,
        "The broker's private key as the text of a PEM file.",
        dynamic=PER_BROKER,
    )
    ssl_key_password: str | None = key(
        "ssl.key.password", Type.PASSWORD, None, "Password of the private key.", importance=HIGH, dynamic=PER_BROKER
    )
    ssl_keystore_password: str | None = key(
        "ssl.keystore.password",
        Type.PASSWORD,
        None,
        "Password of a store of Java.",
        importance=HIGH,
        dynamic=PER_BROKER,
        unused="a PEM file has no password; that of an encrypted private key is ssl.key.password",
    )
    ssl_truststore_type: str = key(
        "ssl.truststore.type",
        Type.STRING,
        "PEM",
        "Format of the trusted certificates. Kafka's default is JKS, which is not supported.",
        dynamic=PER_BROKER,
    )
    ssl_truststore_location: str | None = key(
        "ssl.truststore.location",
        Type.STRING,
        None,
        "PEM file with the certificates of the authorities that are trusted; read again when it changes.",
        importance=HIGH,
        dynamic=PER_BROKER,
    )
    ssl_truststore_certificates: str | None = key(
        "ssl.truststore.certificates",
        Type.PASSWORD,
        None,
        "The certificates of the authorities that are trusted, as the text of a PEM file.",
        dynamic=PER_BROKER,
    )
    ssl_truststore_password: str | None = key(
        "ssl.truststore.password",
        Type.PASSWORD,
        None,
        "Password of a store of Java.",
        importance=HIGH,
        dynamic=PER_BROKER,
        unused="a PEM file has no password",
    )
    ssl_client_auth: str = key(
        "ssl.client.auth",
        Type.STRING,
        "none",
        "Whether clients are requested or required to have a certificate. On a SASL_SSL listener only a value of that "
        "listener counts.",
        one_of("required", "requested", "none"),
        dynamic=PER_BROKER,
    )
    ssl_enabled_protocols: tuple[str, ...] = key(
        "ssl.enabled.protocols",
        Type.LIST,
        _VERSIONS,
        "Versions of TLS that may be used.",
        Check(
            "a list of TLSv1.2 and TLSv1.3, not empty", lambda value: bool(value) and subset_of(*_VERSIONS).holds(value)
        ),
        dynamic=PER_BROKER,
    )
    ssl_protocol: str = key(
        "ssl.protocol",
        Type.STRING,
        "TLSv1.3",
        "Java's context of TLS.",
        one_of("TLSv1.3", "TLSv1.2", "TLS"),
        dynamic=PER_BROKER,
        unused="ssl.enabled.protocols decides which versions may be used",
    )
    ssl_cipher_suites: tuple[str, ...] = key(
        "ssl.cipher.suites",
        Type.LIST,
        (),
        "Cipher suites that may be used, by the names of IANA or OpenSSL; empty: OpenSSL's choice.",
        dynamic=PER_BROKER,
    )
    ssl_endpoint_identification_algorithm: str = key(
        "ssl.endpoint.identification.algorithm",
        Type.STRING,
        "https",
        "https: connections to other brokers require a certificate for the host of the connection. Empty: any trusted "
        "certificate.",
        one_of("https", ""),
        importance=LOW,
        dynamic=PER_BROKER,
    )
    ssl_principal_mapping_rules: str = key(
        "ssl.principal.mapping.rules",
        Type.STRING,
        "DEFAULT",
        "Rules that map the distinguished name of a client's certificate to the name of its principal: DEFAULT, or "
        "RULE:pattern/replacement/[LU].",
        importance=LOW,
    )
    ssl_allow_dn_changes: bool = key(
        "ssl.allow.dn.changes",
        Type.BOOLEAN,
        False,
        "Whether a certificate that is read while the broker runs may have another distinguished name.",
        importance=LOW,
    )
    ssl_allow_san_changes: bool = key(
        "ssl.allow.san.changes",
        Type.BOOLEAN,
        False,
        "Whether a certificate that is read while the broker runs may lack alternative names of the present one.",
        importance=LOW,
    )
    ssl_provider: str | None = key(
        "ssl.provider", Type.STRING, None, "Java's provider of TLS.", dynamic=PER_BROKER, unused=_JAVA
    )
    ssl_keymanager_algorithm: str = key(
        "ssl.keymanager.algorithm",
        Type.STRING,
        "SunX509",
        "Java's algorithm for keys.",
        dynamic=PER_BROKER,
        unused=_JAVA,
    )
    ssl_trustmanager_algorithm: str = key(
        "ssl.trustmanager.algorithm",
        Type.STRING,
        "PKIX",
        "Java's algorithm for trusted certificates.",
        dynamic=PER_BROKER,
        unused=_JAVA,
    )
    ssl_secure_random_implementation: str | None = key(
        "ssl.secure.random.implementation",
        Type.STRING,
        None,
        "Java's source of random numbers.",
        importance=LOW,
        dynamic=PER_BROKER,
        unused=_JAVA,
    )
    ssl_engine_factory_class: str | None = key(
        "ssl.engine.factory.class",
        Type.CLASS,
        None,
        "Java class that makes TLS engines.",
        importance=LOW,
        dynamic=PER_BROKER,
        unused="Java classes cannot be loaded",
    )
    ottla_http_listener: str | None = key(
        "ottla.http.listener",
        Type.STRING,
        None,
        "host:port of the pages /metrics and /health over HTTP; none when it is not set. Not a key of Kafka.",
    )
    ottla_http_ssl_keystore_location: str | None = key(
        "ottla.http.ssl.keystore.location",
        Type.STRING,
        None,
        "PEM file with a private key and its certificate chain: the pages are served over HTTPS, and only so. Read "
        "again when it changes. Not a key of Kafka.",
    )
    ottla_http_ssl_key_password: str | None = key(
        "ottla.http.ssl.key.password",
        Type.PASSWORD,
        None,
        "Password of the private key in ottla.http.ssl.keystore.location. Not a key of Kafka.",
    )
    ottla_http_ssl_truststore_location: str | None = key(
        "ottla.http.ssl.truststore.location",
        Type.STRING,
        None,
        "PEM file with the certificates of the authorities whose clients may read the pages; read again when it "
        "changes. Not a key of Kafka.",
    )
    ottla_http_ssl_client_auth: str = key(
        "ottla.http.ssl.client.auth",
        Type.STRING,
        "none",
        "Whether clients of the pages are requested or required to have a certificate, as ssl.client.auth. A password "
        "or token that is set is required as well. Not a key of Kafka.",
        one_of("required", "requested", "none"),
    )
    ottla_http_basic_auth: str | None = key(
        "ottla.http.basic.auth",
        Type.PASSWORD,
        None,
        "user:password that a request for a page has to contain (HTTP basic authentication). Not a key of Kafka.",
    )
    ottla_http_bearer_token: str | None = key(
        "ottla.http.bearer.token",
        Type.PASSWORD,
        None,
        "Token that a request for a page has to contain (Authorization: Bearer). With ottla.http.basic.auth either is "
        "accepted. Not a key of Kafka.",
    )
