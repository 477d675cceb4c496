"""Back-ups: of one moment, checked before they are believed, keys never in clear, and put back whole."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import threading
from pathlib import Path

import pytest

from daemon.batches.shelf import Shelf
from daemon.settings import Settings
from daemon.store import backup
from daemon.store.session import Store
from daemon.tenants import audit
from daemon.tenants.principal import Actor
from daemon.tenants.service import TenantService
from daemon.tls.authority import Authority
from engine.errors import ConfigError, InvalidParameter, StoreError

OPS = Actor("ops", "command")


async def filled(store: Store, count: int = 1) -> str:
    """A key's secret."""
    service = TenantService(store, 10)
    for at in range(count):
        await service.create_tenant(OPS, f"t{at}")
    return (await service.issue_key(OPS, "t0")).secret


def entries(store: Store) -> int:
    check = store.read_sync(audit.verify)
    assert check.broken_at is None
    return check.entries


async def test_backup_is_restored_with_everything_but_models(store: Store, settings: Settings) -> None:
    secret = await filled(store, 3)
    Authority(settings.state_dir / "tls").init(["localhost"])
    ca_key = (settings.state_dir / "tls" / "ca.key").read_bytes()
    facts = backup.create(settings, passphrase="correct horse")
    assert facts.sealed
    assert facts.path.stat().st_mode & 0o777 == 0o600
    assert secret.encode() not in facts.path.read_bytes()
    assert b"PRIVATE KEY" not in facts.path.read_bytes()
    assert [one.path for one in backup.listed(settings)] == [facts.path]
    await TenantService(store, 10).create_tenant(OPS, "later")
    before = entries(store)
    store.close()
    (settings.state_dir / "tls" / "ca.key").unlink()
    with pytest.raises(InvalidParameter, match="passphrase"):
        backup.restore(settings, facts.path, "wrong")
    _, kept = backup.restore(settings, facts.path, "correct horse")
    assert (settings.state_dir / "tls" / "ca.key").read_bytes() == ca_key
    assert (settings.state_dir / "tls" / "ca.key").stat().st_mode & 0o777 == 0o600
    again = Store.open(settings)
    service = TenantService(again, 10)
    assert [tenant.name for tenant in await service.tenants()] == ["t0", "t1", "t2"]
    assert entries(again) == before - 1
    await service.start()
    assert service.authenticate(secret).tenant_name == "t0"
    await service.stop()
    again.close()
    assert kept is not None
    assert kept.exists()


async def test_without_a_passphrase_private_keys_are_left_out(store: Store, settings: Settings) -> None:
    await filled(store)
    Authority(settings.state_dir / "tls").init(["localhost"])
    facts = backup.create(settings)
    assert not facts.sealed
    with tarfile.open(facts.path) as archive:
        assert not any("key" in name for name in archive.getnames())


async def test_backup_is_of_one_moment_while_somebody_writes(store: Store, settings: Settings) -> None:
    """Tenant and audit entry are one transaction; a copy between them would have one without the other."""
    await filled(store)
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            store.write_sync(lambda session, at=number: audit.append(session, OPS, "x", f"s:{at}"))  # type: ignore[misc]

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(5):
            facts = backup.create(settings)
            with tarfile.open(facts.path) as archive:
                file = archive.extractfile("bayard.db")
                assert file is not None
                copy = settings.state_dir / "copy"
                copy.mkdir(exist_ok=True)
                (copy / "bayard.db").write_bytes(file.read())
            opened = Store.open(settings.model_copy(update={"state_dir": copy}))
            assert entries(opened) > 0
            opened.close()
    finally:
        stop.set()
        thread.join()


def touched(path: Path, name: str, data: bytes) -> Path:
    out = path.with_name("touched.backup")
    with tarfile.open(path) as source, tarfile.open(out, "w") as target:
        for member in source:
            file = source.extractfile(member)
            assert file is not None
            found = file.read()
            if member.name == name:
                found = data or found[:200] + b"\xff" * 100 + found[300:]
            member.size = len(found)
            target.addfile(member, io.BytesIO(found))
    return out


async def test_damaged_or_foreign_backup_changes_nothing(store: Store, settings: Settings, tmp_path: Path) -> None:
    await filled(store)
    facts = backup.create(settings)
    junk = tmp_path / "junk.backup"
    junk.write_bytes(b"junk")
    with tarfile.open(facts.path) as archive:
        file = archive.extractfile("manifest.json")
        assert file is not None
        manifest = json.load(file)
    later = touched(facts.path, "manifest.json", json.dumps(manifest | {"revision": "9999_x"}).encode())
    store.close()
    database = settings.database_file.read_bytes()
    with pytest.raises(StoreError, match="revision 9999_x"):
        backup.restore(settings, later)
    with pytest.raises(StoreError, match="damaged"):
        backup.restore(settings, touched(facts.path, "bayard.db", b""))
    with pytest.raises(StoreError, match="cannot be read"):
        backup.check(junk)
    assert settings.database_file.read_bytes() == database
    assert sorted(path.name for path in facts.path.parent.iterdir()) == [facts.path.name, "touched.backup"]


def test_server_database_is_its_operators_to_back_up(settings: Settings) -> None:
    elsewhere = settings.model_copy(update={"database_url": type(settings.database_url)("postgresql://h/d")})
    with pytest.raises(ConfigError, match="pg_dump"):
        backup.create(elsewhere)


async def test_stored_files_are_in_it_as_they_were_when_it_began(store: Store, settings: Settings) -> None:
    await filled(store)
    shelf = Shelf(settings.files_dir)
    first, gone = shelf.new_id(), shelf.new_id()
    shelf.append(first, b"one\n" * 100_000)
    shelf.append(gone, b"was here\n")
    copied = backup._copy_database

    def meanwhile(source: Path, target: Path) -> str:
        revision = copied(source, target)
        shelf.remove(gone)  # a client deletes one, and a batch writes on
        shelf.append(first, b"two\n")
        return revision

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backup, "_copy_database", meanwhile)
        facts = backup.create(settings)
    assert facts.stored_files == 2
    assert not settings.files_dir.with_name("files.held").exists()
    shelf.append(first, b"three\n")
    later = shelf.new_id()
    shelf.append(later, b"later\n")
    store.close()
    backup.restore(settings, facts.path)
    assert shelf.path(first).read_bytes() == b"one\n" * 100_000 + b"two\n"
    assert shelf.path(gone).read_bytes() == b"was here\n"
    assert shelf.path(gone).stat().st_mode & 0o777 == 0o600
    assert not shelf.path(later).exists()
    (before,) = (settings.state_dir / "backups").glob("before-restore-*.files")
    assert (before / f"{later}.jsonl").read_bytes() == b"later\n"
    damaged = touched(facts.path, f"files/{first}.jsonl", b"")
    with pytest.raises(StoreError, match="damaged"):
        backup.restore(settings, damaged)
    assert shelf.path(first).read_bytes().endswith(b"two\n")
    assert not list(settings.state_dir.glob("files.restored-*"))


async def test_without_stored_files_those_that_are_there_stay(store: Store, settings: Settings) -> None:
    await filled(store)
    shelf = Shelf(settings.files_dir)
    kept = shelf.new_id()
    shelf.append(kept, b"x\n")
    facts = backup.create(settings, with_files=False)
    assert facts.stored_files is None
    store.close()
    backup.restore(settings, facts.path)
    assert shelf.path(kept).read_bytes() == b"x\n"


async def test_names_that_lead_elsewhere_are_not_written(store: Store, settings: Settings) -> None:
    await filled(store)
    facts = backup.create(settings)
    evil = {"plain/../outside.crt": b"x", "files/../../outside.jsonl": b"y", "plain/trusted-keys/../../o.pub": b"z"}
    out = facts.path.with_name("evil.backup")
    with tarfile.open(facts.path) as source, tarfile.open(out, "w") as target:
        for member in source:
            file = source.extractfile(member)
            assert file is not None
            found = file.read()
            if member.name == "manifest.json":
                manifest = json.loads(found)
                manifest["files"] |= {name: hashlib.sha256(data).hexdigest() for name, data in evil.items()}
                found = json.dumps(manifest).encode()
                member.size = len(found)
            target.addfile(member, io.BytesIO(found))
        for name, data in evil.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            target.addfile(member, io.BytesIO(data))
    store.close()
    backup.restore(settings, out)
    everywhere = {path.name for path in settings.state_dir.parent.rglob("*")}
    assert not everywhere & {"outside.crt", "outside.jsonl", "o.pub"}
