"""Ed25519 keys as PEM files: who made a bundle, and whom this site believes."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from engine.errors import ConfigError, InvalidParameter, PermissionDenied


def make_keys(private_file: Path) -> Path:
    """Write a new private key, only for its owner, and its public half beside it as .pub; the latter's path.

    Raises: ConfigError if one is there already, or the place cannot be written
    """
    key = Ed25519PrivateKey.generate()
    public_file = private_file.with_name(private_file.name + ".pub")
    try:
        fd = os.open(private_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(
                key.private_bytes(
                    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
                )
            )
        public_file.write_bytes(public_pem(key.public_key()))
    except OSError as error:
        raise ConfigError(
            f"the key {private_file} cannot be written: {error.strerror or error}.", "Name another file."
        ) from error
    return public_file


def read_private(path: Path) -> Ed25519PrivateKey:
    """Raises: ConfigError"""
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise ConfigError(f"the key {path} cannot be read: {error.strerror or error}.", "Check the path.") from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{path} is no private key without a password: {error}.", "`bayard bundle keygen`") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"{path} is no Ed25519 key.", "Make one: `bayard bundle keygen FILE`.")
    return key


def public_text(path: Path) -> str:
    """What a maker's .pub file holds. Raises: ConfigError"""
    try:
        return path.read_text("ascii")
    except OSError as error:
        raise ConfigError(f"the key {path} cannot be read: {error.strerror or error}.", "Check the path.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no public key: it is not text.", "Give the .pub file of the maker.") from error


def parse_public(pem: bytes, whence: str) -> Ed25519PublicKey:
    """Raises: InvalidParameter"""
    try:
        key = serialization.load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InvalidParameter(f"{whence} is no public key: {error}.", "Give the .pub file of the maker.") from error
    if not isinstance(key, Ed25519PublicKey):
        raise InvalidParameter(f"{whence} is no Ed25519 key.", "Give the .pub file of the maker.")
    return key


def public_pem(key: Ed25519PublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def fingerprint(key: Ed25519PublicKey) -> str:
    """Short enough to be read out over a telephone."""
    raw = key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    digest = hashlib.sha256(raw).hexdigest()[:24]
    return ":".join(digest[at : at + 4] for at in range(0, 24, 4))


def trusted_keys(folder: Path) -> list[Ed25519PublicKey]:
    """Every .pub file of the folder; none if there is no folder.

    Raises: InvalidParameter for a file that is no key; ConfigError for one that cannot be read
    """
    if not folder.is_dir():
        return []
    return [parse_public(public_text(path).encode(), str(path)) for path in sorted(folder.glob("*.pub"))]


def signer(data: bytes, signature: bytes, trusted: list[Ed25519PublicKey]) -> Ed25519PublicKey:
    """Which of the trusted keys signed the data. Raises: PermissionDenied if none did"""
    for key in trusted:
        try:
            key.verify(signature, data)
        except InvalidSignature:
            continue
        return key
    known = ", ".join(map(fingerprint, trusted)) or "none"
    raise PermissionDenied(
        f"the bundle is signed by no key that is trusted here; trusted: {known}.",
        "If you know its maker, give the maker's public key with --trust FILE.",
    )
