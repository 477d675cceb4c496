"""Archives are unpacked as if each were hostile, and taken up again where they were left."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from daemon.models.archive import unpack
from daemon.models.intake import UNPACKED, import_any
from daemon.models.record import ImportProgress
from daemon.models.registry import ModelRegistry, never_cancelled, no_report
from engine.errors import Conflict, InvalidParameter, StoreError, UnsupportedFormat


def packed(path: Path, members: dict[str, bytes], mode: str = "w", change: Callable[..., None] | None = None) -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            if change is not None:
                change(member)
            archive.addfile(member, io.BytesIO(data))
    return path


@pytest.mark.parametrize(
    ("suffix", "mode"), [(".tar", "w"), (".tar.gz", "w:gz"), (".tgz", "w:gz"), (".tar.xz", "w:xz")]
)
def test_archive_is_imported_with_its_licence(
    registry: ModelRegistry, tiny_gguf: Path, tmp_path: Path, suffix: str, mode: str
) -> None:
    members = {
        "usb/LICENSE": b"Do as you like.",
        "usb/tiny.gguf": tiny_gguf.read_bytes(),
        "usb/run.sh": b"rm -rf /",
    }
    archive = packed(tmp_path / f"Tiny-Llama{suffix}", members, mode)
    stages = set[str]()
    record = import_any(registry, archive, report=lambda progress: stages.add(progress.stage))
    assert (record.name, record.linked, record.licence) == ("tiny", False, "Do as you like.")
    assert [file.path for file in record.files] == ["tiny.gguf"]
    assert {"unpacking", "copying"} <= stages
    assert not any((registry.folder / UNPACKED).iterdir())
    assert list(registry.folder.rglob("run.sh")) == []
    with pytest.raises(InvalidParameter, match="archive"):
        import_any(registry, archive, link=True)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("../evil.gguf", "leads outside"),
        ("/etc/evil.gguf", "leads outside"),
        ("a/../../evil.gguf", "leads outside"),
        ("a\x1b[2J.gguf", "cannot be printed"),
        ("a\\b.gguf", "cannot be printed"),
    ],
)
def test_name_that_leads_outside_is_refused(tmp_path: Path, name: str, says: str) -> None:
    archive = packed(tmp_path / "x.tar", {name: b"GGUF"})
    with pytest.raises(UnsupportedFormat, match=says):
        unpack(archive, tmp_path / "out" / "here", no_report, never_cancelled)
    assert [path.name for path in (tmp_path / "out").rglob("*") if path.is_file()] == [".archive.json"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_link_or_device_is_refused(tmp_path: Path, kind: bytes) -> None:
    def change(member: tarfile.TarInfo) -> None:
        member.type, member.linkname, member.size = kind, "/etc/passwd", 0

    archive = packed(tmp_path / "x.tar", {"model.safetensors": b""}, change=change)
    with pytest.raises(UnsupportedFormat, match="link or a device"):
        unpack(archive, tmp_path / "out", no_report, never_cancelled)


def test_pickles_alone_are_refused_and_never_unpacked(registry: ModelRegistry, tmp_path: Path) -> None:
    archive = packed(tmp_path / "x.tar", {"m/pytorch_model.bin": b"\x80\x04code", "m/config.json": b"{}"})
    with pytest.raises(UnsupportedFormat, match="pickle"):
        import_any(registry, archive)
    assert list(registry.folder.rglob("*.bin")) == []


def test_archive_of_several_checkpoints_or_none_says_so(tmp_path: Path) -> None:
    two = packed(tmp_path / "two.tar", {"a/x.gguf": b"GGUF", "b/y.gguf": b"GGUF"})
    with pytest.raises(UnsupportedFormat, match="2 folders: a, b"):
        unpack(two, tmp_path / "out", no_report, never_cancelled)
    none = packed(tmp_path / "none.tar", {"README.md": b"hello"})
    with pytest.raises(UnsupportedFormat, match="holds no"):
        unpack(none, tmp_path / "out", no_report, never_cancelled)
    huge = packed(tmp_path / "huge.tar", {"config.json": b"x"}, change=None)
    assert huge.exists()


def test_interrupted_unpacking_goes_on_where_it_was(tmp_path: Path) -> None:
    members = {f"m/model-{at}.safetensors": bytes([at]) * (6 << 20) for at in range(3)}
    archive = packed(tmp_path / "x.tar", members | {"m/config.json": b"{}"})
    out = tmp_path / "out"
    told: list[ImportProgress] = []
    with pytest.raises(Conflict, match="cancelled while unpacking"):
        unpack(archive, out, told.append, lambda: len(told) > 2)
    first = (out / "m/model-0.safetensors").stat()
    assert not (out / "m/model-2.safetensors").exists()
    place = unpack(archive, out, no_report, never_cancelled)
    assert place == out / "m"
    assert (out / "m/model-0.safetensors").stat() == first  # it was whole, and was left alone
    assert (out / "m/model-2.safetensors").read_bytes() == members["m/model-2.safetensors"]
    packed(archive, {"n/other.gguf": b"GGUF"})  # another archive under the same name
    assert unpack(archive, out, no_report, never_cancelled) == out / "n/other.gguf"
    assert not (out / "m").exists()


def test_archive_that_was_cut_is_damaged_and_shows_no_model(
    registry: ModelRegistry, tiny_gguf: Path, tmp_path: Path
) -> None:
    archive = packed(tmp_path / "x.tar", {"tiny.gguf": tiny_gguf.read_bytes()})
    whole = archive.read_bytes()
    archive.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(StoreError, match="damaged"):
        import_any(registry, archive)
    assert registry.names() == []
    archive.write_bytes(whole)
    assert import_any(registry, archive).name == "tiny"


@pytest.mark.parametrize("file", ["...tar", ".tar", "é" * 120 + ".tar"])
def test_archive_of_any_name_touches_no_other_model(
    registry: ModelRegistry, tiny_gguf: Path, tmp_path: Path, file: str
) -> None:
    kept = Path(registry.import_model(tiny_gguf, "kept").path)
    (registry.folder / UNPACKED).mkdir()
    archive = packed(tmp_path / file, {"tiny.gguf": tiny_gguf.read_bytes()})
    assert import_any(registry, archive).name == "tiny"
    assert kept.read_bytes() == tiny_gguf.read_bytes()


def test_archive_that_can_never_be_used_leaves_nothing(registry: ModelRegistry, tmp_path: Path) -> None:
    archive = packed(tmp_path / "x.tar", {"x.gguf": b"GGUF" + b"\xff" * 64})
    with pytest.raises(UnsupportedFormat):
        import_any(registry, archive)
    assert not any((registry.folder / UNPACKED).iterdir())
