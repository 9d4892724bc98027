r"""The tokens of a .proto text, read one after the other.

Zone: pure. A token is a name, a number, a string or one sign; comments and spaces are between them. Texts of strings
have Protobuf's escapes: `\n`, `\x41`, `\101`, `\u00e4`.
Source: the Protobuf language specifications for proto2 and proto3, "Lexical elements".
"""

from __future__ import annotations

import re
from typing import Final, NoReturn

from ottla.schemas.errors import InvalidSchema

MAX_NAME: Final = 500
"""Maximum length of a full name: each field of a message has its message's name in front of its own."""
_TOKEN: Final = re.compile(
    r"""(?:\s|//[^\n]*|/\*(?:[^*]|\*(?!/))*+\*/)*+
    (?:(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<float>[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)
    |(?P<int>0[xX][0-9A-Fa-f]+|[0-9]+)
    |(?P<string>"(?:[^"\\\n\0]|\\[^\n\0])*+"|'(?:[^'\\\n\0]|\\[^\n\0])*+')
    |(?P<sign>[;:=,.{}()<>\[\]/+-])
    |(?P<end>\Z))""",
    re.VERBOSE,
)
_ESCAPE: Final = re.compile(r"\\(?:[xX]([0-9A-Fa-f]{1,2})|([0-7]{1,3})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))")
_SIMPLE_ESCAPES: Final = dict(zip("abfnrtv\\'\"?", "\a\b\f\n\r\t\v\\'\"?", strict=True))


class Tokens:
    """A text and a place in it."""

    def __init__(self, text: str) -> None:
        """Raises InvalidSchema, as every method does for a text that is not as expected."""
        self._text = text
        self._end = 0
        self.kind = ""
        """That of the current token: `name`, `float`, `int`, `string`, `sign` or `end`."""
        self.value = ""
        """The current token as it is written; empty at the end."""
        self.take_token()

    def take_token(self) -> str:
        """The current token; the next one is current then."""
        taken = self.value
        found = _TOKEN.match(self._text, self._end)
        if found is None or found.lastgroup is None:
            self._end, self.value = self._skip_spaces(), ""
            self.refuse_text(f"{self._text[self._end : self._end + 10]!r} is not expected")
        # `0x1g` and `1abc` are no tokens, though their beginning is one.
        if found.lastgroup in ("int", "float") and self._text[found.end() : found.end() + 1].isalnum():
            self._end = found.end()
            self.refuse_text(f"a letter follows the number {found[found.lastgroup][:40]}")
        self._end, self.kind, self.value = found.end(), found.lastgroup, found[found.lastgroup]
        return taken

    def _skip_spaces(self) -> int:
        found = re.compile(r"\s*").match(self._text, self._end)
        return self._end if found is None else found.end()

    def refuse_text(self, reason: str) -> NoReturn:
        """Raise InvalidSchema with the line of the current token."""
        line = self._text.count("\n", 0, self._end - len(self.value)) + 1
        raise InvalidSchema(f"line {line}: {reason}")

    def refuse_token(self, wanted: str) -> NoReturn:
        """Raise InvalidSchema: the current token is not the wanted one."""
        shown = f"{self.value[:40]!r}" if self.value else "the end of the text"
        self.refuse_text(f"{wanted} is expected, not {shown}")

    def is_sign(self, *signs: str) -> bool:
        """Whether the current token is one of these signs or names."""
        return self.value in signs and self.kind in ("sign", "name")

    def accept_sign(self, sign: str) -> bool:
        """Take a sign or name, if it is the current token."""
        if not self.is_sign(sign):
            return False
        self.take_token()
        return True

    def expect_sign(self, sign: str) -> None:
        """Take a sign or name."""
        if not self.accept_sign(sign):
            self.refuse_token(repr(sign))

    def take_name(self, what: str = "a name") -> str:
        """Take a name without dots."""
        if self.kind != "name":
            self.refuse_token(what)
        self._check_length(self.value)
        return self.take_token()

    def take_full_name(self, what: str = "a name") -> str:
        """Take a name with dots, which may begin with one."""
        parts = ["" if self.is_sign(".") else self.take_name(what)]
        length = len(parts[0])
        while self.accept_sign("."):
            parts.append(self.take_name(what))
            length += len(parts[-1]) + 1
            if length > MAX_NAME:
                self.refuse_text(f"a name has more than {MAX_NAME} characters")
        return ".".join(parts)

    def _check_length(self, name: str) -> None:
        if len(name) > MAX_NAME:
            self.refuse_text(f"a name has more than {MAX_NAME} characters")

    def take_integer(self, what: str = "a number") -> int:
        """Take a whole number, which may have a sign `-`."""
        negative = self.accept_sign("-")
        if self.kind != "int":
            self.refuse_token(what)
        number = parse_integer(self.value)
        if number is None:
            self.refuse_text(f"{self.value[:40]} is not a number")
        self.take_token()
        return -number if negative else number

    def take_string(self, what: str = "a string") -> str:
        """Take strings that follow each other, as one."""
        if self.kind != "string":
            self.refuse_token(what)
        parts = []
        while self.kind == "string":
            parts.append(self._unescape(self.value[1:-1]))
            self.take_token()
        return "".join(parts)

    def _unescape(self, text: str) -> str:
        def replace(found: re.Match[str]) -> str:
            hexadecimal, octal, short, long, other = found.groups()
            if other is not None:
                if other not in _SIMPLE_ESCAPES:
                    self.refuse_text(f"a string has the unknown escape {found[0]!r}")
                return _SIMPLE_ESCAPES[other]
            number = int(octal, 8) if octal else int(hexadecimal or short or long, 16)
            # Halves of surrogate pairs are code points, but no characters: UTF-8 has no bytes for them.
            if number > 0x10FFFF or 0xD800 <= number < 0xE000:
                self.refuse_text(f"a string has an escape without a character: {found[0]}")
            return chr(number)

        return _ESCAPE.sub(replace, text)


def parse_integer(text: str) -> int | None:
    """The value of a decimal, octal or hexadecimal number of at most 64 bits; None: it is not one."""
    # Python converts thousands of digits in quadratic time; 64 bits have 22 octal digits.
    if len(text) > 30:
        return None
    try:
        number = int(text, 16 if text[:2] in ("0x", "0X") else 8 if text[0] == "0" and len(text) > 1 else 10)
    except ValueError:
        return None
    return number if number < 2**64 else None
