"""Files that every schema may import without a reference: `google/protobuf/…`, `google/type/…` and `confluent/…`.

Zone: pure. Confluent's serializers send no references for them. Those of Google come from the packages protobuf and
googleapis-common-protos.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from ottla.schemas.errors import InvalidSchema
from ottla.schemas.protobuf.parser import parse_proto
from ottla.schemas.protobuf.runtime import import_runtime

_PROTOBUF: Final = frozenset(
    (
        "any",
        "api",
        "descriptor",
        "duration",
        "empty",
        "field_mask",
        "source_context",
        "struct",
        "timestamp",
        "type",
        "wrappers",
    )
)
_TYPE: Final = frozenset(
    ("calendar_period", "color", "date", "datetime", "dayofweek", "decimal", "expr", "fraction", "interval", "latlng",
     "localized_text", "money", "month", "phone_number", "postal_address", "quaternion", "timeofday")
)  # fmt: skip
_OPTIONS: Final = ("File", "Message", "Field", "Enum", "EnumValue")
_META_EXTENSIONS: Final = " ".join(
    f"extend google.protobuf.{kind}Options {{ Meta {name}_meta = 1088; }}"
    for kind, name in zip(_OPTIONS, ("file", "message", "field", "enum", "enum_value"), strict=True)
)
_CONFLUENT: Final = {
    "confluent/meta.proto": f"""syntax = "proto3"; package confluent; import "google/protobuf/descriptor.proto";
        message Meta {{ string doc = 1; map<string, string> params = 2; repeated string tags = 3;
            repeated Rule rules = 4; }}
        message Rule {{ string name = 1; string doc = 2; string expr = 3; string sql = 4; }} {_META_EXTENSIONS}""",
    "confluent/type/decimal.proto": """syntax = "proto3"; package confluent.type;
        message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }""",
    "confluent/type/variant.proto": """syntax = "proto3"; package confluent.type;
        message Variant { bytes metadata = 1; bytes value = 2; }""",
    "confluent/types/decimal.proto": 'syntax = "proto3"; import public "confluent/type/decimal.proto";',
}


def find_known_file(name: str) -> Any | None:
    """The FileDescriptorProto of a file that needs no reference; None: it does. Raises InvalidSchema."""
    folder, _, base = name.removesuffix(".proto").rpartition("/")
    if name in _CONFLUENT:
        return parse_proto(_CONFLUENT[name])
    if not name.endswith(".proto"):
        return None
    if folder == "google/protobuf" and base in _PROTOBUF:
        return _copy_file(import_runtime(f"{base}_pb2"))
    if folder == "google/type" and base in _TYPE:
        try:
            return _copy_file(import_module(f"google.type.{base}_pb2"))
        except ImportError as error:
            package = "googleapis-common-protos"
            raise InvalidSchema(f"the import {name!r} needs the package {package}: pip install {package}") from error
    return None


def _copy_file(module: Any) -> Any:
    file = import_runtime("descriptor_pb2").FileDescriptorProto()
    file.ParseFromString(module.DESCRIPTOR.serialized_pb)
    return file
