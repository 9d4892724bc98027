"""Arrow arrays of framed payloads as arrays of one reader's schema, whichever schemas they were written with.

Zone: real. Payloads are decoded per writer's schema. A payload that cannot be read costs its own row; a registry that
cannot be reached costs the whole array, because the payloads may be good. Schemas that are known already are not asked
for again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ottla.client.schemas.registry import RegisteredSchema, RegistryRequestError
from ottla.schemas.columns.formats import ColumnDecoder, make_columns
from ottla.schemas.columns.verdicts import TooManyValues, Verdict
from ottla.schemas.errors import InvalidSchema
from ottla.schemas.framing import KEY_HEADER, VALUE_HEADER, read_framing

ATTEMPTS: Final = 3
PAUSE_S: Final = 1.0
UNKNOWN_S: Final = 60.0
_UNKNOWN_MAX: Final = 10_000
_HTTP_NOT_FOUND: Final = 404
MISSING: Final = (_HTTP_NOT_FOUND, 40402, 40403)
"""Error codes: no such version, no such schema."""
NULL, UNFRAMED = -1, -2
"""In place of a schema: there is no payload, or it is not framed."""

_FRAMED: Final = 5
"""Bytes in front of a payload: 0 and the id of its schema."""
_ID_BYTES: Final = np.arange(1, _FRAMED)

Numbers = npt.NDArray[np.int64]


class SchemaSource(Protocol):
    """Knows schemas by id and guid: a `SchemaRegistry`."""

    def find_schema(self, name: int | str) -> RegisteredSchema:
        """The schema of an id or a guid. Raises RegistryRequestError."""


class Framing(NamedTuple):
    """The schema of some payloads, and how many bytes are in front of them."""

    schema: int | str
    skipped: int
    prefix: bytes = b""
    """Bytes of a header that belong in front of the payload: the indexes of a message of Protobuf."""


class FramedColumns:
    """Decodes arrays of payloads. For one thread."""

    def __init__(
        self,
        registry: SchemaSource,
        reader: RegisteredSchema,
        *,
        pause_s: float = PAUSE_S,
        unknown_s: float = UNKNOWN_S,
    ) -> None:
        """pause_s: between attempts to reach the registry. unknown_s: how long a schema that it lacks is not asked for.

        Raises InvalidSchema for a reader's schema without columns.
        """
        self._registry = registry
        self._pause_s = pause_s
        self._unknown_s = unknown_s
        self._reader = reader
        self.type: pa.DataType = make_columns(reader, reader).type
        """The type of the arrays."""
        self._decoders: dict[int | str, ColumnDecoder | str] = {}
        """By schema; a text: why it cannot be read with the reader's schema."""
        self._unknown: dict[int | str, tuple[float, str]] = {}

    def decode(
        self, payloads: pa.Array, headers: pa.Array | None = None, *, is_key: bool = False
    ) -> tuple[pa.Array, pa.Array]:
        """Decode keys or values (binary). headers: lists of structs of `key` and `value`, where schemas may be named.

        Returns the rows, and per row the reason (string) why it was not read; then it is a null. A null is a null.
        Raises RegistryRequestError: the registry cannot be reached, or refuses its user.
        """
        payloads = payloads.cast(pa.binary())
        pieces: list[pa.Array] = []
        reasons: npt.NDArray[np.object_] | None = None
        order: list[Numbers] = []
        for framing, rows in group_by_schema(payloads, headers, is_key, has_indexes=self._reader.type == "PROTOBUF"):
            part = payloads if len(rows) == len(payloads) else payloads.take(pa.array(rows))
            array, found = self._decode_part(framing, part)
            pieces.append(array)
            order.append(rows)
            # Nearly always there are no reasons: an object per row would take a sixth of the time of decoding.
            if found is not None:
                reasons = np.full(len(payloads), None, object) if reasons is None else reasons
                reasons[rows] = found
        if not pieces:
            return pa.nulls(len(payloads), self.type), pa.nulls(len(payloads), pa.string())
        array = pieces[0] if len(pieces) == 1 else _in_order(pieces, order)
        return array, pa.nulls(len(payloads), pa.string()) if reasons is None else pa.array(reasons, pa.string())

    def _decode_part(self, framing: Framing | int, payloads: pa.Array) -> tuple[pa.Array, Any]:
        if isinstance(framing, int):
            reason = None if framing == NULL else "it is not framed with the id of a schema"
            return pa.nulls(len(payloads), self.type), reason
        decoder = self._find_decoder(framing.schema)
        if isinstance(decoder, str):
            return pa.nulls(len(payloads), self.type), decoder
        try:
            array, verdicts = decoder.decode(_with_prefix(framing.prefix, payloads), framing.skipped)
        except TooManyValues as error:
            return self._decode_halves(framing, payloads, error)
        return array, self._explain(framing.schema, verdicts)

    def _decode_halves(self, framing: Framing, payloads: pa.Array, error: TooManyValues) -> tuple[pa.Array, Any]:
        if len(payloads) == 1:
            return pa.nulls(1, self.type), str(error)
        half = len(payloads) // 2
        parts = [self._decode_part(framing, each) for each in (payloads[:half], payloads[half:])]
        reasons = [
            np.full(len(array), found, object) if found is None or isinstance(found, str) else found
            for array, found in parts
        ]
        return pa.concat_arrays([array for array, _ in parts]), np.concatenate(reasons)

    def _explain(self, schema: int | str, verdicts: npt.NDArray[np.uint8]) -> npt.NDArray[np.object_] | None:
        if not verdicts.any():  # all are READ
            return None
        texts = {
            Verdict.READ: None,
            Verdict.NOT_WRITTEN_WITH_IT: f"it was not written with schema {schema}, which it names",
            Verdict.NOT_READABLE: f"the reader's schema cannot read this value of schema {schema}",
        }
        return np.array([texts[each] for each in Verdict], object)[verdicts]

    def _find_decoder(self, name: int | str) -> ColumnDecoder | str:
        found = self._decoders.get(name)
        if found is not None:
            return found
        since, reason = self._unknown.get(name, (0.0, ""))
        if reason and time.monotonic() - since < self._unknown_s:
            return reason
        try:
            self._decoders[name] = make_columns(find_schema(self._registry, name, self._pause_s), self._reader)
        except RegistryRequestError as error:
            if error.code not in MISSING:
                raise
            return self._remember_unknown(name, f"the registry has no schema {name}: {error}")
        except InvalidSchema as error:
            self._decoders[name] = f"schema {name} cannot be read with the reader's schema: {error}"
        return self._decoders[name]

    def _remember_unknown(self, name: int | str, reason: str) -> str:
        if len(self._unknown) >= _UNKNOWN_MAX:
            self._unknown.clear()
        self._unknown[name] = time.monotonic(), reason
        return reason


def find_schema(registry: SchemaSource, name: int | str, pause_s: float = PAUSE_S) -> RegisteredSchema:
    """The schema of an id or a guid; a registry that does not answer is asked again. Raises RegistryRequestError."""
    for _ in range(ATTEMPTS - 1):
        try:
            return registry.find_schema(name)
        except RegistryRequestError as error:
            if not error.is_outage:
                raise
            time.sleep(pause_s)
    return registry.find_schema(name)


def _with_prefix(prefix: bytes, payloads: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(prefix, payloads, b"") if prefix else payloads


def _in_order(pieces: list[pa.Array], order: list[Numbers]) -> pa.Array:
    """The pieces as one array; `order` has the row of each of their elements."""
    return pa.concat_arrays(pieces).take(pa.array(np.argsort(np.concatenate(order))))


def group_by_schema(
    payloads: pa.Array, headers: pa.Array | None, is_key: bool, *, has_indexes: bool
) -> Iterator[tuple[Framing | int, Numbers]]:
    """The schemas that payloads name, or NULL or UNFRAMED, each with its rows."""
    codes = _ids_in_front(payloads)
    others: dict[Framing, int] = {}
    for row in _rows_without_id(payloads, codes, headers, is_key):
        payload = payloads[row].as_py()
        own = [] if headers is None else [(each["key"], each["value"]) for each in headers[row].as_py() or ()]
        framed = read_framing(payload, own, is_key=is_key)
        added = 0 if framed is None else max(0, len(framed.payload) - len(payload))
        if framed is None or (added and not has_indexes):  # a header with the indexes of a Protobuf message
            codes[row] = UNFRAMED
        else:
            skipped = len(payload) + added - len(framed.payload)
            framing = Framing(framed.schema, skipped, framed.payload[:added])
            codes[row] = others.setdefault(framing, -3 - len(others))
    known = {code: framing for framing, code in others.items()}
    for code in _distinct(codes):
        special = code if code in (NULL, UNFRAMED) else known.get(code)
        yield (Framing(code, 5) if special is None else special), np.nonzero(codes == code)[0]


def _distinct(codes: Numbers) -> list[int]:
    """The different ones, in their order. Most batches have one schema, which is found without sorting."""
    if len(codes) and (codes == codes[0]).all():
        return [int(codes[0])]
    found: list[int] = np.unique(codes).tolist()
    return found


def _ids_in_front(payloads: pa.Array) -> Numbers:
    """Per payload the id of a byte 0 and four bytes; NULL, or UNFRAMED for others."""
    codes = np.full(len(payloads), UNFRAMED, np.int64)
    _, ends, content = payloads.buffers()
    if content is not None:
        data = np.frombuffer(content, np.uint8)
        edges = np.frombuffer(ends, np.int32)[payloads.offset : payloads.offset + len(payloads) + 1].astype(np.int64)
        rows = np.nonzero(np.diff(edges) >= _FRAMED)[0]
        rows = rows[data[edges[rows]] == 0]
        codes[rows] = data[edges[rows, None] + _ID_BYTES].view(">u4")[:, 0]
    if payloads.null_count:
        codes[np.asarray(payloads.is_null())] = NULL
    return codes


def _rows_without_id(payloads: pa.Array, codes: Numbers, headers: pa.Array | None, is_key: bool) -> list[int]:
    """Rows whose schema a guid may name, or a header."""
    rows = codes == UNFRAMED
    if headers is not None:
        name = KEY_HEADER if is_key else VALUE_HEADER
        is_named = pc.equal(pc.struct_field(headers.flatten(), "key"), name)
        if pc.any(is_named).as_py():
            parents = np.asarray(pc.list_parent_indices(headers))
            rows[parents[np.asarray(is_named.fill_null(False))]] = True
            rows &= np.asarray(payloads.is_valid())
    found: list[int] = np.nonzero(rows)[0].tolist()
    return found
