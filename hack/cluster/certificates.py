"""Keys and certificates of one cluster, made when it is started and good for a week."""

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFE: Final = datetime.timedelta(days=7)
_SLACK: Final = datetime.timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, both PEM."""

    certificate: str
    key: str

    def keep(self, directory: Path, name: str) -> None:
        """Write ``name.crt`` and ``name.key``."""
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"{name}.crt").write_text(self.certificate, encoding="ascii")
        key = directory / f"{name}.key"
        key.touch(mode=0o600)
        key.write_text(self.key, encoding="ascii")


class Authority:
    """A certificate authority for servers and clients of one cluster."""

    def __init__(self, name: str = "dra-cluster") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        use = x509.KeyUsage(
            digital_signature=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        builder = _builder(self._name, self._name, self._key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        certificate = builder.add_extension(use, critical=True).sign(self._key, hashes.SHA256())
        self.pair = Pair(_pem(certificate), _key_pem(self._key))

    def client(self, user: str, groups: Sequence[str] = ()) -> Pair:
        """What proves to be a user: the API server reads name and groups from the subject."""
        subject = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        subject.append(x509.NameAttribute(NameOID.COMMON_NAME, user))
        return self._issue(x509.Name(subject), ExtendedKeyUsageOID.CLIENT_AUTH)

    def server(self, name: str, names: Sequence[str], addresses: Sequence[str]) -> Pair:
        """A server's, good for these DNS names and IP addresses."""
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        known = [
            *(x509.DNSName(each) for each in names),
            *(x509.IPAddress(ipaddress.ip_address(each)) for each in addresses),
        ]
        return self._issue(subject, ExtendedKeyUsageOID.SERVER_AUTH, x509.SubjectAlternativeName(known))

    def _issue(
        self, subject: x509.Name, usage: x509.ObjectIdentifier, names: x509.SubjectAlternativeName | None = None
    ) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(subject, self._name, key.public_key())
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        if names is not None:
            builder = builder.add_extension(names, critical=False)
        return Pair(_pem(builder.sign(self._key, hashes.SHA256())), _key_pem(key))


def signing_key() -> tuple[str, str]:
    """Private and public PEM of the key that signs service accounts' tokens."""
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return _key_pem(key), public.decode("ascii")


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - _SLACK).not_valid_after(now + _LIFE)


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode("ascii")


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode("ascii")
