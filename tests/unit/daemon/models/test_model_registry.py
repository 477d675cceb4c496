"""Importing models: whole or not at all, and never something that is not one."""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
from pathlib import Path

import pytest

from daemon.events import EventLog
from daemon.models import copying
from daemon.models.record import ImportProgress, ModelState
from daemon.models.registry import ModelRegistry
from daemon.settings import Settings
from engine.errors import Conflict, InvalidParameter, ModelNotFound, NotFound, StoreError, UnsupportedFormat
from engine.spec.packed_names import packed_name


def leftovers(settings: Settings) -> list[Path]:
    """Files in the models folder that no finished model owns."""
    partial = settings.models_dir / ".partial"
    return [path for path in partial.rglob("*") if path.is_file()] if partial.exists() else []


def test_import_copies_hashes_and_tells(
    registry: ModelRegistry, tiny_gguf: Path, settings: Settings, events: EventLog
) -> None:
    seen: list[ImportProgress] = []
    hooked: list[str] = []
    registry.on_imported = lambda record, spec: hooked.append(f"{record.name} {spec.architecture}")
    record = registry.import_model(tiny_gguf, report=seen.append)
    assert record.name == "tiny-llama.f32"
    assert record.state is ModelState.READY
    assert not record.linked
    assert Path(record.path).parent.parent == settings.models_dir
    assert Path(record.path).read_bytes() == tiny_gguf.read_bytes()
    assert record.files[0].sha256 == hashlib.sha256(tiny_gguf.read_bytes()).hexdigest()
    assert registry.get(record.name) == record == registry.all()[0]
    assert hooked == ["tiny-llama.f32 llama"]
    assert seen[0].stage == "checking"
    assert seen[-1].done_bytes == seen[-1].total_bytes == tiny_gguf.stat().st_size
    assert [e.subject for e in events.recent() if e.kind == "model"] == [record.name]
    assert leftovers(settings) == []


def test_import_linked_uses_the_file_where_it_lies(
    registry: ModelRegistry, tiny_gguf: Path, settings: Settings
) -> None:
    record = registry.import_model(tiny_gguf, "mine", link=True)
    assert record.path == str(tiny_gguf)
    assert not settings.models_dir.exists() or not any(settings.models_dir.rglob("*.gguf"))
    registry.delete("mine")
    assert tiny_gguf.exists()


def test_import_of_a_link_follows_it(registry: ModelRegistry, tiny_gguf: Path, tmp_path: Path) -> None:
    link = tmp_path / "alias.gguf"
    link.symlink_to(tiny_gguf)
    assert registry.import_model(link, link=True).path == str(tiny_gguf)


@pytest.mark.parametrize("name", ["", "Upper", "a b", "../up", "/a", "a//b", "a/", "-a", "x" * 129, "a\n"])
def test_name_that_is_none_is_refused_before_anything_is_copied(
    registry: ModelRegistry, tiny_gguf: Path, settings: Settings, name: str
) -> None:
    with pytest.raises(InvalidParameter):
        registry.import_model(tiny_gguf, name)
    assert registry.names() == []
    assert leftovers(settings) == []


def test_name_with_slash_and_colon_gets_a_folder_of_its_own(registry: ModelRegistry, tiny_gguf: Path) -> None:
    one = registry.import_model(tiny_gguf, "org/tiny:1")
    other = registry.import_model(tiny_gguf, "org-tiny-1")
    assert Path(one.path).parent != Path(other.path).parent
    assert registry.names() == ["org-tiny-1", "org/tiny:1"]


def test_name_that_is_taken_is_refused(registry: ModelRegistry, tiny_gguf: Path) -> None:
    registry.import_model(tiny_gguf, "mine")
    with pytest.raises(Conflict, match="mine already"):
        registry.import_model(tiny_gguf, "mine")


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("pytorch_model.bin", b"\x80\x02}q", "pickle"),
        ("weights.gguf", b"\x80\x04\x95", "pickle"),
        ("model.zip", b"PK\x03\x04", "archive"),
        ("model.txt", b"hello", "neither"),
        ("model.gguf", b"GGUF", "GGUF|bytes|header"),
        ("empty.gguf", b"", "GGUF|bytes|empty"),
    ],
)
def test_what_is_no_model_is_refused_with_a_way_out(
    registry: ModelRegistry, tmp_path: Path, name: str, content: bytes, what: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UnsupportedFormat, match=what) as caught:
        registry.import_model(path)
    assert caught.value.hint
    assert registry.names() == []


@pytest.mark.parametrize("name", ["a\x1b[31mb.gguf", "a\udcff.gguf", "a\u202eb.gguf", "a\nb.gguf"])
def test_name_that_cannot_be_printed_is_refused_with_what_it_is(
    registry: ModelRegistry, tiny_gguf: Path, tmp_path: Path, name: str
) -> None:
    strange = tmp_path / name
    strange.write_bytes(tiny_gguf.read_bytes())
    with pytest.raises(UnsupportedFormat, match="cannot be printed") as caught:
        registry.import_model(strange, link=True)
    assert caught.value.message.isprintable()
    folder = tmp_path / "folder"
    folder.mkdir()
    strange.rename(folder / name)
    with pytest.raises(UnsupportedFormat, match="cannot be printed"):
        registry.import_model(folder, link=True)
    assert registry.all() == []


def test_folder_of_pickles_alone_is_refused(registry: ModelRegistry, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(UnsupportedFormat, match="pickle"):
        registry.import_model(tmp_path, "p")


def test_folder_of_ggufs_names_the_file_to_import(registry: ModelRegistry, tiny_gguf: Path) -> None:
    with pytest.raises(UnsupportedFormat) as caught:
        registry.import_model(tiny_gguf.parent, "p")
    assert tiny_gguf.name in caught.value.hint


def test_missing_path_is_refused(registry: ModelRegistry, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        registry.import_model(tmp_path / "nowhere.gguf")


def test_truncated_file_is_refused(registry: ModelRegistry, tiny_gguf: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.gguf"
    short.write_bytes(tiny_gguf.read_bytes()[:-1000])
    with pytest.raises(UnsupportedFormat):
        registry.import_model(short)


def test_cancelled_copy_is_invisible_and_is_continued(
    registry: ModelRegistry, tiny_gguf: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "_CHUNK_BYTES", 4096)
    seen: list[ImportProgress] = []
    with pytest.raises(Conflict, match="cancelled"):
        registry.import_model(tiny_gguf, "mine", report=seen.append, cancelled=lambda: len(seen) > 6)
    assert registry.names() == []
    kept = [path for path in leftovers(settings) if path.suffix == ".gguf"]
    assert 0 < kept[0].stat().st_size < tiny_gguf.stat().st_size
    record = registry.import_model(tiny_gguf, "mine")
    assert Path(record.path).read_bytes() == tiny_gguf.read_bytes()
    assert leftovers(settings) == []


def test_partial_copy_that_differs_is_written_anew(
    registry: ModelRegistry, tiny_gguf: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "_CHUNK_BYTES", 4096)
    seen: list[ImportProgress] = []
    with pytest.raises(Conflict):
        registry.import_model(tiny_gguf, "mine", report=seen.append, cancelled=lambda: len(seen) > 6)
    (kept,) = [path for path in leftovers(settings) if path.suffix == ".gguf"]
    damaged = bytearray(kept.read_bytes())
    damaged[5000] ^= 0xFF
    kept.write_bytes(damaged + b"too long" * 100_000)
    record = registry.import_model(tiny_gguf, "mine")
    assert Path(record.path).read_bytes() == tiny_gguf.read_bytes()


def test_crash_between_rename_and_row_leaves_nothing_in_the_way(
    registry: ModelRegistry, tiny_gguf: Path, settings: Settings
) -> None:
    orphan = settings.models_dir / "mine"
    orphan.mkdir(parents=True)
    (orphan / tiny_gguf.name).write_bytes(b"half")
    assert registry.names() == []
    record = registry.import_model(tiny_gguf, "mine")
    assert Path(record.path).read_bytes() == tiny_gguf.read_bytes()


def test_source_that_changes_meanwhile_is_refused(
    registry: ModelRegistry, tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "_CHUNK_BYTES", 4096)
    source = tmp_path / "moving.gguf"
    shutil.copy(tiny_gguf, source)

    def touch(progress: ImportProgress) -> None:
        if progress.stage == "copying":
            os.utime(source, ns=(1, 1))

    with pytest.raises(StoreError, match="changed while it was read"):
        registry.import_model(source, "mine", report=touch)
    assert registry.names() == []


def test_full_disk_is_said_before_copying(
    registry: ModelRegistry, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage("/")._replace(free=1 << 20)
    monkeypatch.setattr(copying.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(StoreError, match="GiB free") as caught:
        registry.import_model(tiny_gguf, "mine")
    assert "--link" in caught.value.hint


def test_same_name_at_once_is_imported_once(registry: ModelRegistry, tiny_gguf: Path) -> None:
    inside, go = threading.Event(), threading.Event()
    errors: list[Exception] = []

    def report(progress: ImportProgress) -> None:
        if progress.stage == "copying":
            inside.set()
            go.wait(10)

    thread = threading.Thread(target=lambda: registry.import_model(tiny_gguf, "mine", report=report))
    thread.start()
    assert inside.wait(10)
    try:
        registry.import_model(tiny_gguf, "mine")
    except Conflict as error:
        errors.append(error)
    go.set()
    thread.join(10)
    assert len(errors) == 1
    assert registry.names() == ["mine"]


def test_verify_finds_a_changed_bit_and_its_repair(registry: ModelRegistry, tiny_gguf: Path, events: EventLog) -> None:
    record = registry.import_model(tiny_gguf, "mine")
    assert registry.verify("mine") == (registry.get("mine"), [])
    path = Path(record.path)
    good = path.read_bytes()
    bad = bytearray(good)
    bad[-1] ^= 1
    path.write_bytes(bad)
    damaged, problems = registry.verify("mine")
    assert damaged.state is ModelState.DAMAGED
    assert record.files[0].sha256 in problems[0]
    path.write_bytes(good[:-1])
    assert f"{len(good) - 1:,} bytes" in registry.verify("mine")[1][0]
    path.unlink()
    assert "No such file" in registry.verify("mine")[1][0]
    path.write_bytes(good)
    assert registry.verify("mine")[0].state is ModelState.READY
    states = [(e.from_state, e.to_state) for e in events.recent() if e.kind == "model"]
    assert states == [(None, "ready"), ("ready", "damaged"), ("damaged", "ready")]


def test_delete_is_refused_while_used_and_says_by_what(registry: ModelRegistry, tiny_gguf: Path) -> None:
    record = registry.import_model(tiny_gguf, "mine")
    registry.users_of = lambda name: ["plan day", "worker mine (ready)"]
    with pytest.raises(Conflict, match=r"plan day, worker mine \(ready\)"):
        registry.delete("mine")
    registry.users_of = lambda name: []
    registry.delete("mine")
    assert not Path(record.path).exists()
    assert registry.names() == []


def test_unknown_model_names_the_nearest(registry: ModelRegistry, tiny_gguf: Path) -> None:
    registry.import_model(tiny_gguf, "smollm2")
    with pytest.raises(ModelNotFound, match="Did you mean smollm2"):
        registry.get("smolm2")


def test_delete_takes_the_packed_weights_along_and_no_others(
    registry: ModelRegistry, tiny_gguf: Path, settings: Settings
) -> None:
    record = registry.import_model(tiny_gguf, "tiny")
    settings.packed_dir.mkdir()
    own, other = (settings.packed_dir / packed_name(path, {"a": 1}) for path in (record.path, "/another.gguf"))
    for path in (own, other):
        path.write_bytes(b"packed")
    registry.delete("tiny")
    assert not own.exists()
    assert other.exists()


def test_licence_that_is_a_link_to_a_file_of_this_machine_is_refused(
    registry: ModelRegistry, tiny_gguf: Path, tmp_path: Path
) -> None:
    stick, cache = tmp_path / "stick", tmp_path / "cache"
    (tmp_path / "shadow").write_text("root:secret")
    stick.mkdir()
    (stick / "m.gguf").symlink_to(tiny_gguf)  # weights may lie elsewhere: they are what was asked for
    (stick / "LICENSE").symlink_to(tmp_path / "shadow")
    with pytest.raises(UnsupportedFormat, match="leads outside"):
        registry.import_model(stick / "m.gguf", "m")
    assert registry.names() == []
    (cache / "blobs").mkdir(parents=True)
    (cache / "snapshots" / "1").mkdir(parents=True)
    (cache / "blobs" / "l").write_text("Be kind.")
    (cache / "snapshots" / "1" / "LICENSE").symlink_to(cache / "blobs" / "l")
    (cache / "snapshots" / "1" / "m.gguf").symlink_to(tiny_gguf)
    assert registry.import_model(cache / "snapshots" / "1" / "m.gguf", "m").licence == "Be kind."


def test_folder_that_is_no_checkpoint_says_so(registry: ModelRegistry, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedFormat, match=r"has no config\.json"):
        registry.import_model(tmp_path, "m")
