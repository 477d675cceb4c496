"""A certificate authority of the box's own, for sites that have none: made once, its server certificates renewed.

ca.crt      what clients are told to trust; after a change of authority the old one too, until it expires
ca.key      never leaves the folder
cross.crt   after a change of authority: the new one signed by the old, so that clients who know only that go on
server.crt  the server's certificate, then its authority's: cross.crt where there is one, else that of ca.crt
server.key
"""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from daemon.store.base import utc_now
from daemon.store.lock import make_private_dir
from engine.errors import ConfigError, Conflict

CA_DAYS = 3650
SERVER_DAYS = 397  # the longest that browsers and Apple's systems accept
_BACKDATED = timedelta(hours=1)  # clients whose clocks are behind


@dataclass(frozen=True, slots=True)
class CertificateFacts:
    """What an operator asks of a certificate."""

    path: str
    subject: str
    issuer: str
    names: tuple[str, ...]
    not_before_at: datetime
    not_after_at: datetime
    fingerprint: str  # SHA-256

    @property
    def left_s(self) -> float:
        return (self.not_after_at - utc_now()).total_seconds()


class Authority:
    """The files in one folder. Blocks: for the disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca_cert, self.ca_key = folder / "ca.crt", folder / "ca.key"
        self.server_cert, self.server_key = folder / "server.crt", folder / "server.key"
        self.cross_cert = folder / "cross.crt"

    @property
    def there(self) -> bool:
        return self.ca_key.exists()

    def server_facts(self) -> CertificateFacts | None:
        """Of the server's certificate; None where none is there that can be read."""
        try:
            return facts_of(self.server_cert)
        except ConfigError:
            return None

    def init(self, names: list[str]) -> CertificateFacts:
        """Make the authority and the first certificate. Raises: Conflict if there is one, ConfigError"""
        if self.there:
            raise Conflict(f"there is an authority in {self.folder} already.", "`bayard tls rotate` renews it.")
        make_private_dir(self.folder)
        self._make_ca(keep=b"")
        return self._issue(names)

    def rotate(self, names: list[str] | None = None, *, authority: bool = False) -> CertificateFacts:
        """A new server certificate, of the same names if none are given.

        authority: a new authority too. Clients that know only the one before go on, as it signs the new one; new
        clients get both in ca.crt, until the old one expires.
        Raises: ConfigError if there is none
        """
        if not self.there:
            raise ConfigError(f"there is no authority in {self.folder}.", "Make one: `bayard tls init`.")
        chosen = names or self._known_names()
        if authority:
            old_key, known = _read_key(self.ca_key), _certificates(self.ca_cert)
            still = [cert for cert in known if cert.not_valid_after_utc > utc_now()]
            self._make_ca(keep=b"".join(_pem(cert) for cert in still))
            self._cross(known[0], old_key)
        return self._issue(chosen)

    def _known_names(self) -> list[str]:
        known = self.server_facts()
        if known is None:
            raise ConfigError(
                f"the certificate {self.server_cert} cannot be read, so its names are not known.",
                "Give them: `bayard tls rotate --name HOST`.",
            )
        return list(known.names)

    def _make_ca(self, keep: bytes) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Bayard authority {utc_now():%Y-%m-%d %H:%M:%S}")])
        certificate = (
            _builder(name, name, key.public_key(), CA_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=1), critical=True)  # one that follows it
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        _write(self.ca_key, _private_pem(key), 0o600)
        _write(self.ca_cert, _pem(certificate) + keep, 0o644)

    def _cross(self, old: x509.Certificate, old_key: ec.EllipticCurvePrivateKey) -> None:
        """The new authority, signed by the one before."""
        key, new = _read_key(self.ca_key), _certificates(self.ca_cert)[0]
        certificate = (
            _builder(new.subject, old.subject, key.public_key(), until_at=old.not_valid_after_utc)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(old_key.public_key()), critical=False)
            .sign(old_key, hashes.SHA256())
        )
        _write(self.cross_cert, _pem(certificate), 0o644)

    def _issue(self, names: list[str]) -> CertificateFacts:
        ca_key = _read_key(self.ca_key)
        ca = _certificates(self.ca_cert)[0]
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
        certificate = (
            _builder(subject, ca.subject, key.public_key(), SERVER_DAYS)
            .add_extension(x509.SubjectAlternativeName([_alternative(name) for name in names]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
            .sign(ca_key, hashes.SHA256())
        )
        _write(self.server_key, _private_pem(key), 0o600)
        above = ca
        if self.cross_cert.exists() and _certificates(self.cross_cert)[0].not_valid_after_utc > utc_now():
            above = _certificates(self.cross_cert)[0]  # in its place: beside it, old clients would stop at `ca`
        _write(self.server_cert, _pem(certificate) + _pem(above), 0o644)
        return facts_of(self.server_cert)


def facts_of(path: Path) -> CertificateFacts:
    """Of the first certificate in the file. Raises: ConfigError"""
    certificate = _certificates(path)[0]
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        names = (*found.get_values_for_type(x509.DNSName), *map(str, found.get_values_for_type(x509.IPAddress)))
    except x509.ExtensionNotFound:
        names = ()
    return CertificateFacts(
        path=str(path),
        subject=certificate.subject.rfc4514_string(),
        issuer=certificate.issuer.rfc4514_string(),
        names=tuple(names),
        not_before_at=certificate.not_valid_before_utc,
        not_after_at=certificate.not_valid_after_utc,
        fingerprint=certificate.fingerprint(hashes.SHA256()).hex(),
    )


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    days: int = CA_DAYS,
    until_at: datetime | None = None,
) -> x509.CertificateBuilder:
    """until_at: not later than that, however many days."""
    now = utc_now()
    end_at = now + timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(end_at if until_at is None else min(end_at, until_at))
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        try:
            return x509.DNSName(name)
        except ValueError as error:
            raise ConfigError(f"{name!r} is no host name: {error}.", "Give names as clients use them.") from error


def _certificates(path: Path) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"the certificate {path} cannot be read: {error.strerror or error}.", "Check it.") from error
    except ValueError as error:
        raise ConfigError(f"{path} holds no certificate that can be read.", "It has to be PEM.") from error


def _read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise ConfigError(f"the key {path} cannot be read: {error.strerror or error}.", "Check it.") from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{path} is no private key: {error}.", "Make a new authority: `bayard tls init`.") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{path} is no key of this authority's kind.", "Make a new one: `bayard tls init`.")
    return key


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(path: Path, data: bytes, mode: int) -> None:
    """Whole or not at all, and never readable by others before its mode is set. Raises: ConfigError"""
    draft = path.with_name(path.name + ".new")
    try:
        draft.unlink(missing_ok=True)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}.", "Check the folder.") from error
