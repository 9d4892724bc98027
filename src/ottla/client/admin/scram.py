"""Users that log in with SCRAM: list, set and delete their credentials.

Zone: real. Sends DescribeUserScramCredentials and AlterUserScramCredentials (KIP-554). A password does not leave this
process: it is salted and hashed here, and the broker stores keys that are derived from the result.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple, TypeVar

from ottla.client.admin.types import list_of_names
from ottla.client.cluster import CONTROLLER, Cluster
from ottla.client.errors import ClientError, MalformedReplyError, RefusedError, UsageError, refused_error
from ottla.client.retry import Deadline
from ottla.errors import ErrorCode
from ottla.wire.apis import ApiKey
from ottla.wire.messages import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)

V = TypeVar("V")
ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 16384
"""Brokers refuse fewer and more."""
_SALT_BYTES: Final = 20


class ScramMechanism(IntEnum):
    """A mechanism; the numbers are the protocol's."""

    UNKNOWN = 0
    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def title(self) -> str:
        """The name in SASL: SCRAM-SHA-256."""
        return self.name.replace("_", "-")

    @classmethod
    def _missing_(cls, _value: object) -> ScramMechanism:
        return cls.UNKNOWN


class ScramCredentialInfo(NamedTuple):
    """What brokers disclose of a credential."""

    mechanism: ScramMechanism
    iterations: int


@dataclass(frozen=True, slots=True)
class ScramUpsertion:
    """A password to set for a user and a mechanism; the password and the salt do not appear in a repr.

    salt: random unless given. Raises UsageError.
    """

    user: str
    mechanism: ScramMechanism
    password: str = field(repr=False)
    iterations: int = ITERATIONS_MIN
    salt: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        if not self.password:
            raise UsageError(f"the password of user {self.user} is empty", "Use a long one")
        if not ITERATIONS_MIN <= self.iterations <= ITERATIONS_MAX:
            raise UsageError(
                f"{self.iterations} iterations for user {self.user}", f"Use {ITERATIONS_MIN} to {ITERATIONS_MAX}"
            )
        if self.mechanism is ScramMechanism.UNKNOWN:
            raise UsageError(f"user {self.user} needs a mechanism", "Use SCRAM-SHA-256 or SCRAM-SHA-512")


class ScramDeletion(NamedTuple):
    """The credential of a user for a mechanism, to delete."""

    user: str
    mechanism: ScramMechanism


class ScramAdmin:
    """Calls about credentials over a Cluster, which the caller closes. One thread per object.

    Describing needs DESCRIBE on the cluster, altering ALTER: CLUSTER_AUTHORIZATION_FAILED.
    """

    __slots__ = ("_cluster",)

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def describe_user_scram_credentials(
        self, users: Iterable[str] | None = None, deadline: Deadline | None = None
    ) -> dict[str, list[ScramCredentialInfo] | ClientError]:
        """The credentials of users, or of all that have some; RESOURCE_NOT_FOUND for each user without. Raises
        RefusedError.
        """
        wanted = None if users is None else list_of_names("describe_user_scram_credentials", users)
        if wanted == []:  # on the wire an empty list means all
            return {}
        named = None if wanted is None else [DescribeUserScramCredentialsRequest.UserName(name=n) for n in wanted]
        answer = self._cluster.send_request(
            ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
            lambda _: DescribeUserScramCredentialsRequest(users=named),
            DescribeUserScramCredentialsResponse,
            deadline=deadline,
            refused=lambda answer: refused_error(answer.error_code, "users", answer.error_message),
        )
        found: dict[str, list[ScramCredentialInfo] | ClientError] = {
            each.user: refused_error(each.error_code, f"user {each.user}", each.error_message) or _infos(each)
            for each in answer.results
        }
        if wanted is None:
            return dict(sorted(found.items()))
        return _in_request_order("DescribeUserScramCredentials", wanted, found)

    def alter_user_scram_credentials(
        self, changes: Iterable[ScramUpsertion | ScramDeletion], deadline: Deadline | None = None
    ) -> dict[str, ClientError | None]:
        """Set and delete credentials; None for each user whose changes were all made, otherwise none of them was.

        RESOURCE_NOT_FOUND: there is no such credential to delete. DUPLICATE_RESOURCE: a user occurs twice, even with
        different mechanisms, which need a call each.
        """
        wanted = list(changes)
        users = list(dict.fromkeys(each.user for each in wanted))
        request = AlterUserScramCredentialsRequest(
            deletions=[
                AlterUserScramCredentialsRequest.ScramCredentialDeletion(name=each.user, mechanism=each.mechanism)
                for each in wanted
                if isinstance(each, ScramDeletion)
            ],
            upsertions=[_salted(each) for each in wanted if isinstance(each, ScramUpsertion)],
        )
        answer = self._cluster.send_request(
            ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
            lambda _: request,
            AlterUserScramCredentialsResponse,
            node=CONTROLLER,
            deadline=deadline,
            refused=_moved_controller,
        )
        results = {
            each.user: refused_error(each.error_code, f"user {each.user}", each.error_message)
            for each in answer.results
        }
        return _in_request_order("AlterUserScramCredentials", users, results)


def _moved_controller(answer: AlterUserScramCredentialsResponse) -> RefusedError | None:
    """NOT_CONTROLLER: the broker did nothing, and the request is repeated at the new controller."""
    moved = ErrorCode.NOT_CONTROLLER
    return next((refused_error(moved, "users") for each in answer.results if each.error_code == moved), None)


def _salted(change: ScramUpsertion) -> AlterUserScramCredentialsRequest.ScramCredentialUpsertion:
    """The salted password, in place of the password. Raises UsageError."""
    algorithm = "sha256" if change.mechanism is ScramMechanism.SCRAM_SHA_256 else "sha512"
    salt = change.salt or secrets.token_bytes(_SALT_BYTES)
    try:
        password = change.password.encode()
    except UnicodeEncodeError:
        # `from None`: the error of Python has the whole password.
        raise UsageError(f"the password of user {change.user} is not text in UTF-8", "Use another one") from None
    return AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
        name=change.user,
        mechanism=change.mechanism,
        iterations=change.iterations,
        salt=salt,
        salted_password=hashlib.pbkdf2_hmac(algorithm, password, salt, change.iterations),
    )


def _infos(
    result: DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult,
) -> list[ScramCredentialInfo]:
    return sorted(
        ScramCredentialInfo(ScramMechanism(each.mechanism), each.iterations) for each in result.credential_infos
    )


def _in_request_order(api: str, wanted: list[str], results: Mapping[str, V]) -> dict[str, V]:
    missing = [user for user in wanted if user not in results]
    if missing:
        raise MalformedReplyError(f"the response to {api} has no result for user {missing[0]}")
    return {user: results[user] for user in wanted}
