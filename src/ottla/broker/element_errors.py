"""The response to a request that fails as a whole, if its response has error fields in its elements only.

Zone: pure. A request about too many topics, groups or resources gets the error for each of them, as in Apache Kafka;
its connection is not closed. Elements of request and response are matched by their declarations.
"""

from __future__ import annotations

from struct import calcsize
from typing import Any, Final, cast

from ottla.errors import ApiError
from ottla.wire.apis import API_TABLE, ApiKey
from ottla.wire.schema import NUMBERS, Field, StructType, struct_class

ELEMENTS_MAX: Final = 100_000
"""Most elements of such a response; for more of them there is none, because it would block the loop."""
ELEMENT_COST: Final = 256
"""Bytes of memory that the response for one element takes …"""
AMPLIFICATION: Final = 16
"""… and bytes of memory that a request may cause per byte of its own …"""
ALLOWANCE: Final = 1 << 20
"""… beyond this number. A request that would cause more gets no such response either."""
_ERROR: Final = "error_code"
_PLACES: Final = (_ERROR, "partition_error_code")
_MESSAGE: Final = "error_message"
_IDENTITY: Final = {
    "name": ("name",),
    "topic": ("topic",),
    "topic_id": ("topic_id",),
    "index": ("index",),
    "partition": ("partition",),
    "partition_index": ("partition_index", "partition"),
    "producer_id": ("producer_id",),
    "resource_type": ("resource_type",),
    "resource_name": ("resource_name",),
    "group_id": ("group_id",),
}
"""The fields that identify an element: the name in the response, and possible names in the request."""
_POSITIONS: Final = ("base_offset", "high_watermark", "committed_offset", "low_watermark")
"""Fields with offsets, which are -1 beside an error although their declared default is another."""
_UNPAIRED: Final = frozenset(
    (
        ApiKey.ALTER_REPLICA_LOG_DIRS,
        ApiKey.DESCRIBE_LOG_DIRS,
        ApiKey.ALTER_CLIENT_QUOTAS,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
    )
)
"""APIs whose responses have other elements than their requests."""


def element_errors(api_key: int, version: int, request: Any, error: ApiError) -> object | None:
    """The response with the error in each element; None if it has one error field for the whole, or none at all."""
    kind = API_TABLE[api_key].response
    if api_key in _UNPAIRED or any(field.name == _ERROR and field.exists_in(version) for field in kind.FIELDS):
        return None
    response = kind()
    # A short request may name many elements (by ids), and each one costs far more memory in the response.
    elements, size = _measure_request(request, version)
    if not 0 < elements <= ELEMENTS_MAX or elements * ELEMENT_COST > size * AMPLIFICATION + ALLOWANCE:
        return None
    return response if _fill_response(response, request, version, error) else None


def _elements_of(request: Any, version: int) -> list[Any]:
    """The elements of a request, or of an element of one."""
    if not hasattr(type(request), "FIELDS"):
        return []
    arrays = (field for field in request.FIELDS if field.type == "array" and field.exists_in(version))
    return next((elements for field in arrays if (elements := getattr(request, field.name))), [])


def _measure_request(request: Any, version: int) -> tuple[int, int]:
    """The number of elements that a request names, and about how many bytes of the request name them."""
    elements = size = 0
    for asked in _elements_of(request, version):
        below, named = _measure_request(asked, version)
        elements += 1 + below
        size += named + _named_size(asked, version)
    return elements, size


def _named_size(asked: Any, version: int) -> int:
    if isinstance(asked, (str, int)):
        return 2 + len(asked) if isinstance(asked, str) else 4
    fields = [field for field in asked.FIELDS if field.exists_in(version)]
    texts = sum(len(text) for field in fields if type(text := getattr(asked, field.name)) is str)
    return texts + sum(calcsize(NUMBERS[field.type]) for field in fields if field.type in NUMBERS)


def _fill_response(response: Any, request: Any, version: int, error: ApiError) -> bool:
    """Add an error for each element of the request; False if the response has no field for that."""
    for field in response.FIELDS:
        if field.type == "array" and field.of == "struct" and field.exists_in(version):
            kind = struct_class(cast("StructType", type(response)), field)
            if _has_place(kind, version):
                setattr(
                    response,
                    field.name,
                    [_refused_element(kind, asked, version, error) for asked in _elements_of(request, version)],
                )
                return True
    return False


def _has_place(kind: StructType, version: int) -> bool:
    return any(
        field.exists_in(version) and (field.name in _PLACES or _leads_to_place(kind, field, version))
        for field in kind.FIELDS
    )


def _leads_to_place(kind: StructType, field: Field, version: int) -> bool:
    return field.type == "array" and field.of == "struct" and _has_place(struct_class(kind, field), version)


def _refused_element(kind: StructType, asked: Any, version: int, error: ApiError) -> Any:
    element = kind()
    names = {field.name: field for field in kind.FIELDS if field.exists_in(version)}
    if isinstance(asked, (str, int)):
        setattr(element, _key_field(kind, asked), asked)
    else:
        _copy_identity(element, asked, names, version)
    for name in names.keys() & _POSITIONS:
        setattr(element, name, -1)
    places = [name for name in _PLACES if name in names]
    if places:
        setattr(element, places[0], int(error.code))
        if _MESSAGE in names:
            setattr(element, _MESSAGE, error.message or None)
    else:
        _fill_response(element, asked, version, error)
    return element


def _copy_identity(element: Any, asked: Any, names: dict[str, Field], version: int) -> None:
    for name in _IDENTITY.keys() & names.keys():
        source = next((each for each in _IDENTITY[name] if hasattr(asked, each)), None)
        if source is not None:
            value = getattr(asked, source)
            if value is not None or names[name].may_be_null(version):
                setattr(element, name, value)


def _key_field(kind: StructType, asked: str | int) -> str:
    """The first field with the type of an element that is a plain text or number."""
    wanted = "string" if isinstance(asked, str) else "int32"
    return next(field.name for field in kind.FIELDS if field.type == wanted and field.name != _MESSAGE)
