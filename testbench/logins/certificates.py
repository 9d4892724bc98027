"""The certificates of the table of logins: an authority, a broker, a client, and a client whose time is over.

Zone: real.
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import trustme
from cryptography.hazmat.primitives import serialization

from testbench.logins.cases import USER


class Certificates:
    """PEM files in a directory, each with its key in the format PKCS 8, the only one that Java reads."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        authority = trustme.CA()
        authority.cert_pem.write_to_path(directory / "ca.pem")
        past = dt.datetime.now(dt.UTC) - dt.timedelta(days=2)
        self._write("server", authority.issue_cert("localhost", "127.0.0.1"))
        self._write("client", authority.issue_cert("client.example", common_name=USER))
        expired = authority.issue_cert(
            "client.example", common_name=USER, not_before=past - dt.timedelta(days=2), not_after=past
        )
        self._write("expired", expired)

    @property
    def authority(self) -> str:
        """The file with the certificate of the authority."""
        return str(self._directory / "ca.pem")

    def file(self, name: str) -> str:
        """The file of `server`, `client` or `expired`; empty for an empty name."""
        return str(self._directory / f"{name}.pem") if name else ""

    def _write(self, name: str, made: trustme.LeafCert) -> None:
        key = serialization.load_pem_private_key(made.private_key_pem.bytes(), None).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        chain = b"".join(each.bytes() for each in made.cert_chain_pems)
        (self._directory / f"{name}.pem").write_bytes(key + chain)
