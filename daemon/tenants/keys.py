"""API keys: made of 256 random bits, shown once, kept as a digest.

A key has so much entropy that a plain SHA-256 cannot be searched; a slow hash would only slow the requests.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from datetime import datetime

from daemon.store.base import utc_now
from daemon.tenants.principal import Role

KEY_START = "bk_live_"
PREFIX_CHARS = len(KEY_START) + 4
MAX_KEY_CHARS = 256


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """What is kept of a key."""

    id: str
    tenant_id: str
    name: str
    prefix: str
    digest: str
    role: Role
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None
    replaced_by: str | None = None  # id of the key that takes its place; it expires soon

    @property
    def state_now(self) -> str:
        """active, expired or revoked."""
        if self.revoked_at is not None:
            return "revoked"
        return "active" if self.usable_at(utc_now()) else "expired"

    def usable_at(self, now: datetime) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """A new key. `secret` exists here and nowhere else."""

    record: KeyRecord
    secret: str


def new_secret() -> str:
    return KEY_START + secrets.token_urlsafe(32)


def digest_of(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def prefix_of(secret: str) -> str:
    """Enough to tell keys apart in a list, too little to help a guess."""
    return secret[:PREFIX_CHARS]


def same_digest(left: str, right: str) -> bool:
    """Equal, in constant time."""
    return hmac.compare_digest(left, right)


def new_id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(6)}"
