"""The chart of packaging/helm: rendered by Helm, checked against Kubernetes' own schemas, its commands run.

Helm and the schemas come as Python packages (helm-binary for Linux on x86-64; elsewhere a `helm` on the path is used).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from testbench.ports import free_port
from tests.packaging_test import check_command

from ottla import __version__
from ottla.config.broker import BrokerConfig
from ottla.config.sources import from_environment, parse_properties

CHART = Path(__file__).resolve().parent.parent / "packaging" / "helm" / "ottla"
OLDEST, NEWEST = "1.28", "1.37"
HELM = shutil.which("helm", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))

pytestmark = pytest.mark.skipif(HELM is None, reason="needs helm")

THREE: dict[str, Any] = {"replicas": 3, "zookeeper": {"connect": "zk-0.zk:2181,zk-1.zk:2181/ottla"}}
TLS: dict[str, Any] = {
    **THREE,
    "listeners": {"internal": {"protocol": "SASL_SSL"}},
    "tls": {"secret": "ottla-tls"},
    "config": {
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
        "log.retention.bytes": 107374182400,
        "auto.create.topics.enable": False,
    },
    "env": [
        {
            "name": "KAFKA_LISTENER_NAME_INTERNAL_SCRAM___SHA___512_SASL_JAAS_CONFIG",
            "valueFrom": {"secretKeyRef": {"name": "ottla-admin", "key": "jaas"}},
        }
    ],
}
OUTSIDE: dict[str, Any] = {
    **THREE,
    "listeners": {
        "external": {
            "enabled": True,
            "hostTemplate": "broker-{index}.example.com",
            "annotations": {"external-dns.alpha.kubernetes.io/hostname": "broker-{index}.example.com"},
        }
    },
}
NODE_PORTS: dict[str, Any] = {
    **THREE,
    "listeners": {
        "external": {"enabled": True, "hostTemplate": "n.example.com", "type": "NodePort", "nodePortBase": 31090}
    },
}
MONITORED: dict[str, Any] = {
    "metrics": {
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "prometheusRule": {"enabled": True},
    },
    "brokersPerPod": 3,
    "persistence": {"storageClass": "fast"},
    "priorityClassName": "high",
    "tolerations": [{"key": "disk", "operator": "Exists"}],
    "nodeSelector": {"disk": "ssd"},
    "imagePullSecrets": [{"name": "registry"}],
    "podLabels": {"team": "data"},
    "podAnnotations": {"note": "kept"},
}
VALUES: dict[str, dict[str, Any]] = {
    "defaults": {}, "three": THREE, "tls": TLS, "outside": OUTSIDE, "node-ports": NODE_PORTS, "monitored": MONITORED,
}  # fmt: skip


def helm(*words: str, values: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    assert HELM is not None
    command = [HELM, *words, "--values", "-"]
    return subprocess.run(command, input=json.dumps(values), capture_output=True, text=True, timeout=120, check=False)


def rendered(values: dict[str, Any], version: str = NEWEST) -> list[dict[str, Any]]:
    words = ["template", "prod", str(CHART), "--namespace", "data", "--kube-version", version]
    done = helm(*words, values=values)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def of_kind(documents: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each for each in documents if each["kind"] == kind}


def container(documents: list[dict[str, Any]]) -> dict[str, Any]:
    (broker,) = of_kind(documents, "StatefulSet")["prod-ottla"]["spec"]["template"]["spec"]["containers"]
    return dict(broker)


def properties(documents: list[dict[str, Any]], index: int) -> str:
    return str(of_kind(documents, "ConfigMap")["prod-ottla"]["data"][f"server-{index}.properties"])


@pytest.mark.parametrize("name", list(VALUES))
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_kubernetes_schemas_accept_what_is_rendered(name: str, version: str) -> None:
    from kubernetes_validate import validate

    documents = rendered(VALUES[name], version)
    kinds = [each["kind"] for each in documents]
    assert {"Service", "StatefulSet", "PodDisruptionBudget"} <= set(kinds)
    for document in documents:
        # Those of Prometheus' operator are not Kubernetes' own.
        if not document["apiVersion"].startswith("monitoring.coreos.com/"):
            validate(document, version, strict=True)


@pytest.mark.parametrize("name", list(VALUES))
def test_helm_finds_no_fault_in_the_chart(name: str) -> None:
    done = helm("lint", "--strict", str(CHART), values=VALUES[name])
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"replicas": 3}, "replicas > 1 needs zookeeper.connect"),
        ({"replicas": 0}, "replicas"),
        ({"replica": 3}, "replica"),
        ({**THREE, "brokersPerPod": 2}, "brokersPerPod > 1"),
        ({"zookeeper": {"connect": "zk"}}, "zookeeper.connect"),
        ({"listeners": {"external": {"enabled": True, "hostTemplate": "h"}}}, "needs zookeeper.connect"),
        ({**THREE, "listeners": {"external": {"enabled": True}}}, "needs hostTemplate"),
        ({**NODE_PORTS, "listeners": {"external": {"enabled": True, "hostTemplate": "h", "type": "NodePort"}}},
         "needs nodePortBase"),
        ({**THREE, "listeners": {"internal": {"protocol": "SSL"}}}, "needs tls.secret"),
        ({"listeners": {"internal": {"protocol": "TLS"}}}, "listeners.internal.protocol"),
        ({"config": {"KAFKA_PORT": 1}}, "config"),
        ({"persistence": {"size": "much"}}, "persistence.size"),
    ],
)  # fmt: skip
def test_values_that_cannot_be_are_refused_by_name(values: dict[str, Any], said: str) -> None:
    done = helm("template", "prod", str(CHART), "--kube-version", NEWEST, values=values)
    assert done.returncode != 0
    assert said in done.stderr


def test_the_chart_is_for_this_version() -> None:
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == __version__


def test_an_older_kubernetes_is_refused() -> None:
    done = helm("template", "prod", str(CHART), "--kube-version", "1.27", values={})
    assert "kubeVersion: >=1.28" in done.stderr


@pytest.mark.parametrize("name", ["three", "tls", "outside", "node-ports"])
def test_each_broker_of_a_cluster_has_a_configuration_of_its_own(name: str, tmp_path: Path) -> None:
    documents = rendered(VALUES[name])
    configs = [read_config(documents, index) for index in range(3)]
    assert [config.node_id for config in configs] == [0, 1, 2]
    for index, config in enumerate(configs):
        assert config.advertised_endpoints is not None
        inside = config.advertised_endpoints[0]
        host = f"prod-ottla-{index}.prod-ottla-headless.data.svc.cluster.local"
        assert (inside.listener, inside.host, inside.port) == ("INTERNAL", host, 9092)
    args = container(documents)["args"]
    assert args[2] == "/etc/ottla/server-$(POD_INDEX).properties"
    (tmp_path / "server.properties").write_text(properties(documents, 0))
    check_command([str(tmp_path / "server.properties") if "POD_INDEX" in word else word for word in args])


def read_config(documents: list[dict[str, Any]], index: int) -> BrokerConfig:
    """As `ottla server` reads it; secrets have any text."""
    login = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="admin" password="secret";'
    secrets = {"jaas": login, "tls.crt": "certificate", "tls.key": "key", "ca.crt": "authority"}
    environment = {
        each["name"]: each.get("value") or secrets[each["valueFrom"]["secretKeyRef"]["key"]]
        for each in container(documents)["env"]
        if each["name"].startswith("KAFKA_")
    }
    config, warnings = BrokerConfig.from_properties(
        {**parse_properties(properties(documents, index)), **from_environment(environment)}
    )
    assert warnings == []
    return config


def test_values_of_numbers_keep_their_digits() -> None:
    lines = properties(rendered(TLS), 0).splitlines()
    assert {"log.retention.bytes=107374182400", "auto.create.topics.enable=false"} <= set(lines)


def test_clients_elsewhere_find_each_broker() -> None:
    documents = rendered(OUTSIDE)
    services = of_kind(documents, "Service")
    for index in range(3):
        assert f",EXTERNAL://broker-{index}.example.com:9094\n" in properties(documents, index)
        service = services[f"prod-ottla-external-{index}"]
        assert service["spec"]["selector"]["statefulset.kubernetes.io/pod-name"] == f"prod-ottla-{index}"
        assert list(service["metadata"]["annotations"].values()) == [f"broker-{index}.example.com"]
    documents = rendered(NODE_PORTS)
    services = of_kind(documents, "Service")
    for index in range(3):
        assert f",EXTERNAL://n.example.com:{31090 + index}\n" in properties(documents, index)
        assert services[f"prod-ottla-external-{index}"]["spec"]["ports"][0]["nodePort"] == 31090 + index


def test_other_settings_restart_the_brokers() -> None:
    def checksum(values: dict[str, Any]) -> str:
        template = of_kind(rendered(values), "StatefulSet")["prod-ottla"]["spec"]["template"]
        return str(template["metadata"]["annotations"]["checksum/config"])

    changed = {**THREE, "config": {"log.retention.hours": 1}}
    assert len({checksum(THREE), checksum(changed), checksum(OUTSIDE)}) == 3
    # A broker more does not restart the others.
    assert checksum(THREE) == checksum({**THREE, "replicas": 4})


def test_the_alert_rules_are_those_of_the_package() -> None:
    documents = rendered(MONITORED)
    rule = of_kind(documents, "PrometheusRule")["prod-ottla"]
    assert rule["spec"] == yaml.safe_load((CHART.parent.parent / "prometheus-alerts.yml").read_text())
    monitor = of_kind(documents, "ServiceMonitor")["prod-ottla"]
    headless = of_kind(documents, "Service")["prod-ottla-headless"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= headless["metadata"]["labels"].items()
    assert {each["port"] for each in monitor["spec"]["endpoints"]} == {"metrics-9201", "metrics-9202", "metrics-9203"}
    assert {each["port"] for each in monitor["spec"]["endpoints"]} <= {
        each["name"] for each in headless["spec"]["ports"]
    }
    plain = of_kind(documents, "Service")["prod-ottla"]
    assert not monitor["spec"]["selector"]["matchLabels"].items() <= plain["metadata"]["labels"].items()


@pytest.fixture
def running(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[dict[str, Any], Path]]:
    """The container's command as a process here; its values, and the log."""
    values = {"listeners": {"internal": {"port": free_port()}}, "metrics": {"port": free_port()}, **request.param}
    broker = container(rendered(values))
    words = [str(tmp_path / "data") if word == "/data" else word for word in broker["args"]]
    environment = {**os.environ, **{each["name"]: each["value"] for each in broker["env"] if "value" in each}}
    with (tmp_path / "log").open("wb") as log:
        command = [sys.executable, "-m", "ottla", *words]
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready "), (tmp_path / "log").read_text()
        yield values, tmp_path
    finally:
        process.terminate()
        assert process.wait(60) == 0
        process.stdout.close()


@pytest.mark.slow
@pytest.mark.parametrize("running", [{}, {"config": {"log.retention.hours": 3}}], indirect=True)
def test_the_container_of_the_chart_runs_and_its_probes_answer(running: tuple[dict[str, Any], Path]) -> None:
    values, _ = running
    broker = container(rendered(values))
    probe = broker["readinessProbe"]["httpGet"]
    assert probe["port"] == broker["livenessProbe"]["tcpSocket"]["port"] == values["metrics"]["port"]
    with urllib.request.urlopen(f"http://127.0.0.1:{probe['port']}{probe['path']}", timeout=10) as page:
        assert json.load(page)["status"] == "ready"


def test_the_notes_name_a_command_that_exists() -> None:
    notes = (CHART / "templates" / "NOTES.txt").read_text()
    (words,) = re.findall(r"-- ottla (cluster describe --brokers) ", notes)
    check_command([*words.split(), "localhost:9092"])
