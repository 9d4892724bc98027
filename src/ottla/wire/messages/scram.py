"""DescribeUserScramCredentials (key 50) and AlterUserScramCredentials (key 51).

Zone: pure. Declarations only: what bytes there are in which version.
"""

from __future__ import annotations

from ottla.wire.schema import Message, Struct, array, int8, int16, int32, nullable_string, octets, string


class DescribeUserScramCredentialsRequest(Message, api_key=50, versions="0", flexible="0+"):
    """Users; null or empty means all (KIP-554)."""

    class UserName(Struct):
        name: str = string("0+")

    users: list[UserName] | None = array("0+", nullable="0+")


class DescribeUserScramCredentialsResponse(Message, api_key=50, versions="0", flexible="0+"):
    """Mechanisms and iterations of every user, never the secrets."""

    class CredentialInfo(Struct):
        mechanism: int = int8("0+")
        iterations: int = int32("0+")

    class DescribeUserScramCredentialsResult(Struct):
        user: str = string("0+")
        error_code: int = int16("0+")
        error_message: str | None = nullable_string("0+", "0+", "")
        credential_infos: list[DescribeUserScramCredentialsResponse.CredentialInfo] = array("0+")

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = nullable_string("0+", "0+", "")
    results: list[DescribeUserScramCredentialsResult] = array("0+")


class AlterUserScramCredentialsRequest(Message, api_key=51, versions="0", flexible="0+"):
    """Credentials to remove, and salted passwords to store (KIP-554)."""

    class ScramCredentialDeletion(Struct):
        name: str = string("0+")
        mechanism: int = int8("0+")

    class ScramCredentialUpsertion(Struct):
        name: str = string("0+")
        mechanism: int = int8("0+")
        iterations: int = int32("0+")
        salt: bytes = octets("0+")
        salted_password: bytes = octets("0+")

    deletions: list[ScramCredentialDeletion] = array("0+")
    upsertions: list[ScramCredentialUpsertion] = array("0+")


class AlterUserScramCredentialsResponse(Message, api_key=51, versions="0", flexible="0+"):
    """The outcome for every user."""

    class AlterUserScramCredentialsResult(Struct):
        user: str = string("0+")
        error_code: int = int16("0+")
        error_message: str | None = nullable_string("0+", "0+", "")

    throttle_time_ms: int = int32("0+")
    results: list[AlterUserScramCredentialsResult] = array("0+")
