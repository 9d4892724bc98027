"""The settings of listeners with SASL: prefixes, login modules, and what is refused.

Zone: pure.
"""

from __future__ import annotations

import pytest

from ottla.config.broker import BrokerConfig, shown_settings
from ottla.config.jaas import parse_entry
from ottla.config.rows import ConfigError

PLAIN_LINE = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required"
    ' username="admin" password="admin;secret" user_admin="admin;secret" user_ann=\'a "quoted" one\';'
)
SCRAM_LINE = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="admin" password="s3cret";'
BEARER_LINE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
UNSECURED = (
    "org.apache.kafka.common.security.oauthbearer.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
)
BASE = {
    "listeners": "PLAINTEXT://:9092,CLIENT://:9093",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENT:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    "listener.name.client.plain.sasl.jaas.config": PLAIN_LINE,
}

OWN = {"sasl.mechanism.inter.broker.protocol": "PLAIN", "inter.broker.listener.name": "CLIENT"}


def listener_of(**more: str):
    config, warnings = BrokerConfig.from_properties({**BASE, **more})
    assert warnings == []
    return config.sasl_listeners["CLIENT"]


def test_users_of_a_login_module() -> None:
    found = listener_of()
    assert found.mechanisms == ("PLAIN", "SCRAM-SHA-256")
    assert found.users == {"admin": "admin;secret", "ann": 'a "quoted" one'}
    assert "secret" not in repr(found)


def test_keys_of_a_listener_and_of_a_mechanism_replace_those_of_the_broker() -> None:
    found = listener_of(
        **{
            "connections.max.reauth.ms": "1000",
            "listener.name.client.connections.max.reauth.ms": "2000",
            "listener.name.client.scram-sha-256.connections.max.reauth.ms": "3000",
            "listener.name.other.connections.max.reauth.ms": "4000",
            "sasl.server.max.receive.size": "1000",
            "listener.name.client.sasl.server.max.receive.size": "2000",
        }
    )
    assert found.reauth_ms == {"PLAIN": 2000, "SCRAM-SHA-256": 3000}
    assert found.max_receive_size == 2000


def test_only_listeners_with_sasl_have_settings() -> None:
    assert list(BrokerConfig.from_properties(BASE)[0].sasl_listeners) == ["CLIENT"]
    assert BrokerConfig().sasl_listeners == {}


def test_settings_of_bearer_tokens() -> None:
    found = listener_of(
        **{
            "listener.name.client.sasl.enabled.mechanisms": "OAUTHBEARER",
            "sasl.oauthbearer.jwks.endpoint.url": "https://issuer/keys",
            "listener.name.client.sasl.oauthbearer.expected.audience": "a, b",
            "listener.name.client.oauthbearer.sasl.oauthbearer.sub.claim.name": "email",
        }
    ).bearer
    assert found is not None
    assert not found.is_unsecured
    assert (found.jwks_url, found.audiences) == ("https://issuer/keys", {"a", "b"})
    assert (found.subject_claim, found.scope_claim, found.issuer) == ("email", "scope", None)


def test_unsecured_tokens_are_allowed_by_the_name_of_kafkas_class() -> None:
    found = listener_of(
        **{
            "listener.name.client.sasl.enabled.mechanisms": "OAUTHBEARER",
            "listener.name.client.oauthbearer.sasl.server.callback.handler.class": UNSECURED,
            "listener.name.client.oauthbearer.sasl.jaas.config": BEARER_LINE
            + ' unsecuredValidatorPrincipalClaimName="user" unsecuredValidatorAllowableClockSkewMs="2500"'
            ' unsecuredValidatorRequiredScope="read write";',
        }
    ).bearer
    assert found is not None
    assert (found.is_unsecured, found.subject_claim, found.clock_skew_s) == (True, "user", 3)
    assert found.required_scopes == {"read", "write"}


@pytest.mark.parametrize(
    ("more", "key", "text"),
    [
        ({"sasl.enabled.mechanisms": ""}, "sasl.enabled.mechanisms", "has none"),
        ({"sasl.enabled.mechanisms": "GSSAPI"}, "sasl.enabled.mechanisms", "'GSSAPI'"),
        ({"sasl.enabled.mechanisms": "plain"}, "sasl.enabled.mechanisms", "'plain'"),
        ({"listener.name.client.plain.sasl.jaas.config": SCRAM_LINE}, "plain.sasl.jaas.config", "PlainLoginModule"),
        ({"listener.name.client.plain.sasl.jaas.config": "x required y"}, "plain.sasl.jaas.config", "without '='"),
        ({"listener.name.client.plain.sasl.jaas.config": "pass'"}, "plain.sasl.jaas.config", "cannot be read"),
        ({"sasl.server.max.receive.size": "0"}, "sasl.server.max.receive.size", "at least 1"),
        ({"listener.name.client.connections.max.reauth.ms": "x"}, "client.connections.max.reauth.ms", "integer"),
        ({"sasl.enabled.mechanisms": "OAUTHBEARER"}, "jwks.endpoint.url", "URL"),
        (
            {"sasl.enabled.mechanisms": "OAUTHBEARER", "sasl.server.callback.handler.class": "my.Handler"},
            "sasl.server.callback.handler.class",
            "not supported",
        ),
        (
            {**OWN, "listener.name.client.plain.sasl.jaas.config": 'x.PlainLoginModule required user_a="b";'},
            "plain.sasl.jaas.config",
            "user",
        ),
        ({**OWN, "sasl.mechanism.inter.broker.protocol": "GSSAPI"}, "inter.broker.protocol", "not one of"),
        ({**OWN, "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512"}, "inter.broker.protocol", "enabled"),
    ],
)
def test_what_cannot_work_is_refused_at_the_start(more: dict[str, str], key: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text) as refused:
        BrokerConfig.from_properties({**BASE, **more})
    assert key in str(refused.value)
    assert "secret" not in str(refused.value)


def test_plain_needs_users() -> None:
    without = {name: text for name, text in BASE.items() if "jaas" not in name}
    with pytest.raises(ConfigError, match="without users"):
        BrokerConfig.from_properties(without)
    BrokerConfig.from_properties({**without, "ottla.sasl.users.file": "users.properties"})


def test_the_credential_for_other_brokers() -> None:
    config, _ = BrokerConfig.from_properties({**BASE, **OWN})
    assert config.inter_broker_credential == ("PLAIN", "admin", "admin;secret")
    assert BrokerConfig.from_properties(BASE)[0].inter_broker_credential is None, "that listener has no SASL"


def test_a_login_module_without_a_prefix_has_no_effect() -> None:
    config, warnings = BrokerConfig.from_properties({"sasl.jaas.config": PLAIN_LINE})
    assert len(warnings) == 1
    assert "prefix" in warnings[0]
    assert "secret" not in warnings[0]
    assert shown_settings(config)["sasl.jaas.config"] is None


@pytest.mark.parametrize("text", ["", "Module", "Module needed a=b", "Module required a", "Module required =b", 'M "'])
def test_texts_that_are_not_a_login_module(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not|has an|cannot"):
        parse_entry(text)
