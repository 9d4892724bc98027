"""Errors of the clients, classified by their origin.

Zone: pure. All errors that clients raise, each with its cause, its next step and whether a retry can help. One of them,
PartlyAcceptedError, is defined beside the future that it has: in `ottla.client.producer.futures`.

    ClientError
      ConfigError, UsageError (WrongTypeError,
      TransactionFailedError)                                   the caller
      PartlyAcceptedError                                       that of its `__cause__`
      UnreachableError, ConnectionLostError,
      RequestTimeoutError,
      DeadlineError (BufferExhaustedError)                      the network, or time
      MalformedReplyError (CorruptBatchError),
      UnsupportedVersionError                                   the broker, against the protocol
      AuthenticationError                                       the identity of the client or of the broker
      RefusedError (ProducerFencedError)                        the broker, with an error code of Kafka
      CommitFailedError, LogTruncatedError,
      DeserializationError, WakeupError                         an event that the consumer's user must handle
      SerializationError                                        a key or value, or the schema that it names
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from ottla.errors import ErrorCode
from ottla.renamed import warn_renamed
from ottla.types import TopicPartition

K = TypeVar("K")
V = TypeVar("V")


class ClientError(Exception):
    """Base of all errors of the clients: `cause` is what happened, `next_step` what the user can do."""

    retriable: bool = False
    """Whether the same call may succeed later without any change."""

    def __init__(self, cause: str, next_step: str = "") -> None:
        super().__init__(f"{cause}. {next_step}" if next_step else cause)
        self.cause = cause
        self.next_step = next_step


class ConfigError(ClientError):
    """A setting has an unknown value, is out of range, or contradicts another one."""


class UsageError(ClientError):
    """A call that the caller must not make: after close, with impossible arguments."""


class WrongTypeError(UsageError, TypeError):
    """An argument has a wrong type; the message lists the accepted types."""


class TransactionFailedError(UsageError):
    """A call in a transaction in which an earlier call or record failed (`__cause__`): abort the transaction."""


class UnreachableError(ClientError):
    """No connection could be opened; nothing was sent."""

    retriable = True


LOST_NEXT_STEP = "The broker stopped, or refuses this client: see its log, and check security.protocol of its port"
"""Of a connection that broke."""


class ConnectionLostError(ClientError):
    """The connection broke before the answer: the request may have been carried out."""

    retriable = True


class RequestTimeoutError(ClientError):
    """No answer within `request.timeout.ms`: the request may have been carried out. The connection is closed."""

    retriable = True


class DeadlineError(ClientError):
    """The whole call took too long (`default.api.timeout.ms`, `delivery.timeout.ms`); `last` is the last error."""

    def __init__(self, cause: str, next_step: str = "", last: ClientError | None = None) -> None:
        super().__init__(cause, next_step)
        self.last = last


class BufferExhaustedError(DeadlineError):
    """A producer's `buffer.memory` was full for `max.block.ms`; the record was not accepted."""


class MalformedReplyError(ClientError):
    """The broker sent bytes that no Kafka broker may send. The connection is closed."""


class CorruptBatchError(MalformedReplyError):
    """A record batch that does not match its checksum or its own counts."""


class UnsupportedVersionError(ClientError):
    """The broker and this client have no version of the request in common.

    `missing_api` names the API if the broker serves no version of it, as `ApiKey` does; else it is empty.
    """

    def __init__(self, cause: str, next_step: str = "", *, missing_api: str = "") -> None:
        super().__init__(cause, next_step)
        self.missing_api = missing_api


class AuthenticationError(ClientError):
    """No session: the broker or this client refused a certificate, a login or a token, or the two have no common
    protocol for it."""


class RefusedError(ClientError):
    """The broker answered with an error code.

    `code` is Kafka's error. In results per item it is returned in place of the value, not raised.
    """

    def __init__(self, code: ErrorCode, subject: str, message: str = "") -> None:
        cause = f"{subject}: {code.name}"
        super().__init__(f"{cause}: {message.rstrip('.')}" if message else cause, _NEXT_STEPS.get(code, ""))
        self.code = code
        self.subject = subject
        self.message = message
        self.retriable = code.retriable


class ProducerFencedError(RefusedError):
    """Another producer has taken over the transactional id (two codes mean this): close this one.

    Every later call of a transaction raises it again.
    """

    def __init__(self, code: ErrorCode, subject: str, message: str = "") -> None:
        super().__init__(code, subject, message or "another producer has taken over its transactional id")


class CommitFailedError(ClientError):
    """Positions were not committed: other members may have the partitions, or may get them in a rebalance."""


class LogTruncatedError(ClientError):
    """The log of a new leader ends, or differs from the records that were read, before the position (KIP-320).

    `diverged_at` is the offset up to which both agree; it is the new position.
    """

    def __init__(self, tp: TopicPartition, position: int, diverged_at: int) -> None:
        super().__init__(
            f"{tp} was truncated: records were read up to {position}, and agree with the log up to {diverged_at}",
            f"Undo the effects of later records; the next poll continues at {diverged_at}",
        )
        self.tp = tp
        self.position = position
        self.diverged_at = diverged_at

    @property
    def where(self) -> TopicPartition:
        """The old name of `tp`."""
        warn_renamed("where", "tp")
        return self.tp


class DeserializationError(ClientError):
    """A deserializer raised. The position stays at the record; `seek` to the next offset skips it.

    It is retriable if the deserializer's error is: then the record may be good, and the next poll tries it again.
    """

    def __init__(self, tp: TopicPartition, offset: int, error: Exception) -> None:
        self.retriable = isinstance(error, ClientError) and error.retriable
        skip = f"Fix the deserializer, or seek to {offset + 1} to skip the record"
        super().__init__(
            f"{tp}: the record at offset {offset} cannot be deserialized: {error!r}",
            "Poll again: the consumer stays at the record" if self.retriable else skip,
        )
        self.tp = tp
        self.offset = offset


class SerializationError(ClientError):
    """A key or value does not fit its schema, or names a schema that cannot be used."""


class WakeupError(ClientError):
    """`wakeup` was called: the waiting call ends without a result."""


def error_code(number: int) -> ErrorCode:
    """The code for an int16 of the protocol; an unknown number counts as UNKNOWN_SERVER_ERROR."""
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def refused_error(number: int, subject: str, message: str | None = None) -> RefusedError | None:
    """The error for an error code of a response, or None for NONE. `subject` names the item, as in "topic orders"."""
    if number == 0:
        return None
    code = error_code(number)
    # A newer broker has codes that are not known here; the number lets a reader look it up.
    if code is ErrorCode.UNKNOWN_SERVER_ERROR and number != code.value:
        message = f"error code {number}, which this client does not know. {message or ''}".rstrip(". ")
    return RefusedError(code, subject, message or "")


def first_error(results: Mapping[K, V | ClientError | None]) -> ClientError | None:
    """The first error among results per item."""
    return next((value for value in results.values() if isinstance(value, ClientError)), None)


def values_of(results: Mapping[K, V | ClientError]) -> dict[K, V]:
    """The values of results per item. Raises the first error among them."""
    values: dict[K, V] = {}
    for item, value in results.items():
        if isinstance(value, ClientError):
            raise value
        values[item] = value
    return values


_NEXT_STEPS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "Check the name and the partition number, or create the topic first",
    ErrorCode.UNKNOWN_TOPIC_ID: "The topic was deleted or recreated: look it up again",
    ErrorCode.TOPIC_ALREADY_EXISTS: "Choose another name, or use the topic as it is",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "Use 1 to 249 letters, digits, '.', '_' and '-'; not '.' or '..'",
    ErrorCode.INVALID_PARTITIONS: "Use at least one partition; the number can only grow",
    ErrorCode.INVALID_REPLICATION_FACTOR: "Use at most as many replicas as there are brokers",
    ErrorCode.OFFSET_OUT_OF_RANGE: "Choose an offset between the log's start and its end",
    ErrorCode.MESSAGE_TOO_LARGE: "Send smaller batches, or raise the topic's max.message.bytes",
    ErrorCode.RECORD_LIST_TOO_LARGE: "Send smaller batches, or raise the topic's segment.bytes",
    ErrorCode.NOT_ENOUGH_REPLICAS: "Wait for brokers to come back, or lower min.insync.replicas",
    ErrorCode.INVALID_REQUIRED_ACKS: "Use acks 0, 1 or all",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Ask an administrator for an ACL on this topic",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Ask an administrator for an ACL on this group",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Ask an administrator for an ACL on the cluster",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Ask an administrator for an ACL on this transactional id",
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED: "Ask an administrator for an ACL on this token or its owner",
    ErrorCode.SECURITY_DISABLED: "Set authorizer.class.name on the brokers",
    ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED: "Set delegation.token.secret.key on the brokers",
    ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: "Use a listener with SASL or client certificates, and no token",
    ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH: "Log in as the owner of the token, or as one of its renewers",
    ErrorCode.KAFKA_STORAGE_ERROR: "Look at the broker's log: one of its log directories has failed",
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT: "Use record batches of format version 2",
    ErrorCode.INVALID_TIMESTAMP: "Use a timestamp within the topic's message.timestamp.before/after.max.ms",
    ErrorCode.INVALID_TXN_STATE: "The transaction has ended, probably by transaction.timeout.ms: start it again",
    ErrorCode.FENCED_INSTANCE_ID: "Another consumer has this group.instance.id: close this one, or subscribe again",
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "Use a partition.assignment.strategy that all members of the group have",
    ErrorCode.INVALID_SESSION_TIMEOUT: "Use a session.timeout.ms between the broker's group.min and group.max",
    ErrorCode.GROUP_MAX_SIZE_REACHED: "Wait until a member leaves, or raise the broker's group.max.size",
    ErrorCode.PRODUCER_FENCED: "Close this producer; each running producer needs its own transactional.id",
    ErrorCode.TOPIC_DELETION_DISABLED: "Set delete.topic.enable=true on the brokers",
}
