"""Credentials of users by requests: what is stored, what is described, and each error of Kafka.

Zone: pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.errors import ApiError, ErrorCode
from ottla.requests import Context, InPieces
from ottla.security.audit_log import AuditLog
from ottla.security.sasl.scram_credentials import ScramMechanism, credential_from_password, decode_credential
from ottla.security.sasl.scram_handlers import ALTERATIONS_MAX, ScramHandlers
from ottla.security.sasl.users import FileUsers, SaslUsers
from ottla.wire.messages import AlterUserScramCredentialsRequest, DescribeUserScramCredentialsRequest

Deletion = AlterUserScramCredentialsRequest.ScramCredentialDeletion
Upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion
SHA_256, SHA_512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512


class Store:
    """The settings of users; answers at once. Implements EntityWriter."""

    def __init__(self, users: SaslUsers) -> None:
        self.users = users
        self.configs: dict[str, dict[str, str]] = {}

    def alter_entity(self, path: str, change: Callable[[Mapping[str, str]], dict[str, str]], done: Any) -> None:
        try:
            self.configs[path] = change(self.configs.get(path, {}))
        except ApiError as error:
            done(error)
            return
        self.users.on_user_config(path.partition("/")[2], self.configs[path])
        done(None)


SLOT: Any = SimpleNamespace(peer=SimpleNamespace(principal="User:boss", host="h", listener="L"))


class FixedClock:
    """A clock that is not read: denials have times, changes have none."""

    def now(self) -> Any:
        raise AssertionError


class Served:
    """The handlers, by messages."""

    def __init__(self) -> None:
        self.users = SaslUsers(b"decoys", FileUsers({}, b""))
        self.store = Store(self.users)
        self.handlers = ScramHandlers(self.users, self.store, AuditLog(FixedClock()))
        self.sent: list[Any] = []

    def alter(self, *changes: Any) -> dict[str, tuple[int, str | None]]:
        request = AlterUserScramCredentialsRequest(
            deletions=[each for each in changes if isinstance(each, Deletion)],
            upsertions=[each for each in changes if isinstance(each, Upsertion)],
        )
        context = Context(51, 0, 1, "x", SLOT, lambda _, response: self.sent.append(response))  # type: ignore[arg-type]
        response: Any = self.handlers.alter_credentials(context, request) or self.sent.pop()
        return {each.user: (each.error_code, each.error_message) for each in _results_of(response)}

    def describe(self, *names: str) -> dict[str, Any]:
        users = [DescribeUserScramCredentialsRequest.UserName(name=name) for name in names]
        context = Context(50, 0, 1, "x", None, lambda *_: None)  # type: ignore[arg-type]
        found = self.handlers.describe_credentials(context, DescribeUserScramCredentialsRequest(users=users))
        return {each.user: each for each in _results_of(found)}


def _results_of(response: Any) -> list[Any]:
    pieces = list(response.pieces) if isinstance(response, InPieces) else [response]
    return [each for piece in pieces for each in piece.results]


@pytest.fixture
def served() -> Served:
    return Served()


def upsertion(user: str = "ann", mechanism: int = SHA_256, iterations: int = 4096, **more: Any) -> Upsertion:
    size = 64 if mechanism == SHA_512 else 32
    values = {"salt": b"salt", "salted_password": b"x" * size, **more}
    return Upsertion(name=user, mechanism=mechanism, iterations=iterations, **values)


def test_credentials_are_stored_as_kafka_does(served: Served) -> None:
    assert served.alter(upsertion(), upsertion(mechanism=SHA_512, iterations=8192)) == {"ann": (0, None)}
    config = served.store.configs["users/ann"]
    assert set(config) == {"SCRAM-SHA-256", "SCRAM-SHA-512"}
    assert decode_credential(SHA_512, config["SCRAM-SHA-512"]).iterations == 8192
    infos = served.describe()["ann"].credential_infos
    assert [(each.mechanism, each.iterations) for each in infos] == [(1, 4096), (2, 8192)]
    assert served.users.table.find_credential(SHA_256, "ann").is_real


def test_a_deletion_leaves_the_other_mechanism_and_quotas(served: Served) -> None:
    served.store.configs["users/ann"] = {"producer_byte_rate": "1"}
    served.alter(upsertion(), upsertion(mechanism=SHA_512))
    assert served.alter(Deletion(name="ann", mechanism=1)) == {"ann": (0, None)}
    assert set(served.store.configs["users/ann"]) == {"producer_byte_rate", "SCRAM-SHA-512"}
    assert not served.users.table.find_credential(SHA_256, "ann").is_real
    assert served.alter(Deletion(name="ann", mechanism=2)) == {"ann": (0, None)}
    assert served.describe() == {}


TWICE = "A user credential cannot be altered twice in the same request"


@pytest.mark.parametrize(
    ("change", "code", "text"),
    [
        (upsertion(mechanism=0), ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"),
        (upsertion(mechanism=3), ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"),
        (upsertion(""), ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty"),
        (upsertion(iterations=4095), ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations"),
        (upsertion(iterations=16385), ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations"),
        (upsertion(salt=b""), ErrorCode.UNACCEPTABLE_CREDENTIAL, "The salt must have 1 to 1024 bytes"),
        (upsertion(salted_password=b"x"), ErrorCode.UNACCEPTABLE_CREDENTIAL, "The salted password must have 32 bytes"),
        (upsertion("u" * 2000), ErrorCode.UNACCEPTABLE_CREDENTIAL, "the name is too long"),
        (
            Deletion(name="ann", mechanism=1),
            ErrorCode.RESOURCE_NOT_FOUND,
            "Attempt to delete a user credential that does not exist",
        ),
        (Deletion(name="ann", mechanism=9), ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"),
    ],
)
def test_each_error_of_kafka(served: Served, change: Any, code: ErrorCode, text: str) -> None:
    outcomes = served.alter(change, upsertion("bob"))
    assert outcomes == {change.name: (code, text), "bob": (0, None)}
    assert set(served.store.configs) == {"users/bob"}, "other users are not affected"


def test_a_credential_that_is_altered_twice(served: Served) -> None:
    assert served.alter(upsertion(), Deletion(name="ann", mechanism=1)) == {
        "ann": (ErrorCode.DUPLICATE_RESOURCE, TWICE)
    }
    assert served.alter(upsertion(), upsertion()) == {"ann": (ErrorCode.DUPLICATE_RESOURCE, TWICE)}
    assert served.store.configs == {}


def test_the_changes_of_a_user_are_made_together_or_not_at_all(served: Served) -> None:
    outcomes = served.alter(upsertion(), Deletion(name="ann", mechanism=2))
    assert outcomes["ann"][0] == ErrorCode.RESOURCE_NOT_FOUND
    assert served.store.configs == {}


def test_more_alterations_than_are_accepted(served: Served) -> None:
    outcomes = served.alter(*(upsertion(f"u{number}") for number in range(ALTERATIONS_MAX + 1)))
    assert {code for code, _ in outcomes.values()} == {ErrorCode.INVALID_REQUEST}
    assert served.store.configs == {}


def test_errors_of_descriptions(served: Served) -> None:
    served.alter(upsertion())
    found = served.describe("ann", "eve", "bob", "bob")
    assert found["ann"].error_code == 0
    assert (found["eve"].error_code, found["eve"].error_message) == (
        ErrorCode.RESOURCE_NOT_FOUND,
        "Attempt to describe a user credential that does not exist: eve",
    )
    assert found["bob"].error_code == ErrorCode.DUPLICATE_RESOURCE


def test_settings_that_cannot_be_read_let_no_user_in(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    served.alter(upsertion())
    served.users.on_user_config("ann", {"SCRAM-SHA-256": "salt=secret"})
    assert "secret" not in caplog.text
    assert "cannot log in with SCRAM-SHA-256" in caplog.text
    assert not served.users.table.find_credential(SHA_256, "ann").is_real


def test_a_user_of_the_file_is_not_replaced_by_the_store() -> None:
    users = SaslUsers(b"decoys", FileUsers({"ann": "word"}, b"salt"))
    before = users.table.find_credential(SHA_256, "ann")
    assert before.credential == credential_from_password(SHA_256, b"saltann", "word")
    users.on_user_config("ann", {})
    assert users.table.find_credential(SHA_256, "ann") == before
