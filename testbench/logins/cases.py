"""The cases of the table of logins: who logs in how, does what, and gets which error.

Zone: pure. A client program gets a case as one line with nine fields between tabs: bootstrap address, security
protocol, mechanism, user, password or token, file of the authority, file with key and certificate of its own, action,
resource. Empty fields are allowed from the mechanism on. The actions are

    write TOPIC        write one record, and wait until it is acknowledged
    read GROUP         read one record of the topic `open` as a member of this group
    transaction ID     get a producer id for this transactional id
    acls               list all ACLs (librdkafka: create one), which needs an ACL on the cluster
"""

from __future__ import annotations

from typing import Final, NamedTuple

CLIENTS: Final = ("java-4.4.0", "java-3.9.1", "confluent", "kafka-python", "aiokafka", "kafkajs", "franz-go")
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
USER: Final = "alice"
PASSWORD: Final = "alice-secret"
WRONG: Final = "guess"


class Case(NamedTuple):
    """What a client does."""

    name: str
    listener: str
    mechanism: str = ""
    user: str = USER
    password: str = PASSWORD
    certificate: str = ""
    """The client's own: empty, `client` or `expired`."""
    action: str = "write"
    resource: str = "open"

    @property
    def protocol(self) -> str:
        """The security protocol of the listener."""
        return {"NARROW": "SASL_PLAINTEXT"}.get(self.listener, self.listener)


LOGINS: Final = (
    *(
        Case(f"{mechanism} {protocol}", protocol, mechanism)
        for mechanism in MECHANISMS
        for protocol in ("SASL_PLAINTEXT", "SASL_SSL")
    ),
    Case("SSL with a certificate", "SSL", certificate="client"),
)
"""Logins that every library manages."""
LOGIN_ERRORS: Final = (
    Case("wrong password, PLAIN", "SASL_PLAINTEXT", "PLAIN", password=WRONG),
    Case("wrong password, SCRAM", "SASL_SSL", "SCRAM-SHA-512", password=WRONG),
    Case("unknown user, PLAIN", "SASL_SSL", "PLAIN", user="nobody"),
    Case("unknown user, SCRAM", "SASL_PLAINTEXT", "SCRAM-SHA-256", user="nobody"),
    Case("mechanism not enabled", "NARROW", "PLAIN"),
    Case("expired certificate", "SSL", certificate="expired"),
    Case("no certificate", "SSL"),
)
"""Logins that both brokers refuse."""
_LOGGED_IN: Final = ("SASL_PLAINTEXT", "SCRAM-SHA-256")
ACL_ERRORS: Final = (
    Case("no ACL: topic", *_LOGGED_IN, resource="secret"),
    Case("no ACL: group", *_LOGGED_IN, action="read", resource="other"),
    Case("no ACL: transactional id", *_LOGGED_IN, action="transaction", resource="tx"),
    Case("no ACL: cluster", *_LOGGED_IN, action="acls", resource=""),
)
"""Requests for which the user has no ACL."""
CASES: Final = (*LOGINS, *LOGIN_ERRORS, *ACL_ERRORS)
ABSENT: Final = {("aiokafka", "no ACL: cluster"): "not in the library"}
"""(client, case) that a library has no call for."""
