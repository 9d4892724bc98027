"""Errors in the words of Kafka's Java clients: the class that is printed, and its message.

Zone: pure. Scripts look for these names in the output of tools.
"""

from __future__ import annotations

from typing import Final

from ottla.client.errors import (
    AuthenticationError,
    BufferExhaustedError,
    ClientError,
    ConfigError,
    DeadlineError,
    RefusedError,
    RequestTimeoutError,
    UnreachableError,
    UnsupportedVersionError,
)
from ottla.errors import ErrorCode
from ottla.kafka_tools.options import ToolError

EXECUTION: Final = "java.util.concurrent.ExecutionException"
_PACKAGE: Final = "org.apache.kafka.common.errors."
_IRREGULAR: Final = {
    ErrorCode.UNKNOWN_SERVER_ERROR: "UnknownServerException",
    ErrorCode.CORRUPT_MESSAGE: "CorruptRecordException",
    ErrorCode.REQUEST_TIMED_OUT: "TimeoutException",
    ErrorCode.TOPIC_ALREADY_EXISTS: "TopicExistsException",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "InvalidTopicException",
    ErrorCode.MESSAGE_TOO_LARGE: "RecordTooLargeException",
    ErrorCode.RECORD_LIST_TOO_LARGE: "RecordBatchTooLargeException",
    ErrorCode.INVALID_CONFIG: "InvalidConfigurationException",
    ErrorCode.NON_EMPTY_GROUP: "GroupNotEmptyException",
    ErrorCode.POLICY_VIOLATION: "PolicyViolationException",
    ErrorCode.KAFKA_STORAGE_ERROR: "KafkaStorageException",
    ErrorCode.UNSUPPORTED_VERSION: "UnsupportedVersionException",
    ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED: "DelegationTokenDisabledException",
    ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: "UnsupportedByAuthenticationException",
}
_MESSAGES: Final = {
    ErrorCode.OFFSET_OUT_OF_RANGE: "The requested offset is not within the range of offsets maintained by the server.",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "This server does not host this topic-partition.",
    ErrorCode.LEADER_NOT_AVAILABLE: "There is no leader for this topic-partition as we are in the middle of a "
    "leadership election.",
    ErrorCode.GROUP_ID_NOT_FOUND: "The group id does not exist.",
    ErrorCode.NON_EMPTY_GROUP: "The group is not empty.",
    ErrorCode.SECURITY_DISABLED: "Security features are disabled.",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Cluster authorization failed.",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Topic authorization failed.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Group authorization failed.",
    ErrorCode.REQUEST_TIMED_OUT: "The request timed out.",
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE: "The preferred leader was not available.",
    ErrorCode.INVALID_REQUEST: "This most likely occurs because of a request being malformed by the client library or "
    "the message was sent to an incompatible broker. See the broker logs for more details.",
    ErrorCode.INVALID_TXN_STATE: "The producer attempted a transactional operation in an invalid state.",
    ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED: "Delegation Token feature is not enabled.",
    ErrorCode.DELEGATION_TOKEN_NOT_FOUND: "Delegation Token is not found on server.",
    ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH: "Specified Principal is not valid Owner/Renewer.",
    ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: "Delegation Token requests are not allowed on PLAINTEXT/1-way SSL "
    "channels and on delegation token authenticated channels.",
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED: "Delegation Token authorization failed.",
    ErrorCode.DELEGATION_TOKEN_EXPIRED: "Delegation Token is expired.",
    ErrorCode.INVALID_PRINCIPAL_TYPE: "Supplied principalType is not supported.",
    ErrorCode.ELECTION_NOT_NEEDED: "Leader election not needed for topic partition.",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "Deleting offsets of a topic is forbidden while the consumer group is "
    "actively subscribed to it.",
}


def java_class(code: ErrorCode) -> str:
    """The class that Kafka's Java clients raise for an error code."""
    # Nearly all classes are named as their codes: NOT_CONTROLLER is NotControllerException.
    # CLUSTER_AUTHORIZATION_FAILED is ClusterAuthorizationException, but FEATURE_UPDATE_FAILED keeps its last word.
    name = code.name.removesuffix("_FAILED") if "_AUTH" in code.name else code.name
    regular = name.title().replace("_", "") + "Exception"
    return _PACKAGE + _IRREGULAR.get(code, regular)


def error_message(error: ClientError) -> str:
    """The message of an error: the broker's own, else Kafka's for its code, else ours."""
    if isinstance(error, RefusedError):
        return error.message or _MESSAGES.get(error.code) or str(error)
    # Kafka's words for an API that a broker does not serve at all, such as those of share groups.
    if isinstance(error, UnsupportedVersionError) and error.missing_api:
        return f"The node does not support {error.missing_api}"
    return str(error)


def error_class(error: ClientError) -> str:
    """The class of Kafka's Java clients for an error."""
    if isinstance(error, RefusedError):
        return java_class(error.code)
    if isinstance(error, BufferExhaustedError):
        return "org.apache.kafka.clients.producer.BufferExhaustedException"
    # Kafka's admin client knows only that its time is over, whatever the reason is.
    if isinstance(error, (UnreachableError, DeadlineError, RequestTimeoutError)):
        return f"{_PACKAGE}TimeoutException"
    if isinstance(error, AuthenticationError):
        return f"{_PACKAGE}AuthenticationException"
    if isinstance(error, UnsupportedVersionError):
        return f"{_PACKAGE}UnsupportedVersionException"
    if isinstance(error, ConfigError):
        return "org.apache.kafka.common.config.ConfigException"
    return "org.apache.kafka.common.KafkaException"


def error_text(error: ClientError) -> str:
    """The exception as Java prints it: `org.apache.kafka.common.errors.TopicExistsException: Topic …`."""
    return f"{error_class(error)}: {error_message(error)}"


def tool_error(error: ClientError, *, wrapped: bool = False) -> ToolError:
    """The error as a tool reports it. wrapped: as the cause of an ExecutionException."""
    message = error_message(error)
    # The words that scripts look for when no broker answers; ours, with the reason, follow.
    if isinstance(error.last if isinstance(error, DeadlineError) else error, UnreachableError):
        message = f"Timed out waiting for a node assignment. {message}"
    if wrapped:
        return ToolError(f"{error_class(error)}: {message}", EXECUTION)
    return ToolError(message, error_class(error))
