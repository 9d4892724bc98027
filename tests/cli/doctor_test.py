"""`ottla doctor`: settings that are wrong, addresses that speak another protocol, clusters that are not well."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import trustme
from tests.client.conftest import ScriptedBroker

from ottla.cli.diagnosis.address_check import check_addresses
from ottla.cli.diagnosis.cluster_check import check_versions, clock_findings, disk_findings, limit_findings
from ottla.client import ClientConfig, ConfigEntry, ConfigSource, LogDir, RefusedError
from ottla.client.connections.address import Address
from ottla.client.connections.broker_probes import BrokerProbe, ClusterProbe
from ottla.client.metadata import EMPTY
from ottla.errors import ErrorCode
from ottla.server.embedded import EmbeddedBroker
from ottla.types import TopicPartition
from ottla.wire.apis import ApiKey

Found = list[tuple[str, str, str]]


@pytest.fixture
def examine(ottla) -> Callable[..., tuple[int, list[dict[str, str]]]]:
    """Runs `ottla doctor WORDS…`: the exit code and the findings."""

    def run(*words: str) -> tuple[int, list[dict[str, str]]]:
        result = ottla("doctor", *words, "-o", "json")
        found = json.loads(result.stdout)
        assert all(bool(each["next_step"]) is (each["level"] != "ok") for each in found), "each has a next step"
        assert (result.exit_code == 1) is any(each["level"] == "error" for each in found)
        return result.exit_code, found

    return run


@pytest.fixture
def scripted() -> Iterator[ScriptedBroker]:
    """A scripted broker."""
    broker = ScriptedBroker()
    yield broker
    broker.close()


@pytest.fixture
def web_server() -> Iterator[str]:
    """The address of a web server."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: Any) -> None:
            """Clients of other protocols end their connections early."""

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def sasl_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker that wants a login."""
    users = tmp_path_factory.mktemp("users") / "users"
    users.write_text("boss=secret\n")
    users.chmod(0o600)
    config = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        "ottla.sasl.users.file": str(users),
        "connection.failed.authentication.delay.ms": "1",
    }
    with EmbeddedBroker(config=config) as broker:
        yield broker.bootstrap


@pytest.fixture(scope="module")
def tls_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The address of a broker with TLS, and the certificate of its authority."""
    directory = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(directory / "ca.pem")
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(directory / "broker.pem")
    config = {"listeners": "SSL://127.0.0.1:0", "ssl.keystore.location": str(directory / "broker.pem")}
    with EmbeddedBroker(config=config) as broker:
        yield broker.bootstrap, str(directory / "ca.pem")


def only(found: list[dict[str, str]], check: str) -> dict[str, str]:
    """The one finding of a check."""
    (one,) = [each for each in found if each["check"] == check and each["level"] != "ok"]
    return one


def test_a_cluster_that_is_well(ottla, examine, brokers: str) -> None:
    assert ottla("topic", "create", "well").exit_code == 0
    code, found = examine()
    assert code == 0
    assert {each["check"] for each in found} >= {"settings", "address", "advertised", "partitions", "disk"}
    assert f"bootstrap.servers={brokers} (from OTTLA_BROKERS)" in found[0]["message"]
    assert "ok       address" in ottla("doctor").stdout
    assert "ok " not in ottla("doctor", "-q").stdout


# -- settings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "level", "subject", "text"),
    [
        ("reqest.timeout.ms=1", "error", "reqest.timeout.ms", "is not a setting of this client"),
        ("acks=5", "error", "client", "acks=5 is not known"),
        ("request.timeout.ms=soon", "error", "request.timeout.ms", "soon"),
        ("sasl.username=ann", "warning", "sasl.username", "not used with security.protocol=PLAINTEXT"),
        ("ssl.truststore.location=ca.pem", "warning", "ssl.truststore.location", "not used"),
        ("request.timeout.ms=90000", "warning", "request.timeout.ms", "above default.api.timeout.ms=30000"),
        ("retry.backoff.ms=5000", "warning", "retry.backoff.ms", "above retry.backoff.max.ms"),
        ("max.request.size=99999999", "warning", "max.request.size", "message.max.bytes=1048588: they refuse it"),
        ("session.timeout.ms=3001", "warning", "session.timeout.ms", "is below the brokers' group.min"),
        ("heartbeat.interval.ms=50000", "error", "heartbeat.interval.ms", "is not below session.timeout.ms"),
        ("bootstrap.servers=a:b", "error", "client", "is not an address"),
    ],
)
def test_a_setting_that_is_wrong(examine, word: str, level: str, subject: str, text: str) -> None:
    _, found = examine("-X", word)
    one = only(found, "settings")
    assert (one["level"], one["subject"], text in one["message"]) == (level, subject, True), one


def test_a_typing_error_has_a_hint_and_in_a_file_is_a_warning(examine, tmp_path: Path) -> None:
    assert "request.timeout.ms" in only(examine("-X", "reqest.timeout.ms=1")[1], "settings")["next_step"]
    file = tmp_path / "client.properties"
    file.write_text("reqest.timeout.ms=1\nkey.serializer=x\n")
    code, found = examine("--command-config", str(file))
    assert (code, found[0]["level"], found[0]["subject"]) == (0, "warning", "reqest.timeout.ms")


def test_settings_that_cannot_be_read(examine) -> None:
    code, (found,) = examine("--context", "nowhere")
    assert (code, found["level"], "there is no context" in found["message"]) == (1, "error", True)
    code, (found,) = examine("-X", "config.providers=env", "-X", "sasl.password=${env:NOT_SET_AT_ALL}")
    assert (code, "sasl.password" in found["message"]) == (1, True)


def test_a_password_is_never_printed(ottla, sasl_broker: str) -> None:
    words = ("-X", "sasl.username=boss", "-X", "sasl.password=not-this", "-X", "sasl.mechanism=PLAIN")
    for more in ((), ("-X", "security.protocol=SASL_PLAINTEXT")):
        result = ottla("-b", sasl_broker, "doctor", *words, *more)
        assert (result.exit_code, "not-this" in result.output) == (1, False)


# -- addresses and protocols -------------------------------------------------------------------------------------------


def test_nothing_there(examine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    code, found = examine("-b", f"127.0.0.1:{port},nowhere.invalid:9092")
    refused, unknown = (each for each in found if each["check"] == "address")
    assert (code, "Connection refused" in refused["message"]) == (1, True)
    assert "does not resolve" in unknown["message"]


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_a_web_server(examine, web_server: str, protocol: str) -> None:
    words = ("-X", f"security.protocol={protocol}", "-X", "request.timeout.ms=100")
    code, found = examine("-b", web_server, *words)
    one = only(found, "address")
    assert (code, "speaks HTTP" in one["message"], "/metrics" in one["next_step"]) == (1, True, True)


def test_tls_at_a_plain_port(examine, brokers: str) -> None:
    code, found = examine("-X", "security.protocol=SSL")
    one = only(found, "address")
    assert (code, "without TLS and login" in one["message"]) == (1, True)
    assert "security.protocol=PLAINTEXT" in one["next_step"]


def test_no_tls_at_a_tls_port(examine, tls_broker: tuple[str, str]) -> None:
    address, trust = tls_broker
    code, found = examine("-b", address)
    one = only(found, "address")
    assert (code, "speaks TLS" in one["message"], "security.protocol=SSL" in one["next_step"]) == (1, True, True)
    wrong = only(examine("-b", address, "-X", "security.protocol=SSL")[1], "address")
    assert "certificate" in wrong["message"]
    assert "ssl.truststore.location" in wrong["next_step"]
    right = ("-X", "security.protocol=SSL", "-X", f"ssl.truststore.location={trust}")
    assert examine("-b", address, *right)[0] == 0


def test_no_login_where_one_is_wanted(examine, sasl_broker: str) -> None:
    _, found = examine("-b", sasl_broker)
    one = only(found, "address")
    assert "with a login" in one["message"]
    assert "SASL_PLAINTEXT, and sasl.mechanism to one of PLAIN, SCRAM-SHA-512" in one["next_step"]
    login = ("-X", "security.protocol=SASL_PLAINTEXT", "-X", "sasl.username=boss", "-X", "sasl.mechanism=PLAIN")
    wrong = only(examine("-b", sasl_broker, *login, "-X", "sasl.password=wrong")[1], "address")
    assert "refuses the login" in wrong["message"]
    code, found = examine("-b", sasl_broker, *login, "-X", "sasl.password=secret")
    assert code == 0
    assert only(found, "settings")["subject"] == "security.protocol", "the password is not encrypted"


def test_an_advertised_address_that_only_the_broker_can_reach(examine, scripted: ScriptedBroker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        scripted.advertised = ("127.0.0.1", listener.getsockname()[1])
    code, found = examine("-b", scripted.bootstrap, "--timeout", "1")
    one = only(found, "advertised")
    assert (code, one["subject"], "advertised.listeners points at" in one["message"]) == (1, "broker 0", True)


def test_few_of_many_addresses_are_asked_for_their_protocol(examine) -> None:
    with socket.create_server(("0.0.0.0", 0)) as listener:
        port, accepted = listener.getsockname()[1], []

        def refuse() -> None:
            while True:
                try:
                    sock, _ = listener.accept()
                except OSError:
                    return
                accepted.append(sock.close())

        thread = threading.Thread(target=refuse)
        thread.start()
        code, found = examine("-b", ",".join(f"127.0.0.{number}:{port}" for number in range(1, 21)))
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert (code, len([each for each in found if each["check"] == "address"])) == (1, 20)
    probes, questions = 2 * 20, 2 * 8  # a probe connects again, with an older version of ApiVersions
    assert len(accepted) <= probes + questions


def probed(host: str, cluster_id: str, node_id: int | None = None) -> BrokerProbe:
    return BrokerProbe(Address(host, 9092), node_id, view=EMPTY._replace(cluster_id=cluster_id))


def test_addresses_that_mean_another_machine_or_another_cluster() -> None:
    config = ClientConfig()
    one = probed("kafka1", "A")
    found = list(check_addresses(ClusterProbe((one, probed("kafka2", "B")), (probed("localhost", "A", 1),)), config))
    assert [(each.level, each.check) for each in found if each.level != "ok"] == [
        ("warning", "advertised"),
        ("error", "address"),
    ]
    local = ClusterProbe((probed("127.0.0.1", "A"),), (probed("localhost", "A", 1),))
    assert [each.level for each in check_addresses(local, config)] == ["ok", "ok"]


# -- the cluster -------------------------------------------------------------------------------------------------------


def test_partitions_that_are_not_well(examine, scripted: ScriptedBroker) -> None:
    scripted.topics = {"t": 7}
    metadata = scripted.metadata
    scripted.on[ApiKey.METADATA] = lambda request: (
        request.reply(scripted.metadata_of(["t"], leader=-1))
        if request.message().topics is None  # type: ignore[attr-defined]
        else metadata(request)
    )
    scripted.on[ApiKey.DESCRIBE_LOG_DIRS] = lambda _: None
    code, found = examine("-b", scripted.bootstrap, "--timeout", "0.3")
    offline = [each for each in found if each["check"] == "partitions"]
    assert (code, len(offline), offline[0]["subject"]) == (1, 6, "t-0")
    assert offline[-1]["message"] == "2 more partitions are in this state"
    assert "could not be checked" in only(found, "disk")["message"]


def test_brokers_of_two_versions() -> None:
    first, second = (probed("a", "A", node)._replace(versions={0: (0, node)}) for node in (1, 2))
    (found,) = check_versions(ClusterProbe((), (first, second)))
    assert (found.level, found.message) == ("warning", "brokers serve different versions: brokers 1; brokers 2")
    assert list(check_versions(ClusterProbe((), (first, first._replace(node_id=3))))) == []


def test_limits_of_brokers() -> None:
    entries = [ConfigEntry("group.max.session.timeout.ms", "10", ConfigSource.DEFAULT_CONFIG, True, False)]
    assert list(limit_findings({"session.timeout.ms": "10"}, entries)) == []
    assert list(limit_findings({"session.timeout.ms": "soon"}, entries)) == []
    (found,) = limit_findings({"session.timeout.ms": 11}, entries)
    assert "session.timeout.ms=11 is above the brokers' group.max.session.timeout.ms=10" in found.message


def test_clocks() -> None:
    tp = TopicPartition("__consumer_offsets", 3)
    assert list(clock_findings({}, 1_000_000)) == []
    assert [each.level for each in clock_findings({tp: 1_005_000}, 1_000_000)] == ["ok"]
    (found,) = clock_findings({tp: 1_060_000, TopicPartition("t", 0): 5}, 1_000_000)
    assert (found.level, found.subject, "60 s in the future" in found.message) == ("error", str(tp), True)


def test_disks() -> None:
    def judge(free: int) -> list[str]:
        return [each.level for each in disk_findings(1, LogDir("/data", 100, free, ()))]

    assert [judge(free) for free in (4, 14, 15, -1)] == [["error"], ["warning"], ["ok"], []]
    failed = RefusedError(ErrorCode.KAFKA_STORAGE_ERROR, "log directory /data")
    assert [each.level for each in disk_findings(1, failed)] == ["error"]
