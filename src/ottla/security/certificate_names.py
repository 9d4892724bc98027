"""The names in a certificate: its subject's distinguished name as text, as Java writes it (RFC 2253), and others.

Zone: pure. ACLs and `ssl.principal.mapping.rules` contain such names, so they must be the same to the byte. Python's
own form of a certificate has lost what decides the text: the types of values. So the subject is read from the DER
encoding. Types of attributes without a keyword are numbers, with the value's encoding in hexadecimal.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
_OID, _OCTETS, _SEQUENCE, _SET, _VERSION, _EXTENSIONS = 0x06, 0x04, 0x30, 0x31, 0xA0, 0xA3
_ALTERNATIVE_NAMES: Final = bytes.fromhex("551d11")
"""The type 2.5.29.17 of an extension, in DER."""
# UTF8String, PrintableString, TeletexString, IA5String, GeneralString, BMPString (X.680).
_CHARSETS: Final = {
    0x0C: "utf-8",
    0x13: "ascii",
    0x14: "latin-1",
    0x16: "ascii",
    0x1B: "ascii",
    0x1E: "utf-16-be",
}
"""The types of values that are text for Java."""
_ESCAPED: Final = frozenset(',=+<>#;"\\')
_SIZE_MAX: Final = 65_536
"""Largest certificate; TLS accepts chains of about 100 KiB."""
_SUBJECT: Final = 4
"""Place of the subject: after serial number, algorithm, issuer and validity."""


class _Value(NamedTuple):
    """A value in DER."""

    tag: int
    content: bytes
    encoding: bytes
    """The value with its tag and length."""


def subject_of_certificate(certificate: bytes) -> str:
    """The name of the subject of a certificate in DER; "" if it has none. Raises ValueError."""
    fields = _fields_of(certificate)
    if len(fields) <= _SUBJECT or fields[_SUBJECT].tag != _SEQUENCE:
        raise ValueError("the certificate has no subject")
    return text_of_name(fields[_SUBJECT].encoding)


def alternative_names(certificate: bytes) -> frozenset[bytes]:
    """The alternative names (hosts, addresses) of a certificate in DER, each as it is encoded. Raises ValueError."""
    for field in _fields_of(certificate):
        if field.tag == _EXTENSIONS:
            for extension in _values_of(_only(_values_of(field.content), _SEQUENCE)):
                parts = list(_values_of(extension.content))
                if parts and parts[0].content == _ALTERNATIVE_NAMES and parts[-1].tag == _OCTETS:
                    names = _only(_values_of(parts[-1].content), _SEQUENCE)
                    return frozenset(name.encoding for name in _values_of(names))
    return frozenset()


def _fields_of(certificate: bytes) -> list[_Value]:
    """The fields of a certificate after its version. Raises ValueError."""
    if len(certificate) > _SIZE_MAX:
        raise ValueError(f"a certificate of more than {_SIZE_MAX} bytes")
    signed = _only(_values_of(_only(_values_of(certificate), _SEQUENCE, first=True)), _SEQUENCE, first=True)
    return [value for value in _values_of(signed) if value.tag != _VERSION]


def text_of_name(name: bytes) -> str:
    """The text of a name in DER: the components in reverse order. Raises ValueError."""
    components = []
    for component in _values_of(_only(_values_of(name), _SEQUENCE)):
        if component.tag != _SET:
            raise ValueError("a component of the name is not a set")
        components.append("+".join(map(_text_of_attribute, _values_of(component.content))))
    return ",".join(reversed(components))


def _text_of_attribute(attribute: _Value) -> str:
    parts = list(_values_of(attribute.content))
    if attribute.tag != _SEQUENCE or len(parts) != 2 or parts[0].tag != _OID:
        raise ValueError("an attribute of the name is not a type and a value")
    oid, value = _text_of_oid(parts[0].content), parts[1]
    keyword, charset = _KEYWORDS.get(oid), _CHARSETS.get(value.tag)
    if keyword is None or charset is None:
        return f"{keyword or oid}=#{value.encoding.hex()}"
    return f"{keyword}={_escape_text(value.content.decode(charset, 'replace'))}"


def _escape_text(text: str) -> str:
    inner = text.strip(" ")
    begins = len(text) - len(text.lstrip(" "))
    escaped = "".join(f"\\{char}" if char in _ESCAPED else "\\00" if char == "\0" else char for char in inner)
    ends = len(text) - len(inner) - begins
    return "\\ " * begins + escaped + "\\ " * ends


def _text_of_oid(content: bytes) -> str:
    numbers, number = [], 0
    for byte in content:
        number = number << 7 | byte & 0x7F
        if number >= 1 << 64:
            raise ValueError("a number of an attribute's type is too large")
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    if not numbers or content[-1] & 0x80:
        raise ValueError("the type of an attribute is incomplete")
    # The first number is two numbers (X.690): 40 times the first, which is 0, 1 or 2, plus the second. Only after 2 may
    # the second be 40 or more.
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, [first, numbers[0] - 40 * first, *numbers[1:]]))


def _only(values: Iterator[_Value], tag: int, *, first: bool = False) -> bytes:
    """The content of the only value, or of the first one, which must have this tag. Raises ValueError."""
    found = next(values, None)
    if found is None or found.tag != tag or (not first and next(values, None) is not None):
        raise ValueError("the certificate or the name is not one sequence")
    return found.content


def _values_of(data: bytes) -> Iterator[_Value]:
    """The values in a piece of DER, one after the other. Raises ValueError."""
    at = 0
    while at < len(data):
        begin, tag = at, data[at]
        # All five bits set: the tag continues in further bytes, which no part of a certificate does.
        if tag & 0x1F == 0x1F or at + 2 > len(data):
            raise ValueError("a tag of the certificate is unknown, or incomplete")
        size, at = data[at + 1], at + 2
        # The upper bit: the rest is the number of bytes of the length. Three are enough for `_SIZE_MAX`; 0 is the
        # indefinite length, which DER excludes.
        if size & 0x80:
            count = size & 0x7F
            if not 1 <= count <= 3 or at + count > len(data):
                raise ValueError("a length in the certificate is wrong")
            size, at = int.from_bytes(data[at : at + count], "big"), at + count
        if at + size > len(data):
            raise ValueError("the certificate is shorter than its lengths")
        yield _Value(tag, data[at : at + size], data[begin : at + size])
        at += size
