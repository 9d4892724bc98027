"""The errors of the REST interface, with Schema Registry's codes.

Zone: pure.
"""

from __future__ import annotations

from collections.abc import Sequence


class RegistryError(Exception):
    """A refused request: an HTTP status is the first three digits of its code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self.code if self.code < 1000 else int(str(self.code)[:3])


def subject_not_found(subject: str) -> RegistryError:
    """40401."""
    return RegistryError(40401, f"Subject '{subject}' not found.")


def version_not_found(version: int) -> RegistryError:
    """40402."""
    return RegistryError(40402, f"Version {version} not found.")


def schema_not_found(id_: int | None = None) -> RegistryError:
    """40403."""
    return RegistryError(40403, "Schema not found" if id_ is None else f"Schema {id_} not found")


def subject_soft_deleted(subject: str) -> RegistryError:
    """40404."""
    return RegistryError(40404, f"Subject '{subject}' was soft deleted. Set permanent=true to delete permanently")


def subject_not_soft_deleted(subject: str) -> RegistryError:
    """40405."""
    return RegistryError(40405, f"Subject '{subject}' was not deleted first before being permanently deleted")


def version_soft_deleted(subject: str, version: int) -> RegistryError:
    """40406."""
    text = f"Subject '{subject}' Version {version} was soft deleted. Set permanent=true to delete permanently"
    return RegistryError(40406, text)


def version_not_soft_deleted(subject: str, version: int) -> RegistryError:
    """40407."""
    text = f"Subject '{subject}' Version {version} was not deleted first before being permanently deleted"
    return RegistryError(40407, text)


def no_subject_config(subject: str) -> RegistryError:
    """40408."""
    return RegistryError(40408, f"Subject '{subject}' does not have subject-level compatibility configured")


def no_subject_mode(subject: str) -> RegistryError:
    """40409."""
    return RegistryError(40409, f"Subject '{subject}' does not have subject-level mode configured")


def incompatible(reasons: Sequence[str]) -> RegistryError:
    """409."""
    text = "Schema being registered is incompatible with an earlier schema, details: "
    return RegistryError(409, text + "[" + ", ".join(reasons) + "]")


def invalid_schema(reason: object) -> RegistryError:
    """42201."""
    return RegistryError(42201, f"Invalid schema: {reason}")


def invalid_version(version: object) -> RegistryError:
    """42202."""
    text = 'is not a valid version id. Allowed values are between [1, 2^31-1] and the string "latest"'
    return RegistryError(42202, f"The specified version '{version}' {text}")


def invalid_level(levels: Sequence[str]) -> RegistryError:
    """42203."""
    return RegistryError(42203, f"Invalid compatibility level. Valid values are {', '.join(levels)}")


def invalid_mode(modes: Sequence[str]) -> RegistryError:
    """42204."""
    return RegistryError(42204, f"Invalid mode. Valid values are {', '.join(modes)}")


def not_permitted(reason: str) -> RegistryError:
    """42205."""
    return RegistryError(42205, reason)


def is_referenced(subject: str, version: int) -> RegistryError:
    """42206."""
    text = f"{{magic=1,keytype=SCHEMA,subject={subject},version={version}}}"
    return RegistryError(42206, f"One or more references exist to the schema {text}.")


def invalid_subject(subject: str) -> RegistryError:
    """42208."""
    return RegistryError(42208, f"The specified subject '{subject}' is not a valid.")
