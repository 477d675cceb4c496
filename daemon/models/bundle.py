"""Signed bundles: models for a site without a network, in one tar file that says who made it.

    manifest.json        {"bundle": 1, "made_at", "made_by", "models": [{"name", "format", "licence", "files": [...]}]}
    manifest.sig         Ed25519 over the bytes of manifest.json
    models/<folder>/...  the files that the manifest names, each with its size and SHA-256

The manifest comes first, so that nothing is unpacked before the signature has been checked.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tarfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from daemon.models.archive import checked_name
from daemon.models.copying import Cancelled, Report
from daemon.models.naming import check_model_name, folder_of, place_for
from daemon.models.record import ImportProgress, ModelRecord
from daemon.models.registry import ModelRegistry, never_cancelled, no_report
from daemon.models.signing import fingerprint, signer
from daemon.store.base import utc_now
from engine.errors import Conflict, StoreError, UnsupportedFormat
from engine.spec.place import refuse_pipe

VERSION = 1
_MANIFEST, _SIGNATURE = "manifest.json", "manifest.sig"
_MAX_MANIFEST_BYTES = 16 << 20
_CHUNK_BYTES = 4 << 20
_SPARE_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class PackedFile:
    source: Path
    relative: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class PackedModel:
    """What goes into a bundle of one imported model."""

    name: str
    format: str
    licence: str | None
    files: tuple[PackedFile, ...]


@dataclass(frozen=True, slots=True)
class BundleContent:
    """What came out of a bundle: the models that are now here, and who signed them."""

    imported: tuple[str, ...]
    already_here: tuple[str, ...]
    signed_by: str


def create(
    out: Path, models: Iterable[PackedModel], key: Ed25519PrivateKey, made_by: str, report: Report = no_report
) -> str:
    """Write a bundle; the fingerprint of the key that signed it. Nothing is left if it fails.

    Blocks: for the disk.
    Raises: StoreError for a file that cannot be read or is not as it was imported
    """
    packed = list(models)
    manifest = _manifest(packed, made_by)
    total = sum(file.size_bytes for model in packed for file in model.files)
    part = out.with_name(out.name + ".part")
    done = 0

    def advanced(name: str, count: int) -> None:
        nonlocal done
        done += count
        report(ImportProgress("packing", name, done, total))

    try:
        with tarfile.open(part, "w", format=tarfile.PAX_FORMAT) as archive:
            _add(archive, _MANIFEST, manifest)
            _add(archive, _SIGNATURE, key.sign(manifest))
            for model in packed:
                for file in model.files:
                    _pack(archive, model, file, advanced)
        part.replace(out)
    except (OSError, tarfile.TarError) as error:
        raise StoreError(f"the bundle {out} could not be written: {error}.", "Check the disk and the path.") from error
    finally:
        with suppress(OSError):  # a name too long to write is one too long to remove
            part.unlink()
    return fingerprint(key.public_key())


def import_bundle(
    registry: ModelRegistry,
    path: Path,
    trusted: list[Ed25519PublicKey],
    report: Report = no_report,
    cancelled: Cancelled = never_cancelled,
) -> BundleContent:
    """Check the signature, then unpack, check and take in each model under its own name.

    One that is here already with the same files is left alone. What was unpacked whole is kept for another try.
    Blocks: for the disk.
    Raises: PermissionDenied for a signature that is not trusted; UnsupportedFormat, StoreError, Conflict
    """
    refuse_pipe(path)
    try:
        with path.open("rb") as raw, tarfile.open(fileobj=raw, mode="r:") as archive:
            manifest, signed_by, signed = _head(archive, trusted)
            # what an earlier try unpacked was checked against its manifest: another manifest gets another folder
            folder = registry.folder / ".unpacked" / place_for(signed)
            wanted, here = _wanted(registry, manifest)
            size = os.fstat(raw.fileno()).st_size
            _unpack(archive, wanted, folder, cancelled, lambda name: _told(report, name, raw, size))
    except OSError as error:
        raise StoreError(f"the bundle {path} cannot be read: {error.strerror or error}.", "Check the path.") from error
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise StoreError(f"the bundle {path.name} is damaged: {error}.", "Copy it again.") from error
    imported = [_take_in(registry, model, folder, report, cancelled).name for model in wanted]
    shutil.rmtree(folder, ignore_errors=True)
    return BundleContent(tuple(imported), tuple(here), fingerprint(signed_by))


def _manifest(models: list[PackedModel], made_by: str) -> bytes:
    content = {
        "bundle": VERSION,
        "made_at": utc_now().isoformat(),
        "made_by": made_by,
        "models": [
            {
                "name": model.name,
                "format": model.format,
                "licence": model.licence,
                "files": [
                    {"path": file.relative, "size_bytes": file.size_bytes, "sha256": file.sha256}
                    for file in model.files
                ],
            }
            for model in models
        ],
    }
    return json.dumps(content, indent=1, sort_keys=True).encode()


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


class _Hashed(io.RawIOBase):
    """Reads a file through a digest, so that what is packed is what was imported."""

    def __init__(self, source: IO[bytes], read: Callable[[int], None]) -> None:
        self._source = source
        self._read = read
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._source.read(size)
        self.digest.update(data)
        self._read(len(data))
        return data


def _pack(archive: tarfile.TarFile, model: PackedModel, file: PackedFile, advanced: Callable[[str, int], None]) -> None:
    member = tarfile.TarInfo(f"models/{folder_of(model.name)}/{file.relative}")
    member.size = file.size_bytes
    with file.source.open("rb") as source:
        hashed = _Hashed(source, lambda count: advanced(file.relative, count))
        archive.addfile(member, hashed)  # it needs read() alone
    if hashed.digest.hexdigest() != file.sha256:
        raise StoreError(
            f"{file.source} is not as it was imported.", f"`bayard models verify {model.name}` tells more."
        )


def _head(archive: tarfile.TarFile, trusted: list[Ed25519PublicKey]) -> tuple[dict[str, Any], Ed25519PublicKey, bytes]:
    """The manifest, whose key signed it, and its bytes. Raises: UnsupportedFormat, PermissionDenied"""
    parts: list[bytes] = []
    for name in (_MANIFEST, _SIGNATURE):
        member = archive.next()
        source = archive.extractfile(member) if member is not None and member.isreg() else None
        if member is None or source is None or member.name != name or member.size > _MAX_MANIFEST_BYTES:
            raise UnsupportedFormat("the file is no bundle: it does not begin with its manifest and signature.")
        parts.append(source.read())
    signed_by = signer(parts[0], parts[1], trusted)
    manifest = json.loads(parts[0])
    if manifest.get("bundle") != VERSION:
        raise UnsupportedFormat(
            f"the bundle is of version {manifest.get('bundle')!r}; this is Bayard for version {VERSION}.",
            "Update Bayard, or make the bundle with this version.",
        )
    return manifest, signed_by, parts[0]


def _wanted(registry: ModelRegistry, manifest: dict[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """Which of its models to take in, and which are here. Raises: Conflict for a name that holds something else"""
    known = {record.name: {(f.path, f.sha256) for f in record.files} for record in registry.all()}
    wanted, here = [], []
    for model in manifest["models"]:
        name = check_model_name(model["name"])
        if name not in known:
            wanted.append(model)
        elif known[name] == {(file["path"], file["sha256"]) for file in model["files"]}:
            here.append(name)
        else:
            raise Conflict(
                f"there is another model {name} already.", f"`bayard models delete {name}` first, if it can go."
            )
    return wanted, here


def _unpack(
    archive: tarfile.TarFile,
    wanted: list[dict[str, Any]],
    folder: Path,
    cancelled: Cancelled,
    tell: Callable[[str], None],
) -> None:
    expected = {
        f"models/{folder_of(model['name'])}/{file['path']}": file for model in wanted for file in model["files"]
    }
    for member in archive:
        name = checked_name(member)
        file = expected.pop(str(name), None)
        if file is None or not member.isreg():
            continue  # of a model that is here already
        if member.size != file["size_bytes"]:
            raise StoreError(f"{name} has {member.size:,} bytes; the manifest says {file['size_bytes']:,}.")
        target = folder / name
        if target.is_file() and target.stat().st_size == member.size:
            continue  # unpacked whole and checked by an earlier try
        source = archive.extractfile(member)
        assert source is not None
        _write(source, target, file["sha256"], member.size, cancelled, partial(tell, name.name))
    if expected:
        raise StoreError(f"the bundle lacks {len(expected)} files that its manifest names: {min(expected)}, ...")


def _write(
    source: IO[bytes], target: Path, sha256: str, size: int, cancelled: Cancelled, tell: Callable[[], None]
) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if size + _SPARE_BYTES > shutil.disk_usage(target.parent).free:
        raise StoreError(f"{target.name} needs {size / 2**30:,.1f} GiB; there is too little room.", "Free some room.")
    part = target.with_name(target.name + ".part")
    digest = hashlib.sha256()
    with part.open("wb") as copy:
        while chunk := source.read(_CHUNK_BYTES):
            if cancelled():
                raise Conflict(f"cancelled while unpacking {target.name}.", "What was unpacked is kept.")
            digest.update(chunk)
            copy.write(chunk)
            tell()
        copy.flush()
        os.fsync(copy.fileno())
    if digest.hexdigest() != sha256:
        part.unlink()
        raise StoreError(f"{target.name} in the bundle is not what the manifest says.", "Copy the bundle again.")
    part.rename(target)


def _take_in(
    registry: ModelRegistry, model: dict[str, Any], folder: Path, report: Report, cancelled: Cancelled
) -> ModelRecord:
    place = folder / "models" / folder_of(model["name"])
    ggufs = sorted(place.glob("*.gguf"))
    if model["licence"] and ggufs and not (place / "LICENSE").exists():
        (place / "LICENSE").write_text(model["licence"], encoding="utf-8")  # a lone .gguf has no file of its own for it
    path = ggufs[0] if model["format"] == "gguf" and ggufs else place
    return registry.import_model(path, model["name"], False, report, cancelled)


def _told(report: Report, name: str, raw: IO[bytes], size: int) -> None:
    report(ImportProgress("unpacking", name, raw.tell(), size))
