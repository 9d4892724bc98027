"""The REST interface: paths, parameters and answers of Schema Registry 7.

Zone: deterministic. A handler gets a `Request`, and returns what is decided or answered; nothing here knows HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from ottla.registry import errors
from ottla.registry.administration import Administration
from ottla.registry.records import Reference, Schema, SubjectVersion
from ottla.registry.registration import Decision, NewSchema, Registration
from ottla.registry.state import RegistryState
from ottla.registry.subjects import ALL_CONTEXTS, DEFAULT_CONTEXT, context_of, has_prefix, qualify
from ottla.schemas.formats import FORMATS

MAX_SUBJECT: Final = 10_000
"""Maximum length of a subject's name."""


class Request(NamedTuple):
    """A request whose path has matched a route."""

    path: Mapping[str, str]
    """Parts of the path by name; `context` is there for paths below `/contexts/{context}`."""
    query: Mapping[str, str]
    body: Any = None
    """The JSON document of the body; None: there is none."""

    def is_set(self, name: str) -> bool:
        """Whether a parameter is true."""
        return self.query.get(name, "false").lower() == "true"

    @property
    def subject(self) -> str:
        """The subject of the path. Raises RegistryError."""
        name = self.path["subject"]
        if not name or len(name) > MAX_SUBJECT or any(character < " " for character in name):
            raise errors.invalid_subject(name)
        return qualify(self.path.get("context", DEFAULT_CONTEXT), name)

    @property
    def id(self) -> int:
        """The id of the path. Raises RegistryError."""
        text = self.path["id"]
        if not text.isdecimal() or int(text) >= 2**31:
            raise errors.RegistryError(404, "HTTP 404 Not Found")
        return int(text)

    @property
    def context(self) -> str:
        """The context for an id: that of the parameter `subject`, or of the path."""
        given = self.query.get("subject", "")
        return context_of(given) if given.startswith(":.") else self.path.get("context", DEFAULT_CONTEXT)

    def page(self, found: list[Any]) -> list[Any]:
        """The part of a list that `offset` and `limit` name; a negative limit: all."""
        begin, count = self._number("offset", 0), self._number("limit", -1)
        return found[begin:] if count < 0 else found[begin : begin + count]

    def _number(self, name: str, default: int) -> int:
        text = self.query.get(name, str(default))
        if not text.lstrip("-").isdecimal() or len(text) > 10:
            raise errors.RegistryError(404, "HTTP 404 Not Found")
        return max(int(text), -1 if name == "limit" else 0)


class Routes:
    """Handles requests by a state."""

    def __init__(self, state: RegistryState, cluster_id: str = "") -> None:
        self._state = state
        self._cluster_id = cluster_id
        self._registration = Registration(state)
        self._administration = Administration(state)

    # -- schemas -----------------------------------------------------------------------------------------------------

    def get_schema(self, request: Request) -> object:
        """GET /schemas/ids/{id}"""
        schema = self._schema_of(request)
        answer = _describe_schema(self._format_schema(request, schema)) | {"guid": schema.guid}
        if request.is_set("fetchMaxId"):
            answer["maxId"] = self._state.next_id(request.context) - 1
        return answer

    def get_schema_text(self, request: Request) -> object:
        """GET /schemas/ids/{id}/schema"""
        return Raw(self._format_schema(request, self._schema_of(request)).text)

    def get_users(self, request: Request) -> object:
        """GET /schemas/ids/{id}/versions"""
        return [{"subject": each.subject, "version": each.version} for each in self._users_of(request)]

    def get_user_subjects(self, request: Request) -> object:
        """GET /schemas/ids/{id}/subjects"""
        return sorted({each.subject for each in self._users_of(request)})

    def get_types(self, _: Request) -> object:
        """GET /schemas/types"""
        return sorted(FORMATS)

    def get_schemas(self, request: Request) -> object:
        """GET /schemas"""
        prefix, latest = request.query.get("subjectPrefix", ALL_CONTEXTS), request.is_set("latestOnly")
        found: list[SubjectVersion] = []
        for subject in self._state.subjects(deleted=request.is_set("deleted")):
            if has_prefix(subject, prefix):
                versions = self._state.versions(subject, deleted=request.is_set("deleted"))
                found += versions[-1:] if latest else versions
        return [_describe_version(each) for each in request.page(found)]

    def get_by_guid(self, request: Request) -> object:
        """GET /schemas/guids/{guid}"""
        schema = self._state.schema_of_guid(request.path["guid"])
        if schema is None:
            raise errors.schema_not_found()
        return _describe_schema(self._format_schema(request, schema)) | {"guid": schema.guid}

    def _format_schema(self, request: Request, schema: Schema) -> Schema:
        """The schema, with its text in the format that the parameter `format` names."""
        return self._registration.serialize(schema) if request.query.get("format") == "serialized" else schema

    def _schema_of(self, request: Request) -> Schema:
        schema = self._state.schema_of_id(request.context, request.id)
        if schema is None:
            raise errors.schema_not_found(request.id)
        return schema

    def _users_of(self, request: Request) -> list[SubjectVersion]:
        self._schema_of(request)
        users = self._state.users_of_id(request.context, request.id)
        return [each for each in users if not each.is_deleted or request.is_set("deleted")]

    # -- subjects ----------------------------------------------------------------------------------------------------

    def get_subjects(self, request: Request) -> object:
        """GET /subjects"""
        prefix = request.query.get("subjectPrefix", ALL_CONTEXTS)
        context = request.path.get("context", DEFAULT_CONTEXT)
        prefix = prefix if context == DEFAULT_CONTEXT else qualify(context, prefix.removeprefix(ALL_CONTEXTS))
        names = self._state.subjects(deleted=request.is_set("deleted") or request.is_set("deletedOnly"))
        if request.is_set("deletedOnly"):
            names = [name for name in names if not self._state.versions(name)]
        return request.page([name for name in names if has_prefix(name, prefix)])

    def get_versions(self, request: Request) -> object:
        """GET /subjects/{subject}/versions"""
        only = request.is_set("deletedOnly")
        found = self._versions_of(request, deleted=only or request.is_set("deleted"))
        return request.page([each.version for each in found if each.is_deleted or not only])

    def get_version(self, request: Request) -> object:
        """GET /subjects/{subject}/versions/{version}"""
        found = self._version_of(request)
        return _describe_version(found) | _describe_schema(self._format_schema(request, found.schema))

    def get_version_text(self, request: Request) -> object:
        """GET /subjects/{subject}/versions/{version}/schema"""
        return Raw(self._format_schema(request, self._version_of(request).schema).text)

    def get_referrers(self, request: Request) -> object:
        """GET /subjects/{subject}/versions/{version}/referencedby"""
        found = self._version_of(request)
        users = self._state.referrers(found.subject, found.version)
        return [each.id for each in users if not each.is_deleted]

    def find_schema(self, request: Request) -> object:
        """POST /subjects/{subject}"""
        schema = _new_schema(request.body).schema
        found = self._registration.find(request.subject, schema, deleted=request.is_set("deleted"))
        return _describe_version(found) | _describe_schema(self._format_schema(request, found.schema))

    def register(self, request: Request) -> object:
        """POST /subjects/{subject}/versions"""
        found, records = self._registration.register(request.subject, _new_schema(request.body))
        return Decision({"id": found.id, "guid": found.schema.guid}, records)

    def delete_subject(self, request: Request) -> object:
        """DELETE /subjects/{subject}"""
        return self._administration.delete_subject(request.subject, permanent=request.is_set("permanent"))

    def delete_version(self, request: Request) -> object:
        """DELETE /subjects/{subject}/versions/{version}"""
        permanent = request.is_set("permanent")
        version = self._number_of(request, deleted=permanent)
        return self._administration.delete_version(request.subject, version, permanent=permanent)

    def _versions_of(self, request: Request, *, deleted: bool = False) -> list[SubjectVersion]:
        versions = self._state.versions(request.subject, deleted=deleted)
        if not versions:
            raise errors.subject_not_found(request.subject)
        return versions

    def _number_of(self, request: Request, *, deleted: bool = False) -> int:
        text = request.path["version"]
        if text in ("latest", "-1"):
            return self._versions_of(request, deleted=deleted)[-1].version
        if not text.isdecimal() or not 1 <= int(text) < 2**31:
            raise errors.invalid_version(text)
        return int(text)

    def _version_of(self, request: Request) -> SubjectVersion:
        deleted = request.is_set("deleted")
        versions, number = self._versions_of(request, deleted=deleted), self._number_of(request, deleted=deleted)
        found = next((each for each in versions if each.version == number), None)
        if found is None:
            raise errors.version_not_found(number)
        return found

    # -- compatibility, levels, modes ----------------------------------------------------------------------------------

    def compare_with_version(self, request: Request) -> object:
        """POST /compatibility/subjects/{subject}/versions/{version}"""
        return self._compared(request, [self._version_of(request)])

    def compare_with_all(self, request: Request) -> object:
        """POST /compatibility/subjects/{subject}/versions"""
        return self._compared(request, self._state.versions(request.subject))

    def _compared(self, request: Request, versions: list[SubjectVersion]) -> object:
        reasons = self._registration.compare(request.subject, _new_schema(request.body).schema, versions)
        answer: dict[str, object] = {"is_compatible": not reasons}
        return answer | {"messages": reasons} if request.is_set("verbose") else answer

    def get_level(self, request: Request) -> object:
        """GET /config, GET /config/{subject}"""
        level = self._administration.level(_optional_subject(request), or_global=request.is_set("defaultToGlobal"))
        return {"compatibilityLevel": level}

    def set_level(self, request: Request) -> object:
        """PUT /config, PUT /config/{subject}"""
        decided = self._administration.set_level(_optional_subject(request), _member(request.body, "compatibility"))
        return decided._replace(answer={"compatibility": decided.answer})

    def delete_level(self, request: Request) -> object:
        """DELETE /config, DELETE /config/{subject}"""
        decided = self._administration.delete_level(_optional_subject(request))
        return decided._replace(answer={"compatibilityLevel": decided.answer})

    def get_mode(self, request: Request) -> object:
        """GET /mode, GET /mode/{subject}"""
        mode = self._administration.mode(_optional_subject(request), or_global=request.is_set("defaultToGlobal"))
        return {"mode": mode}

    def set_mode(self, request: Request) -> object:
        """PUT /mode, PUT /mode/{subject}"""
        mode, force = _member(request.body, "mode"), request.is_set("force")
        decided = self._administration.set_mode(_optional_subject(request), mode, force=force)
        return decided._replace(answer={"mode": decided.answer})

    def delete_mode(self, request: Request) -> object:
        """DELETE /mode/{subject}"""
        decided = self._administration.delete_mode(request.subject)
        return decided._replace(answer={"mode": decided.answer})

    # -- others --------------------------------------------------------------------------------------------------------

    def get_contexts(self, _: Request) -> object:
        """GET /contexts"""
        return self._state.contexts()

    def get_root(self, _: Request) -> object:
        """GET /"""
        return {}

    def get_cluster(self, _: Request) -> object:
        """GET /v1/metadata/id"""
        return {
            "scope": {
                "path": [],
                "clusters": {"kafka-cluster": self._cluster_id, "schema-registry-cluster": "schema-registry"},
            }
        }


Handler = Callable[[Routes, Request], object]
"""Returns a Decision if the request changes something, or else the answer. Raises RegistryError."""


class Raw(NamedTuple):
    """An answer that is text already."""

    text: str


def _optional_subject(request: Request) -> str | None:
    if "subject" in request.path:
        return request.subject
    context = request.path.get("context", DEFAULT_CONTEXT)
    return None if context == DEFAULT_CONTEXT else f":{context}:"


def _member(body: Any, name: str) -> Any:
    if not isinstance(body, dict):
        raise errors.RegistryError(400, "the body is not a JSON object")
    return body.get(name)


def _new_schema(body: Any) -> NewSchema:
    """The schema of a body. Raises RegistryError."""
    text, kind = _member(body, "schema"), _member(body, "schemaType") or "AVRO"
    if not isinstance(text, str) or not text:
        raise errors.RegistryError(42201, "Empty schema")
    if not isinstance(kind, str):
        raise errors.RegistryError(400, "schemaType is not a text")
    return NewSchema(Schema(text, kind, _references_of(body)), _integer(body, "id"), _integer(body, "version"))


def _references_of(body: Any) -> tuple[Reference, ...]:
    given = body.get("references") or []
    try:
        return tuple(Reference(str(each["name"]), str(each["subject"]), int(each["version"])) for each in given)
    except (TypeError, KeyError, ValueError) as error:
        raise errors.RegistryError(400, "references are objects with name, subject and version") from error


def _integer(body: Any, name: str) -> int:
    value = body.get(name)
    if value is None:
        return -1
    if type(value) is not int or not -1 <= value < 2**31:
        raise errors.RegistryError(400, f"{name} is not an id or version")
    return value


def _describe_schema(schema: Schema) -> dict[str, object]:
    answer: dict[str, object] = {}
    if schema.type != "AVRO":
        answer["schemaType"] = schema.type
    answer["schema"] = schema.text
    if schema.references:
        answer["references"] = [each._asdict() for each in schema.references]
    return answer


def _describe_version(of: SubjectVersion) -> dict[str, object]:
    head: dict[str, object] = {"subject": of.subject, "version": of.version, "id": of.id, "guid": of.schema.guid}
    return head | _describe_schema(of.schema) | ({"deleted": True} if of.is_deleted else {})


READING: Final[Mapping[tuple[str, str], Handler]] = {
    ("GET", "/"): Routes.get_root,
    ("GET", "/contexts"): Routes.get_contexts,
    ("GET", "/v1/metadata/id"): Routes.get_cluster,
    ("GET", "/schemas"): Routes.get_schemas,
    ("GET", "/schemas/types"): Routes.get_types,
    ("GET", "/schemas/guids/{guid}"): Routes.get_by_guid,
    ("GET", "/schemas/ids/{id}"): Routes.get_schema,
    ("GET", "/schemas/ids/{id}/schema"): Routes.get_schema_text,
    ("GET", "/schemas/ids/{id}/versions"): Routes.get_users,
    ("GET", "/schemas/ids/{id}/subjects"): Routes.get_user_subjects,
    ("GET", "/subjects"): Routes.get_subjects,
    ("POST", "/subjects/{subject}"): Routes.find_schema,
    ("GET", "/subjects/{subject}/versions"): Routes.get_versions,
    ("GET", "/subjects/{subject}/versions/{version}"): Routes.get_version,
    ("GET", "/subjects/{subject}/versions/{version}/schema"): Routes.get_version_text,
    ("GET", "/subjects/{subject}/versions/{version}/referencedby"): Routes.get_referrers,
    ("POST", "/compatibility/subjects/{subject}/versions"): Routes.compare_with_all,
    ("POST", "/compatibility/subjects/{subject}/versions/{version}"): Routes.compare_with_version,
    ("GET", "/config"): Routes.get_level,
    ("GET", "/config/{subject}"): Routes.get_level,
    ("GET", "/mode"): Routes.get_mode,
    ("GET", "/mode/{subject}"): Routes.get_mode,
}
"""Method and path → handler, of requests that are answered from the state. All but `/`, `/contexts` and `/v1/…` are
below `/contexts/{context}` as well."""
WRITING: Final[Mapping[tuple[str, str], Handler]] = {
    ("DELETE", "/subjects/{subject}"): Routes.delete_subject,
    ("POST", "/subjects/{subject}/versions"): Routes.register,
    ("DELETE", "/subjects/{subject}/versions/{version}"): Routes.delete_version,
    ("PUT", "/config"): Routes.set_level,
    ("DELETE", "/config"): Routes.delete_level,
    ("PUT", "/config/{subject}"): Routes.set_level,
    ("DELETE", "/config/{subject}"): Routes.delete_level,
    ("PUT", "/mode"): Routes.set_mode,
    ("PUT", "/mode/{subject}"): Routes.set_mode,
    ("DELETE", "/mode/{subject}"): Routes.delete_mode,
}
"""The same of requests that are answered by a Decision, when its records are written."""
