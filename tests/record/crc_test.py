"""CRC-32C against the polynomial, bit by bit."""

from __future__ import annotations

import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from ottla.record.crc import crc32c


def bitwise(data: bytes, seed: int = 0) -> int:
    crc = seed ^ 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_known_values() -> None:
    """RFC 3720, B.4, and the check value of the catalogues."""
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(b"") == 0


@given(st.binary(max_size=200), st.binary(max_size=50))
def test_the_polynomial(head: bytes, tail: bytes) -> None:
    whole = head + tail
    assert crc32c(whole) == bitwise(whole)
    assert crc32c(tail, crc32c(head)) == crc32c(whole)
    assert crc32c(memoryview(bytearray(whole))[len(head) :]) == bitwise(tail)


def test_the_import_does_not_ask_for_package_versions() -> None:
    """Finding them costs 40 ms, more than the rest of the start."""
    script = "import sys, ottla.record.crc; sys.exit('importlib.metadata' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_google_crc32c_serves_where_it_is_the_one_installed(tmp_path) -> None:
    """Its contract: `extend(crc, chunk)` takes read-only bytes only."""
    package = tmp_path / "google_crc32c"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from ottla_crc_oracle import bitwise\n"
        "def extend(crc, chunk):\n"
        "    assert type(chunk) is bytes\n"
        "    return bitwise(chunk, crc)\n"
    )
    source = __import__("inspect").getsource(bitwise)
    (tmp_path / "ottla_crc_oracle.py").write_text(source)
    script = (
        "import sys\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "import importlib.util\n"
        "real = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *a: None if name == 'crc32c' else real(name, *a)\n"
        "from ottla.record.crc import crc32c\n"
        "assert crc32c(memoryview(bytearray(b'123456789'))) == 0xE3069283\n"
        "assert crc32c(b'6789', crc32c(b'12345')) == 0xE3069283\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_no_implementation_is_a_clear_error() -> None:
    script = (
        "import importlib.util\n"
        "importlib.util.find_spec = lambda name, *a: None\n"
        "try:\n"
        "    import ottla.record.crc\n"
        "except ImportError as error:\n"
        "    assert 'install the package crc32c or google-crc32c' in str(error)\n"
        "else:\n"
        "    raise SystemExit('no error')\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
