"""Names of certificates as text: what Java's X500Principal writes for the same bytes.

Zone: pure. The pairs were written down from `javax.security.auth.x500.X500Principal.getName()` of a JDK.
"""

from __future__ import annotations

import random
import ssl

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from trustme import CA

from ottla.security.certificate_names import alternative_names, subject_of_certificate, text_of_name

DUKE = (
    "3037310b300906035504061302555331193017060355040a0c1053756e204d6963726f73797374656d73310d300b06035504030c0444756b65"
)

MANY = (
    "3081a3310b3009060355040513023132310a3008060355042a0c0167310a300806035504040c0173310a3008060355040c0c0174"
    "310a3008060355042e1301713111300f060a0992268993f22c6401010c017531123010060a0992268993f22c64011916026463"
    "310b300906035504090c027374310b300906035504080c024341310a300806035504070c014c310b3009060355040b0c026f75"
    "310a300806035504410c0170"
)
MANY_TEXT = (
    "2.5.4.65=#0c0170,OU=ou,L=L,ST=CA,STREET=st,DC=dc,UID=u,2.5.4.46=#130171,2.5.4.12=#0c0174,"
    "2.5.4.4=#0c0173,2.5.4.42=#0c0167,2.5.4.5=#13023132"
)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (DUKE, "CN=Duke,O=Sun Microsystems,C=US"),
        (
            "301e311c301a06035504030c13612c622b6322645c653c663e673b683d69236a",
            'CN=a\\,b\\+c\\"d\\\\e\\<f\\>g\\;h\\=i\\#j',
        ),
        ("300e310c300a06035504030c03207820", "CN=\\ x\\ "),
        ("300d310b300906035504030c022378", "CN=\\#x"),
        ("300d310b300906035504030c022020", "CN=\\ \\ "),
        ("300f310d300b06035504030c0478202079", "CN=x  y"),
        ("30153113301106035504030c0ac3a90a01c3bcf09f9880", "CN=é\n\x01ü\U0001f600"),
        ("300e310c300a06035504030c03610062", "CN=a\\00b"),
        (
            "30223114301206092a864886f70d01090116056140622e63310a300806035504030c0178",
            "CN=x,1.2.840.113549.1.9.1=#16056140622e63",
        ),
        (MANY, MANY_TEXT),
        ("30223114300806035504030c016d3008060355040b0c016e310a3008060355040a0c016f", "O=o,CN=m+OU=n"),
        ("3000", ""),
        ("30153113301106035504031e0a0062006d0070002000e9", "CN=bmp é"),
        ("300e310c300a06035504031403743631", "CN=t61"),
        ("30173115301306035504031c0c000000750000006e00000069", "CN=#1c0c000000750000006e00000069"),
        ("300e310c300a06035504031603696135", "CN=ia5"),
    ],
    ids=range(16),
)
def test_names_are_written_as_java_writes_them(name: str, text: str) -> None:
    assert text_of_name(bytes.fromhex(name)) == text


def test_the_subject_of_a_certificate() -> None:
    issued = CA().issue_cert("broker.example", common_name="Duke, the first")
    certificate = x509.load_pem_x509_certificate(issued.cert_chain_pems[0].bytes())
    text = subject_of_certificate(certificate.public_bytes(Encoding.DER))
    assert text.startswith("CN=Duke\\, the first,")
    assert text == text_of_name(certificate.subject.public_bytes())


@pytest.mark.parametrize(
    "name",
    [
        "",
        "30",
        "3001",
        "3082",
        "30840000000100",
        "3180",
        "30023100" + "00",
        "30023000",
        "3004310230003000",
        "300631043002040000",
        "3006310430020600",
        "300831063004060180" + "0500",
        "30093107300506015503" + "05",
        "1f0100",
        "308000",
        "300f310d300b06" + "8a" + "ff" * 8,
    ],
)
def test_broken_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"certificate|name|attribute"):
        text_of_name(bytes.fromhex(name))


def test_broken_certificates_are_refused_or_have_a_name() -> None:
    issued = CA().issue_cert("broker.example", common_name="Duke")
    certificate = x509.load_pem_x509_certificate(issued.cert_chain_pems[0].bytes()).public_bytes(Encoding.DER)
    rng, refused = random.Random(3), 0
    for _ in range(5_000):
        at = rng.randrange(300)
        broken = certificate[:at] + bytes([rng.randrange(256)]) + certificate[at + 1 :]
        if rng.random() < 0.2:
            broken = broken[: rng.randrange(len(broken))]
        try:
            assert isinstance(subject_of_certificate(broken), str)
        except ValueError:
            refused += 1
    assert refused > 500
    with pytest.raises(ValueError, match="more than"):
        subject_of_certificate(bytes(70_000))


def test_a_name_of_255_components() -> None:
    component = bytes.fromhex("310a3008060355040b0c016f")
    content = component * 255
    name = b"\x30\x82" + len(content).to_bytes(2, "big") + content
    assert text_of_name(name) == ",".join(["OU=o"] * 255)


def test_alternative_names_are_compared_as_they_are_encoded():
    authority = CA()

    def names(*hosts: str) -> frozenset[bytes]:
        made = authority.issue_cert(*hosts).cert_chain_pems[0].bytes().decode()
        return alternative_names(ssl.PEM_cert_to_DER_cert(made))

    assert len(names("a.example", "127.0.0.1")) == 2
    assert names("a.example") < names("b.example", "a.example")
    assert names("::1") != names("127.0.0.1")
