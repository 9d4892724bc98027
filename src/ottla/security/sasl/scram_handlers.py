"""DescribeUserScramCredentials and AlterUserScramCredentials (KIP-554).

Zone: deterministic. Any broker serves them; Kafka with ZooKeeper requires its controller, to which its clients send
them. The changes of a user are made together or not at all: an error of one of them is the error of the user.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import Final, NamedTuple, Protocol

from ottla.acls import Operation, ResourceType
from ottla.errors import ApiError, ErrorCode
from ottla.fan_in import FanIn
from ottla.requests import Context, InPieces, Parts, denied_error, handles
from ottla.security.audit_log import AuditLog
from ottla.security.sasl.scram_credentials import (
    ScramMechanism,
    credential_from_salted,
    encode_credential,
    fault_of_alteration,
)
from ottla.security.sasl.users import Credentials, SaslUsers
from ottla.wire.apis import ApiKey
from ottla.wire.messages import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from ottla.znodes.entity_nodes import Entity, change_path, fault_of_entity_name

ALTERATIONS_MAX: Final = 1000
"""Most alterations of one request."""
_BYTES_MAX: Final = 128 * 1024
"""Most bytes of such a request: a hundred for each alteration, and some more."""
_PIECE: Final = 500
_BOUNDED = f"at most {ALTERATIONS_MAX} alterations are accepted"
_SALT_MAX: Final = 1024
_Described = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult
_Altered = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult
_Change = Callable[[Mapping[str, str]], dict[str, str]]


class EntityWriter(Protocol):
    """Changes the settings of entities in the metadata store (`ottla.cluster.config_writer`)."""

    def alter_entity(self, path: str, change: _Change, done: Callable[[ApiError | None], None]) -> None:
        """Change the settings of the entity with this path below /config."""
        ...


def _name_of(user: DescribeUserScramCredentialsRequest.UserName) -> str:
    return user.name


class _Alteration(NamedTuple):
    """One credential to set, or to delete (None)."""

    mechanism: int
    upsertion: AlterUserScramCredentialsRequest.ScramCredentialUpsertion | None


class ScramHandlers:
    """Handles requests about the credentials of users."""

    def __init__(self, users: SaslUsers, writer: EntityWriter, audit: AuditLog) -> None:
        self._users = users
        self._writer = writer
        self._audit = audit

    # -- reading -----------------------------------------------------------------------------------------------------

    @handles(
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        0,
        0,
        resource="Cluster",
        operation="Describe",
        parts=Parts(cost_us=20, request=(("users",),), response=(("results",),), once=_name_of),
    )
    def describe_credentials(self, context: Context, request: DescribeUserScramCredentialsRequest) -> object:
        """Return mechanisms and iterations. Errors per user: RESOURCE_NOT_FOUND, DUPLICATE_RESOURCE."""
        if not request.users:
            return InPieces(("results",), self._describe_all(sorted(self._users.stored)))
        repeated = context.repeated_names(map(_name_of, request.users))
        names = dict.fromkeys(map(_name_of, request.users))
        results = [self._describe_user(name, hash(name) in repeated) for name in names]
        return DescribeUserScramCredentialsResponse(error_message=None, results=results)

    def _describe_all(self, names: Sequence[str]) -> Generator[DescribeUserScramCredentialsResponse, None, None]:
        for begin in range(0, max(1, len(names)), _PIECE):
            results = [self._describe_user(name, False) for name in names[begin : begin + _PIECE]]
            yield DescribeUserScramCredentialsResponse(error_message=None, results=results)

    def _describe_user(self, name: str, is_repeated: bool) -> _Described:
        found = self._users.stored.get(name)
        if is_repeated:
            text = f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
            return _not_described(name, ApiError(ErrorCode.DUPLICATE_RESOURCE, text))
        if found is None:
            text = f"Attempt to describe a user credential that does not exist: {name}"
            return _not_described(name, ApiError(ErrorCode.RESOURCE_NOT_FOUND, text))
        infos = [
            DescribeUserScramCredentialsResponse.CredentialInfo(mechanism=mechanism, iterations=credential.iterations)
            for mechanism, credential in sorted(found.items())
        ]
        return _Described(user=name, error_message=None, credential_infos=infos)

    # -- changing ----------------------------------------------------------------------------------------------------

    @handles(
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        0,
        0,
        resource="Cluster",
        operation="Alter",
        undivided=_BOUNDED,
        checks_itself=True,
        most_bytes=_BYTES_MAX,
    )
    def alter_credentials(self, context: Context, request: AlterUserScramCredentialsRequest) -> object:
        """Set and delete credentials. Errors per user: UNSUPPORTED_SASL_MECHANISM, UNACCEPTABLE_CREDENTIAL,
        RESOURCE_NOT_FOUND, DUPLICATE_RESOURCE, and those of the metadata store."""
        if len(request.deletions) + len(request.upsertions) > ALTERATIONS_MAX:
            return InPieces(("results",), _refusals(request))
        by_user: dict[str, list[_Alteration]] = {}
        for deletion in request.deletions:
            by_user.setdefault(deletion.name, []).append(_Alteration(deletion.mechanism, None))
        for upsertion in request.upsertions:
            by_user.setdefault(upsertion.name, []).append(_Alteration(upsertion.mechanism, upsertion))
        if not by_user:
            return AlterUserScramCredentialsResponse()
        if not context.is_allowed(Operation.ALTER, ResourceType.CLUSTER):
            denied = denied_error(ResourceType.CLUSTER)
            refused = [_Altered(user=user, error_code=denied.code, error_message=denied.message) for user in by_user]
            return AlterUserScramCredentialsResponse(results=refused)

        def send_response(results: list[_Altered]) -> None:
            context.send_reply(AlterUserScramCredentialsResponse(results=results))

        gather = FanIn(send_response)
        slots = [gather.new_slot() for _ in by_user]
        gather.close_slots()
        for (user, alterations), slot in zip(by_user.items(), slots, strict=True):
            done = context.wrap_step(partial(self._on_altered, context, user, alterations, slot))
            self._alter_user(user, alterations, done)
        return None

    def _on_altered(
        self,
        context: Context,
        user: str,
        alterations: Sequence[_Alteration],
        slot: Callable[[_Altered], None],
        error: ApiError | None,
    ) -> None:
        if error is not None:
            slot(_Altered(user=user, error_code=error.code, error_message=error.message))
            return
        for mechanism, upsertion in alterations:
            operation = "delete" if upsertion is None else "set"
            title = ScramMechanism(mechanism).title
            self._audit.log_change(context.peer, "user", operation=operation, user=user, mechanism=title)
        slot(_Altered(user=user, error_message=None))

    def _alter_user(self, user: str, alterations: list[_Alteration], done: Callable[[ApiError | None], None]) -> None:
        error = _fault_of_user(user, alterations)
        if error is not None:
            done(error)
            return
        try:
            change = partial(_change_credentials, alterations)
            change(_as_config(self._users.stored.get(user, {})))  # most errors cost no request to the store
        except ApiError as refusal:
            done(refusal.as_value())
            return
        self._writer.alter_entity(change_path(Entity(user=user)), change, done)


def _refusals(
    request: AlterUserScramCredentialsRequest,
) -> Generator[AlterUserScramCredentialsResponse, None, None]:
    """The response to a request of too many alterations; only the first result has the text."""
    text: str | None = f"more than {ALTERATIONS_MAX} alterations; send several requests"
    deletions, upsertions = (each.name for each in request.deletions), (each.name for each in request.upsertions)
    names = iter(dict.fromkeys(chain(deletions, upsertions)))
    while some := list(islice(names, _PIECE)):
        results = [_Altered(user=name, error_code=ErrorCode.INVALID_REQUEST, error_message=None) for name in some]
        results[0].error_message, text = text, None
        yield AlterUserScramCredentialsResponse(results=results)


def _fault_of_user(user: str, alterations: Sequence[_Alteration]) -> ApiError | None:
    """The error of what is wrong by itself."""
    if len({each.mechanism for each in alterations}) < len(alterations):
        text = "A user credential cannot be altered twice in the same request"
        return ApiError(ErrorCode.DUPLICATE_RESOURCE, text)
    for mechanism, upsertion in alterations:
        fault = fault_of_alteration(user, mechanism, None if upsertion is None else upsertion.iterations)
        if fault is not None:
            return ApiError(*fault)
        if upsertion is not None and (text := _fault_of_keys(ScramMechanism(mechanism), upsertion)):
            return ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, text)
    text = fault_of_entity_name(user)
    return ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, text) if text else None


def _fault_of_keys(
    mechanism: ScramMechanism, upsertion: AlterUserScramCredentialsRequest.ScramCredentialUpsertion
) -> str:
    # Kafka stores what it gets; a credential that cannot be read again would lock its user out.
    if not 0 < len(upsertion.salt) <= _SALT_MAX:
        return f"The salt must have 1 to {_SALT_MAX} bytes"
    if len(upsertion.salted_password) != mechanism.digest_size:
        return f"The salted password must have {mechanism.digest_size} bytes"
    return ""


def _change_credentials(alterations: Sequence[_Alteration], present: Mapping[str, str]) -> dict[str, str]:
    """The settings of a user after alterations; quotas stay. Raises ApiError RESOURCE_NOT_FOUND."""
    after = dict(present)
    for number, upsertion in alterations:
        mechanism = ScramMechanism(number)
        if upsertion is None:
            if after.pop(mechanism.title, None) is None:
                text = "Attempt to delete a user credential that does not exist"
                raise ApiError(ErrorCode.RESOURCE_NOT_FOUND, text)
        else:
            salt, salted = bytes(upsertion.salt), bytes(upsertion.salted_password)
            credential = credential_from_salted(mechanism, salt, salted, upsertion.iterations)
            after[mechanism.title] = encode_credential(credential)
    return after


def _as_config(credentials: Credentials) -> dict[str, str]:
    return {mechanism.title: encode_credential(each) for mechanism, each in credentials.items()}


def _not_described(name: str, error: ApiError) -> _Described:
    return _Described(user=name, error_code=error.code, error_message=error.message)
