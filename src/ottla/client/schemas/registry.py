"""A client of a schema registry: schemas by id and by guid, kept for ever because they never change.

Zone: real. Threads may share one. Works with Confluent's Schema Registry and with `ottla registry`.
"""

from __future__ import annotations

import base64
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from ottla.client.errors import ClientError
from ottla.schemas.errors import InvalidSchema

TIMEOUT_S: Final = 30.0
MAX_REFERENCES: Final = 100
"""Most schemas that one refers to, those that it reaches through others included."""
_ANSWER_MAX: Final = 16 * 1024 * 1024
"""Most bytes of an answer."""
_MEDIA_TYPE: Final = "application/vnd.schemaregistry.v1+json"
T = TypeVar("T")


class RegistryRequestError(ClientError):
    """The registry refused a request, or could not be reached. `code` is its error code; 0: there was no answer."""

    def __init__(self, code: int, cause: str) -> None:
        super().__init__(cause)
        self.code = code
        self.retriable = self.is_outage

    @property
    def is_outage(self) -> bool:
        """Whether the same request may be answered later: there was no answer, or the registry failed (HTTP 5xx)."""
        return self.code == 0 or str(self.code).startswith("5")


class SchemaReference(NamedTuple):
    """A schema that another one refers to."""

    name: str
    """The name that it is referred to by."""
    subject: str
    version: int


class Schema(NamedTuple):
    """A schema as it is registered. The names are those of confluent-kafka."""

    schema_str: str
    schema_type: str = "AVRO"
    """AVRO, JSON or PROTOBUF."""
    references: Sequence[SchemaReference] = ()


class SchemaVersion(NamedTuple):
    """A schema in a subject."""

    id: int
    guid: str | None
    """None: the registry is older than guids are."""
    version: int
    """0: the registry does not name it."""


class RegisteredSchema(NamedTuple):
    """A schema of the registry."""

    text: str
    type: str
    """AVRO, JSON or PROTOBUF."""
    references: tuple[tuple[str, str], ...] = ()
    """Name and text of the schemas that it refers to, each after those that it refers to itself."""
    message: str = ""
    """The message that a reader wants of a schema of Protobuf; empty: the first one."""


class _Names(NamedTuple):
    path: str
    member: str
    answer: str
    missing: frozenset[int]
    """Error codes for a subject that has none of its own; registries of earlier releases do not find the subject."""


class RegistrySetting(Enum):
    """A setting of a subject, or of all that have none."""

    COMPATIBILITY = _Names("/config", "compatibility", "compatibilityLevel", frozenset({40401, 40408}))
    MODE = _Names("/mode", "mode", "mode", frozenset({40401, 40409}))


class SchemaRegistry:
    """Asks one registry."""

    def __init__(self, url: str, *, ca_file: str | None = None) -> None:
        """url: `http://HOST:PORT`, or `https://USER:PASSWORD@HOST`; user and password percent-encoded.

        ca_file: PEM certificates that are trusted besides those of the system.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise RegistryRequestError(0, f"{parts.scheme or url!r} is not the address of a registry: http://HOST:PORT")
        self._base = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", ""))
        self._headers = {"Accept": _MEDIA_TYPE}
        if parts.username is not None:
            user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = "Basic " + base64.b64encode(user.encode()).decode()
        self._tls = ssl.create_default_context(cafile=ca_file) if parts.scheme == "https" else None
        self._schemas: dict[int | str, RegisteredSchema] = {}

    def find_version(self, subject: str, version: int | str = "latest") -> tuple[int, RegisteredSchema]:
        """The id and the schema of a version of a subject. Raises RegistryRequestError, InvalidSchema."""
        document = self._ask(f"/subjects/{quote(subject, safe='')}/versions/{version}")
        return self._read(lambda: (int(document["id"]), self._read_schema(document)))

    def register(self, subject: str, schema: RegisteredSchema) -> int:
        """The id of a schema in a subject; registers it there, unless it is. Raises RegistryRequestError."""
        if schema.references:
            raise RegistryRequestError(0, "a schema with references is registered with their subjects and versions")
        body = json.dumps({"schema": schema.text, "schemaType": schema.type}).encode()
        document = self._ask(f"/subjects/{quote(subject, safe='')}/versions", body)
        return self._read(lambda: int(document["id"]))

    def register_schema(self, subject: str, schema: Schema, *, normalize: bool = False) -> SchemaVersion:
        """Register a schema in a subject, unless it is there. Raises RegistryRequestError."""
        path = f"/subjects/{quote(subject, safe='')}/versions"
        return self._post_schema(path, schema, normalize)

    def lookup_schema(self, subject: str, schema: Schema, *, normalize: bool = False) -> SchemaVersion:
        """The version of a subject that has a schema. Raises RegistryRequestError: 40401 and 40403, there is none."""
        return self._post_schema(f"/subjects/{quote(subject, safe='')}", schema, normalize)

    def list_subjects(self) -> list[str]:
        """The names of the subjects, sorted. Raises RegistryRequestError."""
        answer = self._ask("/subjects")
        return self._read(lambda: sorted(map(str, answer)))

    def check_compatibility(self, subject: str, schema: Schema) -> list[str]:
        """Why a schema breaks the level of its subject, compared with the versions that the level names; empty: it does
        not. Raises RegistryRequestError."""
        path = f"/compatibility/subjects/{quote(subject, safe='')}/versions?verbose=true"
        document = self._ask(path, _schema_body(schema))
        no_reason = ["it is not compatible; the registry gives no reason"]
        return self._read(lambda: [] if document["is_compatible"] else document.get("messages") or no_reason)

    def delete_subject(self, subject: str, *, permanent: bool = False) -> list[int]:
        """Delete a subject; the versions that it had. Raises RegistryRequestError."""
        path = f"/subjects/{quote(subject, safe='')}?permanent={str(permanent).lower()}"
        answer = self._ask(path, method="DELETE")
        return self._read(lambda: list(map(int, answer)))

    def delete_version(self, subject: str, version: int, *, permanent: bool = False) -> int:
        """Delete a version of a subject; its number. Raises RegistryRequestError."""
        path = f"/subjects/{quote(subject, safe='')}/versions/{version}?permanent={str(permanent).lower()}"
        answer = self._ask(path, method="DELETE")
        return self._read(lambda: int(answer))

    def find_setting(self, setting: RegistrySetting, subject: str | None = None) -> str | None:
        """The level or the mode of a subject, None if that of all subjects counts; of all subjects without a name.

        Raises RegistryRequestError.
        """
        try:
            document = self._ask(_setting_path(setting, subject))
        except RegistryRequestError as error:
            if subject is not None and error.code in setting.value.missing:
                return None
            raise
        return self._read(lambda: str(document[setting.value.answer]))

    def set_setting(
        self, setting: RegistrySetting, value: str, subject: str | None = None, *, force: bool = False
    ) -> None:
        """Set the level or the mode of a subject, or of all that have none. Raises RegistryRequestError.

        force: mode IMPORT also where there are schemas.
        """
        body = json.dumps({setting.value.member: value}).encode()
        self._ask(_setting_path(setting, subject) + ("?force=true" if force else ""), body, "PUT")

    def delete_setting(self, setting: RegistrySetting, subject: str) -> None:
        """From now on the level or the mode of all subjects counts. Raises RegistryRequestError."""
        self._ask(_setting_path(setting, subject), method="DELETE")

    def find_latest(self, subject: str) -> tuple[SchemaVersion, RegisteredSchema]:
        """The latest version of a subject. Raises RegistryRequestError, InvalidSchema."""
        document = self._ask(f"/subjects/{quote(subject, safe='')}/versions/latest")
        return self._read(lambda: (_version_of(document), self._read_schema(document)))

    def find_references(self, references: Sequence[SchemaReference]) -> tuple[tuple[str, str], ...]:
        """Name and text of references and of those that they refer to, each after those that it refers to itself.

        Raises RegistryRequestError, InvalidSchema: too many references.
        """
        texts: dict[str, str] = {}
        document = {"references": [each._asdict() for each in references]}
        self._read(lambda: self._collect_references(document, texts, set()))
        return tuple(texts.items())

    def _post_schema(self, path: str, schema: Schema, normalize: bool) -> SchemaVersion:
        document = self._ask(path + ("?normalize=true" if normalize else ""), _schema_body(schema))
        return self._read(lambda: _version_of(document))

    def find_schema(self, name: int | str) -> RegisteredSchema:
        """The schema of an id or a guid. Raises RegistryRequestError, InvalidSchema: too many references."""
        found = self._schemas.get(name)
        if found is None:
            kind = "ids" if isinstance(name, int) else "guids"
            document = self._ask(f"/schemas/{kind}/{name}")
            found = self._schemas[name] = self._read(lambda: self._read_schema(document))
        return found

    def _read(self, read: Callable[[], T]) -> T:
        try:
            return read()
        except InvalidSchema:
            raise
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            cause = f"the answer of the schema registry at {self._base} is no schema: {type(error).__name__}: {error}"
            raise RegistryRequestError(0, cause) from error

    def _read_schema(self, document: Any) -> RegisteredSchema:
        texts: dict[str, str] = {}
        self._collect_references(document, texts, set())
        return RegisteredSchema(_text_of(document), document.get("schemaType") or "AVRO", tuple(texts.items()))

    def _collect_references(self, document: Any, texts: dict[str, str], asked: set[str]) -> None:
        for each in document.get("references") or ():
            if each["name"] in asked:
                continue
            if len(asked) == MAX_REFERENCES:
                raise InvalidSchema(f"it refers to more than {MAX_REFERENCES} others")
            asked.add(each["name"])
            below = self._ask(f"/subjects/{quote(each['subject'], safe='')}/versions/{each['version']}?deleted=true")
            self._collect_references(below, texts, asked)
            texts[each["name"]] = _text_of(below)

    def _ask(self, path: str, body: bytes | None = None, method: str | None = None) -> Any:
        headers = self._headers if body is None else {**self._headers, "Content-Type": _MEDIA_TYPE}
        request = urllib.request.Request(self._base + path, body, headers, method=method)  # noqa: S310  # the scheme is checked
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=self._tls) as answer:  # noqa: S310
                return json.loads(answer.read(_ANSWER_MAX))
        except urllib.error.HTTPError as error:
            raise _refusal(self._base, error) from error
        except (OSError, ValueError, RecursionError) as error:
            raise RegistryRequestError(0, f"the schema registry at {self._base} does not answer: {error}") from error


def _setting_path(setting: RegistrySetting, subject: str | None) -> str:
    return setting.value.path + ("" if subject is None else f"/{quote(subject, safe='')}")


def _schema_body(schema: Schema) -> bytes:
    references = [each._asdict() for each in schema.references]
    return json.dumps(
        {"schema": schema.schema_str, "schemaType": schema.schema_type, "references": references}
    ).encode()


def _version_of(document: Any) -> SchemaVersion:
    guid = document.get("guid")
    return SchemaVersion(int(document["id"]), None if guid is None else str(guid), int(document.get("version") or 0))


def _text_of(document: Any) -> str:
    if not isinstance(document["schema"], str):
        raise TypeError("its text is none")
    return document["schema"]


def _refusal(base: str, error: urllib.error.HTTPError) -> RegistryRequestError:
    try:
        document = json.loads(error.read(_ANSWER_MAX))
        return RegistryRequestError(int(document["error_code"]), f"schema registry at {base}: {document['message']}")
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return RegistryRequestError(error.code, f"schema registry at {base}: HTTP {error.code} {error.reason}")
