"""Broker configuration: parsing, warnings, errors, and values that depend on several keys.

Zone: real.
"""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ottla
from ottla.client.errors import ConfigError as ClientConfigError
from ottla.client.settings import ClientConfig
from ottla.config.broker import BROKER_ROWS, BrokerConfig, parse_zookeeper, shown_settings
from ottla.config.names import (
    OLD_BROKER_NAMES,
    OLD_CLIENT_NAMES,
    RETIRED_BROKER_NAMES,
    RETIRED_CLIENT_NAMES,
    unsupported_reason,
)
from ottla.config.rows import ConfigError, Type, list_word, parse_value, render_value, split_list
from ottla.config.topic import TOPIC_ROWS, TopicConfig
from ottla.types import Endpoint

OLD_NAMES = """
transactional.id.timeout.ms → transactional.id.expiration.ms
max.transaction.timeout.ms → transaction.max.timeout.ms
max.message.size → message.max.bytes
request.required.acks → acks
metadata.broker.list → bootstrap.servers
"""
"""Renamed keys."""

DEFAULTS = """
replica.lag.time.max.ms 30000
unclean.leader.election.enable false
message.max.bytes 1048588
offsets.retention.minutes 10080
transaction.state.log.replication.factor 3
transaction.state.log.num.partitions 50
transaction.state.log.min.isr 2
transaction.state.log.segment.bytes 104857600
offsets.topic.replication.factor 3
offsets.topic.num.partitions 50
transactional.id.expiration.ms 604800000
transaction.max.timeout.ms 900000
replica.fetch.wait.max.ms 500
log.retention.hours 168
log.roll.hours 168
log.segment.bytes 1073741824
log.index.size.max.bytes 10485760
"""
"""Documented defaults."""


def read(**properties: str) -> tuple[BrokerConfig, list[str]]:
    return BrokerConfig.from_properties({name.replace("_", "."): text for name, text in properties.items()})


def test_the_default_configuration_is_valid_and_has_kafkas_topic_defaults():
    config, warnings = BrokerConfig.from_properties({})
    assert config == BrokerConfig()
    assert warnings == []
    assert config.topic_defaults == TopicConfig()


def test_every_key_has_an_attribute_and_a_text_that_is_parsed_back():
    assert len(BROKER_ROWS) >= 150
    for rows, config in ((BROKER_ROWS, BrokerConfig()), (TOPIC_ROWS, TopicConfig())):
        for name, row in rows.items():
            assert name == row.name
            value = getattr(config, row.attribute)
            assert value == row.default
            assert row.doc.endswith(".")
            if value is not None:
                assert parse_value(row, render_value(value)) == value


def test_every_synonym_of_a_topic_key_is_a_broker_key():
    for row in TOPIC_ROWS.values():
        for name in row.synonyms:
            assert name in BROKER_ROWS


def test_defaults_are_the_documented_ones():
    texts = shown_settings(BrokerConfig())
    for line in DEFAULTS.split("\n")[1:-1]:
        name, value = line.split()
        assert texts[name] == value, name


def test_old_names_are_accepted_with_one_warning():
    promised = dict(line.split(" → ") for line in OLD_NAMES.split("\n")[1:-1])
    assert promised == {**OLD_BROKER_NAMES, **OLD_CLIENT_NAMES}
    for old, new in OLD_BROKER_NAMES.items():
        config, warnings = BrokerConfig.from_properties({old: "77777"})
        assert shown_settings(config)[new] == "77777"
        assert warnings == [f"{old} is an old name of {new}"]
        config, _ = BrokerConfig.from_properties({old: "77777", new: "88888"})
        assert shown_settings(config)[new] == "88888"


def test_the_message_count_rule_is_unsupported_with_a_reason():
    _, warnings = BrokerConfig.from_properties({"replica.lag.max.messages": "4000"})
    assert len(warnings) == 1
    assert "burst" in warnings[0]


def test_an_unknown_key_names_the_nearest_one():
    _, warnings = BrokerConfig.from_properties({"num.partitons": "3", "zzzzzzz": "1"})
    assert "did you mean 'num.partitions'?" in warnings[0]
    assert warnings[1] == "unknown configuration 'zzzzzzz'; ignored"


def test_an_unknown_topic_key_names_the_nearest_one():
    with pytest.raises(ConfigError, match=r"retention\.mss: .* did you mean 'retention\.ms'\?"):
        TopicConfig().with_overrides({"retention.mss": "1"})
    with pytest.raises(ConfigError, match=r"zzzzzzz: is not a configuration of a topic$"):
        TopicConfig().with_overrides({"zzzzzzz": "1"})


@pytest.mark.parametrize(
    "name",
    ["process.roles", "controller.quorum.voters", "sasl.kerberos.service.name", "sasl.login.class",
     "listener.name.internal.log.dirs", "remote.log.storage.system.enable"],
)  # fmt: skip
def test_a_known_but_unsupported_key_gets_one_clear_line(name):
    _, warnings = BrokerConfig.from_properties({name: "x"})
    assert len(warnings) == 1
    assert warnings[0].startswith(f"{name}: ")
    assert unsupported_reason(name) in warnings[0]


def test_settings_of_the_java_machine_are_ignored_without_a_warning():
    assert read(auto_include_jmx_reporter="true", kafka_metrics_reporters="x")[1] == []


def test_retention_takes_ms_over_minutes_over_hours():
    assert read(log_retention_hours="2")[0].topic_defaults.retention_ms == 7_200_000
    assert read(log_retention_hours="2", log_retention_minutes="3")[0].topic_defaults.retention_ms == 180_000
    both = read(log_retention_hours="2", log_retention_minutes="3", log_retention_ms="5")
    assert both[0].topic_defaults.retention_ms == 5
    assert read(log_retention_ms="-1")[0].topic_defaults.retention_ms == -1
    assert read(log_retention_hours="-1")[0].topic_defaults.retention_ms == -1


def test_rolling_and_flushing_have_the_same_precedence():
    assert read(log_roll_hours="2")[0].topic_defaults.segment_ms == 7_200_000
    assert read(log_roll_hours="2", log_roll_ms="9")[0].topic_defaults.segment_ms == 9
    assert read(log_roll_jitter_hours="1")[0].topic_defaults.segment_jitter_ms == 3_600_000
    assert read(log_flush_scheduler_interval_ms="7")[0].topic_defaults.flush_ms == 7
    assert read(log_flush_scheduler_interval_ms="7", log_flush_interval_ms="8")[0].topic_defaults.flush_ms == 8


def test_broker_id_and_log_dir_are_aliases():
    assert read(broker_id="7")[0].node_id == 7
    assert read(broker_id="-1")[0].node_id == 1
    assert read(log_dir="/a")[0].log_dirs == ("/a",)
    assert read(log_dir="/a", log_dirs="/b, /c")[0].log_dirs == ("/b", "/c")
    with pytest.raises(ConfigError, match=r"node\.id is 2"):
        read(broker_id="1", node_id="2")


def test_listeners_become_endpoints():
    config, _ = read(
        listeners="INTERNAL://:9093,EXTERNAL://[::1]:9094",
        advertised_listeners="EXTERNAL://kafka.example:19094,INTERNAL://host:*",
        listener_security_protocol_map="INTERNAL:PLAINTEXT,EXTERNAL:PLAINTEXT",
        inter_broker_listener_name="INTERNAL",
    )
    assert config.endpoints == (Endpoint("INTERNAL", "", 9093), Endpoint("EXTERNAL", "::1", 9094))
    assert config.advertised_endpoints == (
        Endpoint("EXTERNAL", "kafka.example", 19094),
        Endpoint("INTERNAL", "host", -1),
    )
    assert config.inter_broker_listener == "INTERNAL"
    assert BrokerConfig().inter_broker_listener == "PLAINTEXT"
    assert BrokerConfig().advertised_endpoints is None


@pytest.mark.parametrize(
    ("properties", "key"),
    [
        ({"num.partitions": "0"}, "num.partitions"),
        ({"num.partitions": "many"}, "num.partitions"),
        ({"num.partitions": "99999999999"}, "num.partitions"),
        ({"num.partitions": "٣"}, "num.partitions"),
        ({"num.partitions": ""}, "num.partitions"),
        ({"auto.create.topics.enable": "yes"}, "auto.create.topics.enable"),
        ({"log.cleaner.min.cleanable.ratio": "nan"}, "log.cleaner.min.cleanable.ratio"),
        ({"log.cleaner.min.cleanable.ratio": "1.5"}, "log.cleaner.min.cleanable.ratio"),
        ({"log.cleanup.policy": "shred"}, "log.cleanup.policy"),
        ({"log.cleanup.policy": "delete,delete"}, "log.cleanup.policy"),
        ({"compression.type": "lzma"}, "compression.type"),
        ({"log.message.timestamp.type": "createtime"}, "log.message.timestamp.type"),
        ({"listeners": "nonsense"}, "listeners"),
        ({"listeners": "PLAINTEXT://:99999"}, "listeners"),
        ({"listeners": "PLAINTEXT://:1,PLAINTEXT://:2"}, "listeners"),
        ({"listeners": ""}, "listeners"),
        ({"listeners": "SSL://:9093"}, "ssl.keystore.location"),
        ({"listeners": "SSL://:9093", "ssl.keystore.location": "s", "ssl.keystore.key": "k"}, "ssl.keystore.key"),
        ({"listeners": "SSL://:9093", "ssl.keystore.location": "s", "ssl.client.auth": "required"}, "ssl.client.auth"),
        ({"listeners": "SSL://:9093", "ssl.keystore.location": "s", "listener.name.ssl.ssl.client.auth": "requested"},
         "listener.name.ssl.ssl.client.auth"),
        ({"listener.name.ssl.ssl.client.auth": "perhaps"}, "listener.name.ssl.ssl.client.auth"),
        ({"listeners": "SSL://:9093", "ssl.keystore.type": "JKS"}, "ssl.keystore.type"),
        ({"ssl.enabled.protocols": ""}, "ssl.enabled.protocols"),
        ({"ssl.enabled.protocols": "TLSv1.1"}, "ssl.enabled.protocols"),
        ({"security.inter.broker.protocol": "SSL"}, "security.inter.broker.protocol"),
        ({"security.inter.broker.protocol": "PLAINTEXT", "inter.broker.listener.name": "PLAINTEXT"},
         "security.inter.broker.protocol"),
        ({"listeners": "INSIDE://:9093"}, "listeners"),
        ({"listener.security.protocol.map": "A:TELNET"}, "listener.security.protocol.map"),
        ({"advertised.listeners": "OTHER://h:1", "listener.security.protocol.map": "OTHER:PLAINTEXT"},
         "advertised.listeners"),
        ({"advertised.listeners": "PLAINTEXT://0.0.0.0:1"}, "advertised.listeners"),
        ({"inter.broker.listener.name": "NONE"}, "inter.broker.listener.name"),
        ({"log.dirs": "/a,/a"}, "log.dirs"),
        ({"log.dirs": "/a,,/b"}, "log.dirs"),
        ({"log.dirs": ""}, "log.dirs"),
        ({"zookeeper.session.timeout.ms": "10"}, "zookeeper.session.timeout.ms"),
        ({"zookeeper.set.acl": "true"}, "zookeeper.set.acl"),
        ({"ottla.zookeeper.digest": "secret"}, "ottla.zookeeper.digest"),
        ({"ottla.http.basic.auth": "secret"}, "ottla.http.basic.auth"),
        ({"group.min.session.timeout.ms": "9", "group.max.session.timeout.ms": "8"}, "group.min.session.timeout.ms"),
    ],
)  # fmt: skip
def test_an_invalid_value_raises_an_error_with_its_key(properties, key):
    with pytest.raises(ConfigError) as error:
        BrokerConfig.from_properties(properties)
    assert error.value.key == key
    assert str(error.value).startswith(f"{key}: ")


@pytest.mark.parametrize(
    ("text", "servers", "chroot"),
    [
        ("localhost", ("localhost:2181",), ""),
        ("h1:1, h2:2,h3/a/b", ("h1:1", "h2:2", "h3:2181"), "/a/b"),
        ("h1:1/", ("h1:1",), ""),
        ("[::1]:3,[fe80::1]/a/", ("[::1]:3", "[fe80::1]:2181"), "/a"),
    ],
)
def test_zookeeper_connect_is_servers_and_a_path(text, servers, chroot):
    assert parse_zookeeper(text) == (servers, chroot)
    assert BrokerConfig.from_properties({"zookeeper.connect": text})[0].zookeeper_connect == text


@pytest.mark.parametrize(
    "text", ["h:x", "h:", ":1", "h1,,h2", "h:99999", "::1", "a b:1", "me@h:1", "h:1//a", "h:1/../a"]
)
def test_an_invalid_zookeeper_connect_is_refused(text):
    with pytest.raises(ConfigError, match=r"zookeeper\.connect"):
        BrokerConfig.from_properties({"zookeeper.connect": text})


def test_an_empty_text_means_absent():
    assert read(broker_rack="")[0].broker_rack is None
    assert read(log_retention_ms="")[0].topic_defaults.retention_ms == 604_800_000


def test_a_topics_own_settings_override_the_brokers():
    defaults = read(log_retention_ms="5", log_segment_bytes="1000")[0].topic_defaults
    config = defaults.with_overrides({"retention.ms": "9", "cleanup.policy": "compact, delete"})
    assert (config.retention_ms, config.segment_bytes) == (9, 1000)
    assert config.compact
    assert config.delete
    assert not TopicConfig().compact


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        ({"retention.seconds": "1"}, "retention.seconds"),
        ({"log.retention.ms": "1"}, "log.retention.ms"),
        ({"min.insync.replicas": "0"}, "min.insync.replicas"),
        ({"remote.storage.enable": "true"}, "remote.storage.enable"),
        ({"compression.gzip.level": "0"}, "compression.gzip.level"),
        ({"leader.replication.throttled.replicas": "1-2"}, "leader.replication.throttled.replicas"),
        ({"min.compaction.lag.ms": "9", "max.compaction.lag.ms": "8"}, "min.compaction.lag.ms"),
    ],
)
def test_a_topic_refuses_invalid_settings(overrides, key):
    with pytest.raises(ConfigError) as error:
        TopicConfig().with_overrides(overrides)
    assert error.value.key == key


@pytest.mark.parametrize(
    ("version", "magic"),
    [
        *(("0.8.2", 0), ("0.9.0", 0), ("0.9.0.1", 0), ("0.10.0-IV0", 1), ("0.10.2.2", 1)),
        *(("0.11.0-IV0", 2), ("1.0", 2), ("2.8", 2), ("3.0-IV1", 2), ("10.0", 2)),
    ],
)
def test_the_message_format_of_a_version(version, magic):
    assert TopicConfig().with_overrides({"message.format.version": version}).message_magic == magic


@pytest.mark.parametrize("version", ["", "0", "1.x", "0.10.0-", "v2", "0.10.0 IV1", "\u0661.0"])
def test_an_invalid_version_is_refused_as_message_format(version):
    with pytest.raises(ConfigError, match=r"message\.format\.version"):
        TopicConfig().with_overrides({"message.format.version": version})


def test_the_older_timestamp_key_replaces_defaults_of_the_newer_ones():
    difference = {"message.timestamp.difference.max.ms": "5"}
    assert TopicConfig().timestamp_bounds == (2**63 - 1, 3_600_000)
    assert TopicConfig().with_overrides(difference).timestamp_bounds == (5, 5)
    before, after = ({f"message.timestamp.{side}.max.ms": "7"} for side in ("before", "after"))
    assert TopicConfig().with_overrides(difference | before).timestamp_bounds == (7, 5)
    assert TopicConfig().with_overrides(difference | after).timestamp_bounds == (5, 7)
    broker, _ = BrokerConfig.from_properties({"log.message.timestamp.difference.max.ms": "5"})
    assert broker.topic_defaults.timestamp_bounds == (5, 5)


def test_throttles_accept_kafkas_formats():
    for text in ("*", "", "0:1,1:2"):
        TopicConfig().with_overrides({"follower.replication.throttled.replicas": text})


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from(sorted(BROKER_ROWS)), st.text(max_size=20), max_size=5))
def test_any_text_is_a_configuration_or_a_named_error(properties):
    refused = ""
    try:
        config, _ = BrokerConfig.from_properties(properties)
    except ConfigError as error:
        refused = error.key
    if refused:
        assert refused in BROKER_ROWS
    else:
        assert set(config.given) == set(properties)
        assert BrokerConfig.from_properties(config.given)[0] == config


def test_no_password_is_shown():
    assert all(
        row.type is not Type.PASSWORD or shown_settings(BrokerConfig())[row.name] is None
        for row in BROKER_ROWS.values()
    )


def test_names_of_kafkas_first_versions_name_their_replacements():
    _, warnings = BrokerConfig.from_properties(dict.fromkeys(RETIRED_BROKER_NAMES, "1"))
    assert len(warnings) == len(RETIRED_BROKER_NAMES)
    for name, today in RETIRED_BROKER_NAMES.items():
        assert any(line.startswith(f"{name}: ") and today in line for line in warnings)
        assert name not in BROKER_ROWS
        assert today in BROKER_ROWS or today.removesuffix(" of the topic") in TOPIC_ROWS


def test_names_of_kafkas_first_clients_name_their_replacements():
    for name, today in RETIRED_CLIENT_NAMES.items():
        with pytest.raises(ClientConfigError) as refused:
            ClientConfig.from_mapping({name: "1"})
        assert today in str(refused.value)


def attributes_read(wanted: set[str]) -> set[str]:
    """Those of the names that are attributes which the code reads outside the declarations of the rows."""
    found = set()
    read = re.compile(rf"\.\s*({'|'.join(sorted(wanted))})\b")
    for path in Path(ottla.__file__).parent.rglob("*.py"):
        text = path.read_text()
        # Only a file with such text is parsed; the text alone may be a comment.
        if (not path.name.startswith("broker_") or path.parent.name != "config") and not found.issuperset(
            read.findall(text)
        ):
            found |= {node.attr for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)} & wanted
    return found


def test_the_defaults_of_topics_are_derived_once():
    """Each topic of a request for the controller asks for them."""
    config, _ = BrokerConfig.from_properties({"log.retention.ms": "5"})
    assert config.topic_defaults is config.topic_defaults
    assert replace(config, log_retention_ms=6).topic_defaults.retention_ms == 6


def test_only_keys_that_no_code_reads_are_marked_unused():
    """`topic_defaults` reads the keys of topics' defaults through the synonyms of the topic keys."""
    read = attributes_read({row.attribute for row in (*BROKER_ROWS.values(), *TOPIC_ROWS.values())})
    defaults = {name for row in TOPIC_ROWS.values() for name in row.synonyms if not row.unused}
    for row in BROKER_ROWS.values():
        assert (row.attribute in read or row.name in defaults) != bool(row.unused), row.name
    for row in TOPIC_ROWS.values():
        assert (row.attribute in read) != bool(row.unused), row.name


def test_a_set_key_without_effect_gives_a_warning_at_the_start():
    unused = [row for row in BROKER_ROWS.values() if row.unused]
    assert len(unused) > 30
    for row in unused:
        _, warnings = BrokerConfig.from_properties({row.name: render_value(row.default) or ""})
        assert warnings == [f"{row.name} has no effect: {row.unused}"]


@pytest.mark.parametrize("word", ["a,b", " a", "a ", "a\\", "\\,", "a\\\\b", " ,\\ ", "plain", "C:\\data"])
def test_a_word_of_a_list_keeps_escaped_commas_and_blanks(word):
    assert split_list(f"{list_word(word)},next") == (word, "next")
    config, _ = BrokerConfig.from_properties({"log.dirs": list_word(word)})
    assert config.log_dirs == (word,)
    assert parse_value(BROKER_ROWS["log.dirs"], render_value(config.log_dirs) or "") == (word,)


SECURE = {
    "listeners": "PLAINTEXT://:9092,INSIDE://:9093,OUTSIDE://:9094",
    "listener.security.protocol.map": "INSIDE:SSL,OUTSIDE:SSL",
    "ssl.keystore.location": "/all.pem",
    "ssl.truststore.location": "/ca.pem",
    "listener.name.inside.ssl.keystore.location": "/inside.pem",
    "listener.name.inside.ssl.client.auth": "required",
    "listener.name.inside.ssl.key.password": "hidden",
}


def test_a_listener_may_have_its_own_settings():
    config, warnings = BrokerConfig.from_properties(SECURE)
    assert warnings == []
    assert [endpoint.protocol for endpoint in config.endpoints] == ["PLAINTEXT", "SSL", "SSL"]
    inside, outside = config.at_listener("INSIDE"), config.at_listener("OUTSIDE")
    assert (inside.ssl_keystore_location, inside.ssl_client_auth) == ("/inside.pem", "required")
    assert (outside.ssl_keystore_location, outside.ssl_client_auth) == ("/all.pem", "none")
    assert inside.ssl_truststore_location == outside.ssl_truststore_location == "/ca.pem"
    assert inside.ssl_key_password == "hidden"
    assert outside.ssl_key_password is None


def test_a_mechanism_of_a_listener_has_the_nearest_value():
    name = "listener.name.inside"
    config, _ = BrokerConfig.from_properties(
        {
            "connections.max.reauth.ms": "1",
            f"{name}.connections.max.reauth.ms": "2",
            f"{name}.scram-sha-256.connections.max.reauth.ms": "3",
        }
    )
    assert config.connections_max_reauth_ms == config.at_listener("OTHER", "PLAIN").connections_max_reauth_ms == 1
    assert config.at_listener("INSIDE").connections_max_reauth_ms == 2
    assert config.at_listener("INSIDE", "PLAIN").connections_max_reauth_ms == 2
    assert config.at_listener("INSIDE", "SCRAM-SHA-256").connections_max_reauth_ms == 3


def test_listeners_with_sasl_request_certificates_only_by_a_key_of_their_own():
    endpoint = Endpoint("DOOR", "", 9094, "SASL_SSL")
    assert BrokerConfig(ssl_client_auth="required").client_auth_at(endpoint) == "none"
    config, _ = BrokerConfig.from_properties({"listener.name.door.ssl.client.auth": "requested"})
    assert config.client_auth_at(endpoint) == "requested"
    assert config.client_auth_at(endpoint._replace(listener="OTHER")) == "none"


def test_a_store_of_java_is_refused_with_the_commands_that_convert_it():
    with pytest.raises(ConfigError, match=r"JKS is not supported at listener SSL; use PEM: convert .* openssl pkcs12"):
        read(listeners="SSL://:9093", ssl_truststore_type="JKS")


def test_the_listener_between_brokers_is_found_by_its_protocol():
    settings = SECURE | {"security.inter.broker.protocol": "SSL"}
    assert BrokerConfig.from_properties(settings)[0].inter_broker_listener == "INSIDE"
    settings = SECURE | {"inter.broker.listener.name": "outside"}
    assert BrokerConfig.from_properties(settings)[0].inter_broker_listener == "OUTSIDE"
