"""Certificates for tests: an authority, and certificates that it signs."""

from __future__ import annotations

import datetime
import ssl
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_USAGES = (
    "digital_signature content_commitment key_encipherment data_encipherment key_agreement "
    "key_cert_sign crl_sign encipher_only decipher_only"
)

DAY = datetime.timedelta(days=1)


@cache
def _key(number: int) -> ec.EllipticCurvePrivateKey:
    """Return one key for each number: generating a key takes time."""
    return ec.generate_private_key(ec.SECP256R1())


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, as PEM and as files."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> str:
        return self.certificate.public_bytes(serialization.Encoding.PEM).decode()

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.DER)

    @property
    def fingerprint(self) -> str:
        return self.certificate.fingerprint(hashes.SHA256()).hex()

    def key_pem(self, password: bytes | None = None) -> bytes:
        protection = (
            serialization.NoEncryption()
            if password is None
            else serialization.BestAvailableEncryption(password)
        )
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, protection
        )

    def write(self, folder: Path, name: str, password: bytes | None = None) -> tuple[Path, Path]:
        """Write both files, and return their paths."""
        folder.mkdir(parents=True, exist_ok=True)
        cert, key = folder / f"{name}.pem", folder / f"{name}.key"
        cert.write_text(self.pem)
        key.write_bytes(self.key_pem(password))
        key.chmod(0o600)
        return cert, key


class Authority:
    """Signs certificates of servers and callers."""

    def __init__(self, name: str = "Test authority") -> None:
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.own = self._sign(
            self.name, [], _key(hash(name)), days=(-1, 3650), is_authority=True, issuer=None
        )

    @property
    def pem(self) -> str:
        return self.own.pem

    def write(self, folder: Path, name: str = "ca") -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{name}.pem"
        path.write_text(self.pem)
        return path

    def server(self, *names: str, key: int = 1, days: tuple[float, float] = (-1, 30)) -> Pair:
        """Return the pair of a server, by default for the names of this machine."""
        import ipaddress

        given: list[x509.GeneralName] = [x509.DNSName(each) for each in names or ("localhost",)]
        if not names:
            given.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, (names or ("server",))[0])])
        return self._sign(subject, given, _key(key), days=days, issuer=self.own)

    def caller(
        self,
        common_name: str = "",
        *,
        uris: tuple[str, ...] = (),
        dns: tuple[str, ...] = (),
        organization: str = "",
        key: int = 2,
        days: tuple[float, float] = (-1, 30),
    ) -> Pair:
        """Return the pair of a caller."""
        attributes = [(NameOID.ORGANIZATION_NAME, organization), (NameOID.COMMON_NAME, common_name)]
        subject = x509.Name([x509.NameAttribute(oid, each) for oid, each in attributes if each])
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(each) for each in uris]
        names += [x509.DNSName(each) for each in dns]
        return self._sign(subject, names, _key(key), days=days, issuer=self.own)

    def _sign(
        self,
        subject: x509.Name,
        names: list[x509.GeneralName],
        key: ec.EllipticCurvePrivateKey,
        *,
        days: tuple[float, float],
        issuer: Pair | None,
        is_authority: bool = False,
    ) -> Pair:
        now = datetime.datetime.now(datetime.UTC)
        public, signer = key.public_key(), key if issuer is None else issuer.key
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + days[0] * DAY)
            .not_valid_after(now + days[1] * DAY)
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()),
                critical=False,
            )
        )
        if is_authority:
            usage = dict.fromkeys(_USAGES.split(), False)
            usage["key_cert_sign"] = usage["crl_sign"] = True
            builder = builder.add_extension(x509.KeyUsage(**usage), critical=True)
        else:
            both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
            builder = builder.add_extension(x509.ExtendedKeyUsage(both), critical=False)
        if names:
            critical = not len(list(subject))
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=critical)
        return Pair(builder.sign(signer, hashes.SHA256()), key)


def trusting(authority: Authority, own: tuple[Path, Path] | None = None) -> ssl.SSLContext:
    """Return the TLS of a client that trusts an authority, with its own certificate."""
    context = ssl.create_default_context(cadata=authority.pem)
    if own is not None:
        context.load_cert_chain(*own)
    return context
