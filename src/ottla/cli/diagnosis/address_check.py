"""Checks of addresses: names, ports, TLS, logins, and what brokers advertise.

Zone: real. The results of probes, with the protocol that an address speaks where that is another than the client's.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence
from typing import Final

from ottla.cli.diagnosis.findings import ERROR, OK, WARNING, Finding
from ottla.cli.views.health import NO_ANSWER_STEP
from ottla.client.connections.address import Address
from ottla.client.connections.broker_probes import BrokerProbe, ClusterProbe
from ottla.client.connections.listener_probes import Listener, Spoken, identify_listener
from ottla.client.errors import UnreachableError
from ottla.client.retry import Deadline
from ottla.client.settings import ClientConfig

_IDENTIFIED: Final = 8
"""The most addresses whose protocol is looked for: one wrong setting makes all of them fail alike."""
_IDENTIFY_MS: Final = 10_000


def check_addresses(probe: ClusterProbe, config: ClientConfig) -> Iterator[Finding]:
    """Findings about the addresses of the user, then about those that brokers advertise."""
    failed = {str(each.address): each for each in (*probe.brokers, *probe.bootstrap) if each.error is not None}
    # Addresses that fail alike mostly have one cause: a few of them show it.
    listeners = {text: _identify(each, config) for text, each in list(failed.items())[:_IDENTIFIED]}
    for each in probe.bootstrap:
        yield _address_finding("address", str(each.address), each, config, listeners.get(str(each.address)))
    for each in probe.brokers:
        subject = f"broker {each.node_id}"
        yield _address_finding("advertised", subject, each, config, listeners.get(str(each.address)))
        yield from _suspicious_address(each, probe.bootstrap)
    yield from _several_clusters(probe.bootstrap)


def _identify(probe: BrokerProbe, config: ClientConfig) -> Listener | None:
    # Without a connection there is nothing to identify; with TLS, a handshake that ends is an UnreachableError as well.
    if isinstance(probe.error, UnreachableError) and not config.security.tls:
        return None
    return identify_listener(probe, config, Deadline.after_ms(_IDENTIFY_MS))


def _address_finding(
    check: str, subject: str, probe: BrokerProbe, config: ClientConfig, listener: Listener | None
) -> Finding:
    if probe.error is None:
        return Finding(OK, check, subject, f"{probe.address} answers in {probe.took_ms:.0f} ms")
    protocol = config.security.security_protocol
    advice = None if listener is None else _protocol_advice(listener, config)
    if advice is None:
        return Finding(ERROR, check, subject, probe.error.cause, probe.error.next_step or NO_ANSWER_STEP)
    assert listener is not None
    text = f"{probe.address} speaks {listener.spoken.value}, and security.protocol is {protocol}"
    return Finding(ERROR, check, subject, text, advice)


def _protocol_advice(listener: Listener, config: ClientConfig) -> str | None:
    """The next step when an address speaks another protocol than the client; None: that is not the fault."""
    spoken, security = listener.spoken, config.security
    if spoken is Spoken.HTTP:
        return "Use the port of a Kafka listener: this one is for web requests, such as /metrics or a schema registry"
    if spoken is Spoken.PLAINTEXT and security.security_protocol != "PLAINTEXT":
        return "Set security.protocol=PLAINTEXT, or use the port of the listener with that protocol"
    if spoken is Spoken.SASL_PLAINTEXT and security.security_protocol != "SASL_PLAINTEXT":
        named = f", and sasl.mechanism to one of {', '.join(listener.mechanisms)}" if listener.mechanisms else ""
        return f"Set security.protocol=SASL_PLAINTEXT{named}"
    if spoken is Spoken.TLS and not security.tls:
        return (
            f"Set security.protocol={'SASL_SSL' if security.sasl else 'SSL, or SASL_SSL'}, and ssl.truststore.location"
        )
    return None


def _suspicious_address(probe: BrokerProbe, bootstrap: Sequence[BrokerProbe]) -> Iterator[Finding]:
    """An address that means another machine from elsewhere."""
    host = probe.address.host
    # A client on the broker's own machine may use it; one that came by another address will not reach it.
    if _is_loopback(host) and not any(_is_loopback(each.address.host) for each in bootstrap):
        yield Finding(
            WARNING,
            "advertised",
            f"broker {probe.node_id}",
            f"it advertises {probe.address}, which is this machine itself, wherever a client runs",
            "Set advertised.listeners of the broker to a name that clients can resolve",
        )


def _is_loopback(host: str) -> bool:
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return host.lower().rstrip(".") in ("localhost", "localhost.localdomain")
    return found.is_loopback or found.is_unspecified


def _several_clusters(bootstrap: Sequence[BrokerProbe]) -> Iterator[Finding]:
    # By cluster, the first address that named it.
    ids: dict[str, Address] = {}
    for each in bootstrap:
        if each.error is None and each.view.cluster_id:
            ids.setdefault(each.view.cluster_id, each.address)
    if len(ids) > 1:
        text = "; ".join(f"{address} is of cluster {name}" for name, address in ids.items())
        step = "Name brokers of one cluster: clients use the first one that answers"
        yield Finding(ERROR, "address", "bootstrap.servers", text, step)
