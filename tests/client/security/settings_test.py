"""The settings of TLS and SASL: invalid ones are refused, and secrets are not shown.

Zone: pure.
"""

from __future__ import annotations

import pytest

from ottla.client import ClientConfig, ConfigError, ConsumerConfig, ProducerConfig
from ottla.client.security.settings import SECURITY_KEYS, Token, parse_jaas

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SASL = {"security.protocol": "SASL_SSL"}


def test_a_login_module_and_its_options():
    text = PLAIN + ' required username="alice" password="a \\"b\\"; c=d" serviceName=x;'
    assert parse_jaas(text) == {"username": "alice", "password": 'a "b"; c=d', "serviceName": "x"}


@pytest.mark.parametrize("words", ["", " maybe a=b;", ' required username="a', " required secret;"])
def test_an_invalid_jaas_config_is_refused_without_quoting_it(words: str):
    with pytest.raises(ConfigError) as caught:
        parse_jaas(PLAIN + words)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"security.protocol": "TELNET"}, "PLAINTEXT, SSL"),
        ({"ssl.truststore.type": "JKS"}, "keytool"),
        ({"ssl.endpoint.identification.algorithm": "ldap"}, "https"),
        ({"security.protocol": "SSL", "ssl.enabled.protocols": "TLSv1"}, "TLSv1.2"),
        ({"security.protocol": "SSL", "ssl.keystore.key": "k"}, "belong together"),
        (SASL, "GSSAPI"),
        ({**SASL, "sasl.mechanism": "DIGEST-MD5"}, "SCRAM-SHA-256"),
        ({**SASL, "sasl.mechanism": "PLAIN", "sasl.username": "a"}, "user name and a password"),
        ({**SASL, "sasl.mechanism": "OAUTHBEARER"}, "source of tokens"),
        ({**SASL, "sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.endpoint.url": "https://h"}, "client id"),
        ({**SASL, "sasl.mechanism": "OAUTHBEARER", "sasl.login.callback.handler.class": "a.b.C"}, "function"),
        ({"sasl.password": 5}, "not text"),
        ({"sasl.mechanisms": "PLAIN"}, "sasl.mechanism"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, object], text: str):
    for kind in (ClientConfig, ProducerConfig, ConsumerConfig):
        with pytest.raises(ConfigError, match=text):
            kind.from_mapping(settings)


def test_a_password_shows_nowhere():
    settings = {**SASL, "sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password": "hidden"}
    for kind in (ClientConfig, ProducerConfig, ConsumerConfig):
        assert "hidden" not in repr(kind.from_mapping(settings))
    assert "sasl.password" in SECURITY_KEYS


def test_a_function_gives_tokens_to_every_client():
    def token() -> Token:
        return Token("t")

    settings = {**SASL, "sasl.mechanism": "OAUTHBEARER", "sasl.login.callback.handler.class": token}
    for config in (
        ClientConfig.from_mapping(settings),
        ProducerConfig.from_mapping(settings).client,
        ConsumerConfig.from_mapping(settings).client,
    ):
        assert config.security.sasl_login_callback_handler_class is token
        assert config.security.tls
