"""Bundles: what one site packs another takes in, if it believes the maker, and nothing that was touched."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from daemon.events import EventLog
from daemon.models.bundle import PackedFile, PackedModel, create, import_bundle
from daemon.models.registry import ModelRegistry
from daemon.models.signing import fingerprint, make_keys, parse_public, public_text, read_private, trusted_keys
from daemon.settings_load import load_settings
from daemon.store.session import Store
from engine.errors import BayardError, ConfigError, Conflict, PermissionDenied, StoreError, UnsupportedFormat


@pytest.fixture
def key(tmp_path: Path) -> Path:
    make_keys(tmp_path / "maker")
    return tmp_path / "maker"


@pytest.fixture
def bundle(registry: ModelRegistry, tiny_gguf: Path, tmp_path: Path, key: Path) -> Path:
    record = registry.import_model(tiny_gguf, "org/tiny:1")
    out = tmp_path / "out.bundle"
    files = tuple(
        PackedFile(Path(record.path).parent / file.path, file.path, file.size_bytes, file.sha256)
        for file in record.files
    )
    create(out, [PackedModel(record.name, record.format, "Be kind.", files)], read_private(key), "maker@site")
    return out


@pytest.fixture
def other_site(short_dir: Path) -> ModelRegistry:
    settings = load_settings(None, {}, {"state_dir": short_dir / "other"})
    settings.state_dir.mkdir()
    store = Store.open(settings)
    return ModelRegistry(store, settings, EventLog(store))


def trusted(key: Path) -> list[object]:
    return [parse_public(Path(f"{key}.pub").read_bytes(), "it")]


def rewritten(bundle: Path, name: str, change: object) -> Path:
    """The same archive with one member's bytes changed."""
    out = bundle.with_name("touched.bundle")
    with tarfile.open(bundle) as source, tarfile.open(out, "w") as target:
        for member in source:
            file = source.extractfile(member)
            assert file is not None
            data = file.read()
            if member.name.endswith(name):
                data = change(data)  # type: ignore[operator]
                member.size = len(data)
            target.addfile(member, io.BytesIO(data))
    return out


def test_bundle_is_taken_in_by_who_trusts_its_maker(bundle: Path, key: Path, other_site: ModelRegistry) -> None:
    content = import_bundle(other_site, bundle, trusted(key))  # type: ignore[arg-type]
    assert content.imported == ("org/tiny:1",)
    assert content.signed_by == fingerprint(read_private(key).public_key())
    record = other_site.get("org/tiny:1")
    assert record.licence == "Be kind."
    assert other_site.verify("org/tiny:1")[1] == []
    again = import_bundle(other_site, bundle, trusted(key))  # type: ignore[arg-type]
    assert (again.imported, again.already_here) == ((), ("org/tiny:1",))
    assert not any((other_site.folder / ".unpacked").iterdir())


def test_maker_nobody_trusts_is_refused_before_anything_is_unpacked(
    bundle: Path, tmp_path: Path, other_site: ModelRegistry
) -> None:
    make_keys(tmp_path / "stranger")
    for keys in ([], trusted(tmp_path / "stranger")):
        with pytest.raises(PermissionDenied, match="--trust"):
            import_bundle(other_site, bundle, keys)  # type: ignore[arg-type]
    assert list(other_site.folder.rglob("*")) == []


@pytest.mark.parametrize(
    ("name", "change", "error"),
    [
        ("manifest.json", lambda data: data.replace(b"org/tiny:1", b"org/evil:1"), PermissionDenied),
        ("manifest.sig", lambda data: bytes(64), PermissionDenied),
        (".gguf", lambda data: data[:-1] + b"\x00", StoreError),
        (".gguf", lambda data: data + b"\x00", StoreError),
    ],
)
def test_touched_bundle_shows_no_model(
    bundle: Path, key: Path, other_site: ModelRegistry, name: str, change: object, error: type[BayardError]
) -> None:
    with pytest.raises(error):
        import_bundle(other_site, rewritten(bundle, name, change), trusted(key))  # type: ignore[arg-type]
    assert other_site.names() == []


def test_name_that_is_taken_by_something_else_is_refused(
    bundle: Path, key: Path, other_site: ModelRegistry, tiny_gguf: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(tiny_gguf.read_bytes())
    other_site.import_model(other, "org/tiny:1")
    with pytest.raises(Conflict, match="another model"):
        import_bundle(other_site, bundle, trusted(key))  # type: ignore[arg-type]


def test_model_that_was_damaged_since_its_import_is_not_packed(
    registry: ModelRegistry, tiny_gguf: Path, tmp_path: Path, key: Path
) -> None:
    record = registry.import_model(tiny_gguf, "t")
    path = Path(record.path)
    path.write_bytes(path.read_bytes()[:-1] + b"\x00")
    files = (PackedFile(path, path.name, record.files[0].size_bytes, record.files[0].sha256),)
    with pytest.raises(StoreError, match="models verify t"):
        create(tmp_path / "x.bundle", [PackedModel("t", "gguf", None, files)], read_private(key), "m")
    assert not list(tmp_path.glob("x.bundle*"))


def test_what_is_no_bundle_and_what_is_no_key_say_so(tmp_path: Path, other_site: ModelRegistry, key: Path) -> None:
    plain = tmp_path / "plain.tar"
    with tarfile.open(plain, "w") as archive:
        archive.addfile(tarfile.TarInfo("x"), io.BytesIO())
    with pytest.raises(UnsupportedFormat, match="no bundle"):
        import_bundle(other_site, plain, [])
    (tmp_path / "junk").write_bytes(b"junk")
    with pytest.raises(StoreError, match="damaged"):
        import_bundle(other_site, tmp_path / "junk", [])
    with pytest.raises(ConfigError, match="keygen"):
        read_private(tmp_path / "junk")
    with pytest.raises(ConfigError, match="cannot be written"):
        make_keys(key)
    assert (key.stat().st_mode & 0o777) == 0o600
    assert [fingerprint(one) for one in trusted_keys(tmp_path)] == [fingerprint(read_private(key).public_key())]
    assert trusted_keys(tmp_path / "none") == []
    for name in ("junk", "absent.pub"):
        (tmp_path / "junk").write_bytes(b"\xff\x00")
        with pytest.raises(ConfigError, match=name):
            public_text(tmp_path / name)


def test_manifest_of_a_later_version_is_refused(bundle: Path, key: Path, other_site: ModelRegistry) -> None:
    signer = read_private(key)
    with tarfile.open(bundle) as archive:
        file = archive.extractfile("manifest.json")
        assert file is not None
        manifest = json.dumps(json.load(file) | {"bundle": 2}).encode()
    later = rewritten(bundle, "manifest.json", lambda data: manifest)
    later = later.rename(later.with_name("later.bundle"))
    signed = rewritten(later, "manifest.sig", lambda data: signer.sign(manifest))
    with pytest.raises(UnsupportedFormat, match="version 2"):
        import_bundle(other_site, signed, trusted(key))  # type: ignore[arg-type]


def test_bundle_of_the_same_name_and_sizes_is_not_continued_from_another(
    bundle: Path, key: Path, other_site: ModelRegistry, registry: ModelRegistry, tmp_path: Path
) -> None:
    with pytest.raises(Conflict, match="cancelled"):  # after the whole file was unpacked
        import_bundle(other_site, bundle, trusted(key), cancelled=lambda: unpacked(other_site))  # type: ignore[arg-type]
    record = registry.get("org/tiny:1")
    path = Path(record.path)
    path.write_bytes(path.read_bytes()[:-1] + b"\x00")
    newer = tmp_path / "newer.gguf"
    newer.write_bytes(path.read_bytes())
    registry.import_model(newer, "newer")
    found = registry.get("newer").files[0]
    files = (PackedFile(newer, record.files[0].path, found.size_bytes, found.sha256),)
    create(bundle, [PackedModel("org/tiny:1", "gguf", None, files)], read_private(key), "maker@site")
    import_bundle(other_site, bundle, trusted(key))  # type: ignore[arg-type]
    assert other_site.get("org/tiny:1").files[0].sha256 == found.sha256


def unpacked(registry: ModelRegistry) -> bool:
    return any((registry.folder / ".unpacked").rglob("*.gguf"))
