"""Text of others, which may be no UTF-8: it is kept byte for byte, and shown with replacement characters.

Zone: pure. Kafka's protocol and records say that text is UTF-8, and no broker checks it. A byte that is not becomes a
lone surrogate (Python's "surrogateescape"): such text can be compared, and becomes the same bytes again.
"""

from __future__ import annotations


def decode_text(raw: bytes) -> str:
    """The text of these bytes, whatever they are."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode(errors="surrogateescape")


def encode_text(text: str) -> bytes:
    """Inverse of `decode_text`. Raises UnicodeEncodeError for a surrogate that stands for no byte."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="surrogateescape")


def readable_text(text: str) -> str:
    """Text for people, files and other programs: U+FFFD, as Java has it, in place of what is no UTF-8."""
    try:
        return encode_text(text).decode(errors="replace")
    except UnicodeEncodeError:
        return text.encode(errors="surrogatepass").decode(errors="replace")
