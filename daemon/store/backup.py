"""Back-ups of the state: the database as it is at one moment, settings and certificates, in one checked file.

    manifest.json    {"backup": 1, "made_at", "version", "revision", "files": {name: sha256}, "sealed": bool}
    bayard.db        a consistent copy made while the daemon runs; API keys are in it as digests only
    bayard.toml      the settings file, where there is one
    plain/...        certificates, trusted public keys, settings that were changed while running
    files/...        what clients uploaded and batches wrote, unless they are left out
    sealed           private keys, encrypted with the passphrase; without one they are left out

Models are not in it: their digests are, so that `bayard models verify` tells what has to be imported again.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import secrets
import shutil
import sqlite3
import tarfile
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from daemon import __version__
from daemon.settings import Settings
from daemon.store.backup_files import PREFIX, HeldFiles, copy_member, draft_of, is_file, put_in_place
from daemon.store.base import utc_now
from daemon.store.engines import database_url, is_sqlite
from daemon.store.lock import make_private_dir
from daemon.store.migrate import HEAD, bring_up_to_date
from engine.errors import ConfigError, InvalidParameter, StoreError
from engine.spec.place import refuse_pipe
from migrations.index import REVISIONS

VERSION = 1
SUFFIX = ".backup"
_PLAIN = ("tls/ca.crt", "tls/cross.crt", "tls/server.crt", "settings.json")
_TRUSTED = re.compile(r"trusted-keys/[A-Za-z0-9][A-Za-z0-9_.-]*\.pub")
_SECRET = ("tls/ca.key", "tls/server.key")
_SALT_BYTES, _NONCE_BYTES = 16, 12
_MAX_SMALL_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class BackupFacts:
    """What a back-up file says of itself."""

    path: Path
    size_bytes: int
    made_at: datetime
    version: str
    revision: str
    sealed: bool  # private keys are in it
    stored_files: int | None  # None: they were left out


def create(
    settings: Settings, path: Path | None = None, passphrase: str | None = None, *, with_files: bool = True
) -> BackupFacts:
    """Write a back-up; the daemon may run meanwhile. Nothing is left if it fails.

    path: None chooses a name in state_dir/backups
    Blocks: in proportion to the database and the stored files
    Raises: ConfigError for a database that is not SQLite; StoreError
    """
    if not is_sqlite(database_url(settings)):
        raise ConfigError("the database is PostgreSQL.", "Back it up with its own tools, pg_dump for example.")
    folder = settings.state_dir / "backups"
    make_private_dir(folder)
    now = utc_now()
    target = path or folder / f"bayard-{now:%Y%m%dT%H%M%S%fZ}{SUFFIX}"
    copy, part = folder / f".copy-{secrets.token_hex(4)}.db", target.with_name(target.name + ".part")
    held = HeldFiles(settings.files_dir) if with_files else None
    try:
        if held is not None:
            held.hold()
        revision = _copy_database(settings.database_file, copy)
        parts = _small_parts(settings, passphrase)
        digests = {name: hashlib.sha256(data).hexdigest() for name, data in parts.items()}
        digests["bayard.db"] = _digest(copy)
        if held is not None:
            held.hold()
            digests |= held.digests()
        manifest = {
            "backup": VERSION, "made_at": now.isoformat(), "version": __version__, "revision": revision,
            "files": digests, "sealed": "sealed" in parts, "stored_files": None if held is None else len(held.sizes),
        }  # fmt: skip
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as raw, tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as archive:
            _add(archive, "manifest.json", json.dumps(manifest, indent=1).encode())
            archive.add(copy, "bayard.db", recursive=False)
            for name, data in parts.items():
                _add(archive, name, data)
            if held is not None:
                held.add_to(archive)
        part.replace(target)
    except (OSError, sqlite3.Error, tarfile.TarError) as error:
        raise StoreError(f"the back-up {target} could not be made: {error}.", "Check the disk and the path.") from error
    finally:
        copy.unlink(missing_ok=True)
        with suppress(OSError):  # a name too long to write is one too long to remove
            part.unlink()
        if held is not None:
            held.close()
    return check(target)


def check(path: Path) -> BackupFacts:
    """Compare every part with its digest, and let SQLite check the database. Blocks. Raises: StoreError"""
    return _read(path)[0]


def restore(settings: Settings, path: Path, passphrase: str | None = None) -> tuple[BackupFacts, Path | None]:
    """Put a back-up in the place of what is there; what was there is kept. The caller holds the state lock.

    Returns what was restored, and where the database from before is kept.
    Raises: StoreError for a damaged back-up or one of a later version; InvalidParameter for a wrong passphrase
    """
    if not is_sqlite(database_url(settings)):
        raise ConfigError("the database is PostgreSQL.", "Restore it with its own tools.")
    draft = draft_of(settings.files_dir)
    try:
        facts, database, parts = _read(path, draft)
        opened = _unseal(parts["sealed"], passphrase) if passphrase is not None and "sealed" in parts else {}
        kept = _put_back(settings, facts, database, parts, opened, draft)
    except OSError as error:
        raise StoreError(f"the back-up could not be restored: {error}.", "Check the disk, and try again.") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    bring_up_to_date(database_url(settings), settings.state_dir)
    return facts, kept


def _put_back(
    settings: Settings,
    facts: BackupFacts,
    database: bytes,
    parts: dict[str, bytes],
    opened: dict[str, bytes],
    files: Path,
) -> Path | None:
    """Where the database from before is kept. Raises: OSError"""
    kept = _set_aside(settings)
    draft = settings.database_file.with_name("bayard.db.restored")
    draft.write_bytes(database)
    draft.chmod(0o600)
    with draft.open("rb") as file:
        os.fsync(file.fileno())
    draft.replace(settings.database_file)
    if facts.stored_files is not None:
        before = f"before-restore-{utc_now():%Y%m%dT%H%M%S%fZ}.files"
        put_in_place(files, settings.files_dir, settings.state_dir / "backups" / before)
    plain = {name.removeprefix("plain/"): data for name, data in parts.items() if name.startswith("plain/")}
    known = {name: data for name, data in plain.items() if name in _PLAIN or _TRUSTED.fullmatch(name)}
    for name, data in (known | opened).items():
        place = settings.state_dir / name
        make_private_dir(place.parent)
        place.write_bytes(data)
        place.chmod(0o644 if name.endswith((".crt", ".pub")) else 0o600)
    return kept


def listed(settings: Settings) -> list[BackupFacts]:
    """Those in state_dir/backups that say what they are, newest first. Blocks: for their heads alone."""
    found = []
    for path in (settings.state_dir / "backups").glob(f"*{SUFFIX}"):
        try:
            with tarfile.open(path) as archive:
                found.append(_facts(path, _manifest(archive)))
        except (OSError, tarfile.TarError, StoreError):
            continue  # `bayard backup --check FILE` tells what is wrong with one
    return sorted(found, key=lambda facts: facts.made_at, reverse=True)


def _copy_database(source_path: Path, target: Path) -> str:
    """One consistent moment, in one step: a writer may come before or after. Returns the schema's revision."""
    with closing(sqlite3.connect(source_path)) as source, closing(sqlite3.connect(target)) as copy:
        target.chmod(0o600)
        source.backup(copy, pages=-1)
        copy.execute("PRAGMA journal_mode=DELETE")
        return str(copy.execute("SELECT version_num FROM alembic_version").fetchone()[0])


def _small_parts(settings: Settings, passphrase: str | None) -> dict[str, bytes]:
    parts: dict[str, bytes] = {}
    if settings.file is not None:
        parts["bayard.toml"] = settings.file.read_bytes()
    trusted = [f"trusted-keys/{path.name}" for path in (settings.state_dir / "trusted-keys").glob("*.pub")]
    for name in (*_PLAIN, *trusted):
        place = settings.state_dir / name
        if place.is_file():
            parts[f"plain/{name}"] = place.read_bytes()
    private = {name: settings.state_dir / name for name in _SECRET}
    there = {name: place.read_text() for name, place in private.items() if place.is_file()}
    if there and passphrase is not None:
        parts["sealed"] = _seal(json.dumps(there).encode(), passphrase)
    return parts


def _seal(data: bytes, passphrase: str) -> bytes:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    salt, nonce = secrets.token_bytes(_SALT_BYTES), secrets.token_bytes(_NONCE_BYTES)
    return salt + nonce + AESGCM(_key(passphrase, salt)).encrypt(nonce, data, b"bayard back-up")


def _unseal(data: bytes, passphrase: str) -> dict[str, bytes]:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    salt, nonce = data[:_SALT_BYTES], data[_SALT_BYTES : _SALT_BYTES + _NONCE_BYTES]
    try:
        opened = AESGCM(_key(passphrase, salt)).decrypt(nonce, data[_SALT_BYTES + _NONCE_BYTES :], b"bayard back-up")
    except InvalidTag as error:
        raise InvalidParameter(
            "the passphrase does not open the back-up's private keys.", param="passphrase"
        ) from error
    return {name: text.encode() for name, text in json.loads(opened).items() if name in _SECRET}


def _key(passphrase: str, salt: bytes) -> bytes:
    from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

    return Scrypt(salt=salt, length=32, n=2**15, r=8, p=1).derive(passphrase.encode())


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), 0o600
    archive.addfile(member, io.BytesIO(data))


def _manifest(archive: tarfile.TarFile) -> dict[str, Any]:
    member = archive.next()
    source = archive.extractfile(member) if member is not None and member.name == "manifest.json" else None
    if member is None or source is None or member.size > _MAX_SMALL_BYTES:
        raise StoreError("the file is no back-up of Bayard.", "It has to begin with its manifest.")
    found: dict[str, Any] = json.load(source)
    if found.get("backup") != VERSION:
        raise StoreError(f"the back-up is of version {found.get('backup')!r}; this is for {VERSION}.", "Update Bayard.")
    return found


def _facts(path: Path, manifest: dict[str, Any]) -> BackupFacts:
    return BackupFacts(
        path,
        path.stat().st_size,
        datetime.fromisoformat(manifest["made_at"]),
        manifest["version"],
        manifest["revision"],
        bool(manifest["sealed"]),
        manifest.get("stored_files"),
    )


def _read(path: Path, files: Path | None = None) -> tuple[BackupFacts, bytes, dict[str, bytes]]:
    """Everything but stored files, which are written to the folder `files` where that is named.

    Raises: StoreError, UnsupportedFormat
    """
    parts: dict[str, bytes] = {}
    digests: dict[str, str] = {}
    refuse_pipe(path)
    try:
        with tarfile.open(path) as archive:
            manifest = _manifest(archive)
            facts = _facts(path, manifest)
            for member in archive:
                source = archive.extractfile(member)
                if member.name not in manifest["files"] or source is None:
                    continue
                if is_file(member.name):
                    target = None if files is None else files / member.name.removeprefix(PREFIX)
                    digests[member.name] = copy_member(source, target)
                else:
                    parts[member.name] = source.read()
                    digests[member.name] = hashlib.sha256(parts[member.name]).hexdigest()
    except (OSError, tarfile.TarError, ValueError, KeyError, EOFError) as error:
        raise StoreError(f"the back-up {path} cannot be read: {error}.", "Take another one.") from error
    for name, digest in manifest["files"].items():
        if digests.get(name) != digest:
            raise StoreError(f"{name} in the back-up {path} is damaged or missing.", "Take another one.")
    if facts.revision not in REVISIONS:
        raise StoreError(
            f"the back-up's database is at revision {facts.revision}; this version knows up to {HEAD}.",
            "Install the version that made it, or a later one.",
        )
    database = parts.pop("bayard.db")
    _check_database(path, database)
    return facts, database, parts


def _check_database(path: Path, database: bytes) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        try:
            connection.deserialize(database)
            found = str(connection.execute("PRAGMA integrity_check").fetchone()[0])
        except sqlite3.Error as error:
            found = str(error)
    if found != "ok":
        raise StoreError(f"the database in the back-up {path} is not sound: {found}.", "Take another one.")


def _set_aside(settings: Settings) -> Path | None:
    """The present database as one file, write-ahead log and all."""
    if not settings.database_file.exists():
        return None
    folder = settings.state_dir / "backups"
    make_private_dir(folder)
    kept = folder / f"before-restore-{utc_now():%Y%m%dT%H%M%S%fZ}.db"
    settings.database_file.replace(kept)
    for suffix in ("-wal", "-shm"):
        beside = settings.database_file.with_name(settings.database_file.name + suffix)
        if beside.exists():
            beside.replace(kept.with_name(kept.name + suffix))
    return kept


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
