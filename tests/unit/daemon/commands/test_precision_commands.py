"""bayard quantize and bayard quality, with the engine really run in processes of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from daemon.cli import run
from daemon.settings import Settings
from engine.errors import InvalidParameter
from engine.quantize.quality import form_of
from engine.spec import read_spec
from tests.fakes.quantised_checkpoints import llama


@pytest.fixture(autouse=True)
def no_other_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BAYARD_STATE_DIR", "BAYARD_CONFIG"):
        monkeypatch.delenv(name, raising=False)


def test_quantize_writes_a_folder_that_imports_and_is_planned(
    tmp_path: Path, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    state = ("--state-dir", str(settings.state_dir))
    plain, out = llama(tmp_path / "plain"), tmp_path / "small"
    argv = [
        "quantize",
        str(plain),
        "--to",
        "int4",
        "--calibrate",
        "none",
        "--group",
        "64",
        "--out",
        str(out),
        "--json",
        *state,
    ]
    assert run(argv) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["path"] == str(out)
    assert "quantising" in told.err
    spec = read_spec(out)
    assert spec.source_dtype == "compressed-tensors int4 g64"
    assert run(["plan", str(out), "--json", *state]) == 0
    assert json.loads(capsys.readouterr().out)["chosen"]["weight_format"] == "compressed-tensors int4 g64"
    assert run(argv) == 1
    assert "is there already" in capsys.readouterr().err


def test_quantize_without_a_tokenizer_to_learn_with_says_so(
    tmp_path: Path, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = llama(tmp_path / "plain")
    argv = ["quantize", str(plain), "--to", "int8-mixed", "--out", str(tmp_path / "small")]
    assert run([*argv, "--state-dir", str(settings.state_dir)]) == 1
    assert "tokenizer.json" in capsys.readouterr().err


def test_quantize_learns_a_cache_alone_and_names_the_price(
    settings: Settings, smollm_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def run_module(module: str, words: list[str]) -> dict[str, object]:
        asked[:] = words
        return {"written": {"path": words[words.index("--out") + 1], "source_dtype": "F16", "weight_bytes": 1}}

    monkeypatch.setattr("daemon.commands.engine_process.run_module", run_module)
    state = ("--state-dir", str(settings.state_dir))
    assert run(["quantize", str(smollm_path), "--kv", "int8", "--calibrate", "file", *state]) == 0
    folder = Path(f"{smollm_path.stem}-kv-int8").absolute()
    assert asked == [
        *(str(smollm_path.absolute()), "--to", "stored", "--out", str(folder), "--device", "cpu"),
        *("--calibrate", "file", "--kv", "int8"),
    ]
    assert f"`bayard quality {smollm_path} stored {folder}+kv-int8`" in capsys.readouterr().out


def test_quality_compares_what_a_cache_is_kept_in(
    settings: Settings, smollm_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = ("--state-dir", str(settings.state_dir))
    assert (
        run(["quality", str(smollm_path), "stored", "stored+kv-int8-dynamic", "--tokens", "64", "--json", *state]) == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert found["second"] == "stored+kv-int8-dynamic"
    assert 0 < found["mean_kl"] < 0.01


def test_quality_of_an_imported_model_is_kept_and_shown_by_plans(
    settings: Settings, smollm_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = ("--state-dir", str(settings.state_dir))
    assert run(["models", "import", str(smollm_path), "--name", "tiny", "--link", *state]) == 0
    capsys.readouterr()
    assert run(["quality", "tiny", "stored", "int8", "--tokens", "96", "--json", *state]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kept"]
    assert found["tokens"] == 95
    assert abs(found["perplexity_change"]) < 0.02
    assert found["agreement"] > 0.9
    assert run(["plan", "tiny", "--json", *state]) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert any(note.startswith("measured: int8 beside stored: perplexity") for note in notes)


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_quality_that_cannot_be_kept_is_shown_all_the_same(
    settings: Settings,
    smollm_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    form: tuple[str, ...],
) -> None:
    """The model is deleted while it is measured."""
    state = ("--state-dir", str(settings.state_dir))
    assert run(["models", "import", str(smollm_path), "--name", "tiny", "--link", *state]) == 0
    figures = {
        "first": "stored", "second": "int8", "tokens": 95, "text": "built in", "first_perplexity": 12.345,
        "second_perplexity": 12.5, "perplexity_change": 0.01, "agreement": 0.98, "mean_kl": 0.001,
    }  # fmt: skip

    def run_module(module: str, words: list[str], progress_on_stderr: bool = False) -> dict[str, object]:
        assert run(["models", "delete", "tiny", "--unload", *state]) == 0
        capsys.readouterr()
        return figures

    monkeypatch.setattr("daemon.commands.engine_process.run_module", run_module)
    assert run(["quality", "tiny", "stored", "int8", *form, *state]) == 1
    told = capsys.readouterr()
    assert "12.345" in told.out
    assert "were not kept for tiny" in told.err
    assert "model_not_found" in told.err
    if form:
        assert json.loads(told.out) == figures | {"kept": False}


def test_plan_with_rounded_weights_predicts_fewer_bytes_and_says_so(
    tmp_path: Path, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = llama(tmp_path / "plain")
    chosen = {}
    for weights in ("stored", "int8", "int4"):
        assert run(["plan", str(plain), "--weights", weights, "--json", "--state-dir", str(settings.state_dir)]) == 0
        chosen[weights] = json.loads(capsys.readouterr().out)["chosen"]
    sizes = [next(i["size_bytes"] for i in c["memory"]["items"] if i["name"] == "weights") for c in chosen.values()]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 3
    assert chosen["int8"]["weights"] == "int8"
    assert any("rounded to int8 at load" in choice["reason"] for choice in chosen["int8"]["choices"])


def test_quality_of_an_unknown_form_names_the_known(
    tmp_path: Path, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = llama(tmp_path / "plain")
    assert run(["quality", str(plain), "stored", "int3", "--state-dir", str(settings.state_dir)]) == 1
    told = capsys.readouterr().err
    assert "int3" in told
    assert "int8-mixed" in told


@pytest.mark.parametrize("form", ["stored+kv-int4", "stored+kv-fp8-static"])
def test_caches_that_are_none_are_refused_naming_the_known(form: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match="names no KV cache") as refused:
        form_of(form, tmp_path)
    assert "+kv-int8" in str(refused.value.hint)
