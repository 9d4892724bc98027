"""Text from clients that may not be UTF-8: it is kept byte for byte, and shown with replacement characters.

Zone: pure. Kafka defines text in its protocol and records as UTF-8, but brokers do not check it. An invalid byte is
decoded to a lone surrogate (Python's "surrogateescape"): such text can be compared, and encoded to the same bytes.
"""

from __future__ import annotations


def decode_text(raw: bytes) -> str:
    """Decode any bytes to text."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode(errors="surrogateescape")


def encode_text(text: str) -> bytes:
    """Inverse of `decode_text`. Raises UnicodeEncodeError for a surrogate that does not represent a byte."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="surrogateescape")


def readable_text(text: str) -> str:
    """Text for users, files and other programs: with U+FFFD in place of invalid bytes, as in Java."""
    try:
        return encode_text(text).decode(errors="replace")
    except UnicodeEncodeError:
        return text.encode(errors="surrogatepass").decode(errors="replace")
