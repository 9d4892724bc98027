"""`ottla tls make`: certificates that Python's and OpenSSL's TLS accept, and files that only their owner reads.

Zone: real.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import stat
import subprocess
import threading
from pathlib import Path

import pytest


def shake_hands(made: Path, host: str, client: str | None = "client") -> tuple[str, dict]:
    """Connects a client to a server with the certificates of a directory: (version, the client's certificate)."""
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(made / "ca.pem"))
    server.load_cert_chain(made / "broker.pem")
    server.verify_mode = ssl.CERT_REQUIRED
    client_side = ssl.create_default_context(cafile=str(made / "ca.pem"))
    client_side.verify_flags |= ssl.VERIFY_X509_STRICT
    if client is not None:
        client_side.load_cert_chain(made / f"{client}.pem")
    here, there = socket.socketpair()
    seen: list[dict] = []

    def serve() -> None:
        try:
            with server.wrap_socket(there, server_side=True) as secured:
                seen.append(secured.getpeercert() or {})
                secured.sendall(b"x")
        except OSError:
            there.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client_side.wrap_socket(here, server_hostname=host) as secured:
            secured.settimeout(60)
            assert secured.recv(1) == b"x"
            return secured.version() or "", seen[0]
    finally:
        here.close()
        thread.join()


def test_the_certificates_are_for_their_hosts_and_clients(run, tmp_path: Path) -> None:
    made = tmp_path / "certificates"
    done = run("tls", "make", str(made), "--host", "broker.example", "--host", "10.1.2.3", "--client", "ann")
    assert done.exit_code == 0, done.stderr
    for host in ("localhost", "127.0.0.1", "::1", "broker.example", "10.1.2.3"):
        version, seen = shake_hands(made, host, "ann")
        assert version == "TLSv1.3"
        assert seen["subject"] == ((("commonName", "ann"),),)
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        shake_hands(made, "other.example", "ann")
    with pytest.raises(OSError, match=r"(?i)certificate|closed|reset|eof"):
        shake_hands(made, "localhost", None)


def test_only_the_certificate_of_the_authority_is_public(run, tmp_path: Path) -> None:
    made = tmp_path / "certificates"
    done = run("tls", "make", str(made), "--days", "30", "-o", "json")
    assert done.exit_code == 0, done.stderr
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in made.iterdir()}
    assert modes == {"ca.pem": 0o644, "ca.key": 0o600, "broker.pem": 0o600, "client.pem": 0o600}
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    document = json.loads(done.stdout)
    assert document["files"] == {name: str(made / f"{name}.pem") for name in ("ca", "broker", "client")}
    assert "PRIVATE KEY" not in done.stdout + done.stderr
    assert b"PRIVATE KEY" not in (made / "ca.pem").read_bytes()


def test_it_explains_where_the_files_belong(run, tmp_path: Path) -> None:
    shown = run("tls", "make", str(tmp_path / "c")).stdout
    assert f"ssl.keystore.location={tmp_path / 'c' / 'broker.pem'}\n" in shown
    assert f"ssl.truststore.location={tmp_path / 'c' / 'ca.pem'}\n" in shown
    assert "security.protocol=SSL\n" in shown


def test_nothing_is_overwritten(run, tmp_path: Path) -> None:
    (tmp_path / "broker.pem").write_text("mine")
    done = run("tls", "make", str(tmp_path))
    assert done.exit_code == 2
    assert "broker.pem exists, and is not overwritten" in done.stderr
    assert {each.name: each.read_text() for each in tmp_path.iterdir()} == {"broker.pem": "mine"}
    (tmp_path / "broker.pem").unlink()
    (tmp_path / "ca.key").symlink_to(tmp_path / "nowhere")
    assert run("tls", "make", str(tmp_path)).exit_code == 2
    assert os.listdir(tmp_path) == ["ca.key"]


@pytest.mark.parametrize(
    "words", ["--client ca", "--client ../x", "--host a/b", "--host 1.2.3.4:9092", f"--client {'x' * 65}", "--days 0"]
)
def test_wrong_words_are_exit_code_2_and_leave_nothing(run, tmp_path: Path, words: str) -> None:
    assert run("tls", "make", str(tmp_path / "c"), *words.split()).exit_code == 2
    assert not (tmp_path / "c").exists()


@pytest.mark.interop
@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the command openssl")
def test_openssl_verifies_them(run, tmp_path: Path) -> None:
    run("tls", "make", str(tmp_path / "c"))
    for name, purpose in (("broker", "sslserver"), ("broker", "sslclient"), ("client", "sslclient")):
        command = ["openssl", "verify", "-x509_strict", "-purpose", purpose, "-CAfile", "ca.pem", f"{name}.pem"]
        subprocess.run(command, cwd=tmp_path / "c", check=True, capture_output=True)
