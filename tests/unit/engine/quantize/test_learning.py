"""What a run over a text teaches, and how little of it is held."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from engine.models import load_model
from engine.quantize import job as job_module
from engine.quantize import products, text_pass
from engine.quantize.job import QuantizeJob, quantize
from engine.quantize.kv_form import best_scales
from engine.quantize.learning import LayerInputs, learn
from engine.quantize.products import Products
from engine.quantize.text_pass import batch_of, learning_steps, windows_of
from engine.spec import read_spec
from engine.spec.precision import WeightPrecision
from tests.fakes.known_tokens import TOKENS, KnownTokens


@pytest.fixture(autouse=True)
def tokens_without_a_tokenizer(monkeypatch: pytest.MonkeyPatch, one_thread: None) -> None:
    monkeypatch.setattr(job_module, "load_text", lambda spec: KnownTokens(TOKENS))


def quietly(stage: str, done: int, total: int) -> None:
    return None


def quietly_reading(done: int, total: int) -> None:
    return None


def test_learning_asks_for_no_logits_and_holds_one_layers_cache(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And where the cache teaches nothing, that of one step."""
    monkeypatch.setattr(text_pass, "STEP_TOKENS", 100)
    spec, cpu, windows = read_spec(plain), torch.device("cpu"), windows_of(TOKENS, 50)
    whole = batch_of(spec, windows, cpu, torch.float32)
    held = [sum(view.untyped_storage().nbytes() for view in storages(whole.kv_views))]
    for whole_cache in (True, False):
        steps = learning_steps(spec, windows, cpu, torch.float32, whole_cache=whole_cache)
        assert [step.num_tokens for step in steps] == [100, 100]
        assert all(len(step.logit_rows) == 0 for step in steps)
        views = storages([view for step in steps for view in step.kv_views])
        assert len(views) == 1
        held.append(sum(view.untyped_storage().nbytes() for view in views))
        written = [set(step.groups[0].write_pages.tolist()) for step in steps]
        assert written[0].isdisjoint(written[1]) == whole_cache
    assert held[1] <= 0.51 * held[0]
    assert held[2] < 0.7 * held[1]


def storages(views: list[torch.Tensor]) -> list[torch.Tensor]:
    """A view of each memory."""
    return list({view.untyped_storage().data_ptr(): view for view in views}.values())


def test_multipliers_of_each_layers_cache_are_its_own(plain: Path, tmp_path: Path) -> None:
    quantize(QuantizeJob(plain, WeightPrecision.STORED, tmp_path / "out", "text", kv="int8"), quietly)
    stored = {name: part for file in (tmp_path / "out").glob("*.safetensors") for name, part in load_file(file).items()}
    spec = read_spec(plain)
    batch = batch_of(spec, windows_of(TOKENS, 128), torch.device("cpu"), torch.float32)
    load_model(spec, "cpu", torch.float32, quietly_reading).forward(batch)
    wanted = [best_scales(view, "int8") for view in batch.kv_views]
    assert not torch.allclose(wanted[0], wanted[1])
    for layer, scales in enumerate(wanted):
        found = [stored[f"model.layers.{layer}.self_attn.{half}_scale"] for half in "kv"]
        assert torch.allclose(torch.cat(found), scales, rtol=1e-3)


@pytest.mark.parametrize("precision", [WeightPrecision.INT4, WeightPrecision.INT8_MIXED])
def test_what_is_learnt_in_steps_is_what_is_learnt_at_once(
    precision: WeightPrecision, plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[list[LayerInputs]] = []
    monkeypatch.setattr(text_pass, "WINDOW_TOKENS", 48)
    for step_tokens in (1024, 48):
        monkeypatch.setattr(text_pass, "STEP_TOKENS", step_tokens)
        layers: dict[int, LayerInputs] = {}
        cpu = torch.device("cpu")
        learn(read_spec(plain), TOKENS, precision, cpu, torch.float32, layers.__setitem__, quietly_reading)
        found.append(list(layers.values()))
    for once, pieced in zip(*found, strict=True):
        assert set(once.samples) == set(pieced.samples)
        for name, sample in once.samples.items():
            other = pieced.samples[name]
            torch.testing.assert_close(other.rows, sample.rows)
            torch.testing.assert_close(other.mean_size, sample.mean_size)
            wholes = [[part.whole() for part in found.moments] for found in (other, sample)]
            torch.testing.assert_close(*wholes, rtol=1e-4, atol=1e-5)
        assert set(once.outliers) == set(pieced.outliers)
        for name, known in once.outliers.items():
            assert torch.equal(pieced.outliers[name].columns, known.columns)
            assert pieced.outliers[name].threshold == pytest.approx(known.threshold, rel=1e-5)


def test_products_of_many_inputs_are_those_of_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though half of them are there, in strips of which the last is narrower."""
    monkeypatch.setattr(products, "STRIP", 16)
    x, cpu = torch.randn(30, 40, generator=torch.Generator().manual_seed(2)), torch.device("cpu")
    found = Products(40, cpu)
    for piece in x.split(12):
        found.add(piece)
    torch.testing.assert_close(found.whole(), x.T @ x)
    torch.testing.assert_close(found.squares(), x.square().sum(dim=0))
    scale = torch.rand(40, generator=torch.Generator().manual_seed(3)) + 0.5
    found.divide(scale)
    found.divide(30)
    torch.testing.assert_close(found.whole(), (x / scale).T @ (x / scale) / 30)
