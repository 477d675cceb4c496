"""Weights rounded at load: what they become, how near it is, and that it does not depend on who is beside."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.builder import build_engine
from engine.errors import InvalidParameter
from engine.messages import Knobs, SamplingParams, Submit, WorkerConfig
from engine.models import Model
from engine.models.rounding import NOWHERE, OutlierSet, Rounding
from engine.quant.quant_tensor import QuantTensor
from engine.quantize.learning import learn_outliers
from engine.quantize.outliers import outlying
from engine.spec import read_spec
from engine.spec.precision import WeightPrecision
from tests.fakes.quantised_checkpoints import llama

ROUNDED = [precision for precision in WeightPrecision if precision is not WeightPrecision.STORED]
PROMPTS = [[5, 17, 80, 3, 3, 41, 9], [60, 2, 33], list(range(40, 62))]
# Of logits' spread, on a random model, whose errors are larger than a trained one's.
NEAR = {"fp8": 0.2, "int8": 0.03, "int8-mixed": 0.03, "int4": 0.4, "fp4": 0.5}


@pytest.mark.parametrize("precision", ROUNDED)
def test_rounded_model_is_near_the_stored_one(
    precision: WeightPrecision, tmp_path: Path, load: Callable[..., Model], harness: Callable[..., Any], kernels: str
) -> None:
    folder = llama(tmp_path / "plain")
    model, plain = load(folder, rounding=Rounding(precision)), load(folder)
    for found, wanted in zip(harness(model).run(PROMPTS, 5), harness(plain).run(PROMPTS, 5), strict=True):
        assert 0 < float((found - wanted).norm() / wanted.norm()) < NEAR[precision]


@pytest.mark.parametrize("precision", ROUNDED)
def test_rounded_models_logits_do_not_depend_on_the_batch(
    precision: WeightPrecision, tmp_path: Path, load: Callable[..., Model], harness: Callable[..., Any]
) -> None:
    model = load(llama(tmp_path / "plain"), rounding=Rounding(precision))
    for prompt, logits in zip(PROMPTS, harness(model).run(PROMPTS, 3), strict=True):
        torch.testing.assert_close(harness(model).run([prompt], 3)[0], logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("precision", ROUNDED)
def test_rows_are_rounded_alike_alone_and_together(precision: WeightPrecision) -> None:
    weight = torch.randn(24, 128)
    rounding = Rounding(precision, {(0, "attn_in"): OutlierSet(torch.tensor([3, 77]))})
    whole = rounding.coded(weight, "attn_q", 0).dequantize()
    halves = [rounding.coded(part, "attn_q", 0).dequantize() for part in (weight[:11], weight[11:])]
    assert torch.equal(whole, torch.cat(halves))


def test_outlying_finds_planted_columns_and_no_others() -> None:
    x = torch.randn(200, 96, generator=torch.Generator().manual_seed(1))
    x[:, [7, 40]] *= 20
    assert outlying(x).columns.tolist() == [7, 40]
    assert 15 < outlying(x).threshold < 21
    assert outlying(torch.randn(200, 96)).columns.tolist() == []
    assert len(outlying(x * torch.logspace(0, 4, 96), most=3).columns) <= 3


def test_outliers_kept_apart_make_rounded_activations_many_times_better() -> None:
    """W8A8 with planted outliers: activations rounded a token at a time, with and without those columns."""
    draw = torch.Generator().manual_seed(2)
    x, weight = torch.randn(256, 512, generator=draw), torch.randn(128, 512, generator=draw)
    planted = torch.randperm(512, generator=draw)[:16].sort().values
    x[:, planted] *= 60
    truth = x.double() @ weight.double().T

    def product(columns: torch.Tensor) -> torch.Tensor:
        coded = Rounding(WeightPrecision.INT8_MIXED, {(0, "attn_in"): OutlierSet(columns)}).coded(weight, "attn_q", 0)
        rest = x.clone()
        rest[:, columns] = 0
        scales = rest.abs().amax(dim=1, keepdim=True) / 127
        whole = (rest / scales).round() * scales
        whole[:, columns] = x[:, columns]
        return whole.double() @ coded.dequantize().double().T

    plain, mixed = (float((product(c) - truth).norm() / truth.norm()) for c in (NOWHERE, outlying(x).columns))
    clean = x.clone()
    assert outlying(clean).columns.tolist() == planted.tolist()
    assert 5 <= plain / mixed <= 50, (plain, mixed)


def test_learnt_outliers_are_the_same_each_time_and_of_every_input(tmp_path: Path) -> None:
    spec = read_spec(llama(tmp_path / "plain"))
    runs = [
        learn_outliers(
            spec, list(range(1, 90)), torch.device("cpu"), torch.float32, lambda done, total: None, threshold=3
        )
        for _ in range(2)
    ]
    assert set(runs[0]) == {(i, name) for i in range(2) for name in ("attn_in", "attn_out", "mlp_in", "mlp_inner")}
    assert any(len(known.columns) for known in runs[0].values())
    assert all(torch.equal(runs[0][key].columns, runs[1][key].columns) for key in runs[0])
    assert all(runs[0][key].threshold == runs[1][key].threshold > 0 for key in runs[0])


def engine_tokens(path: Path, **changes: Any) -> list[int]:
    config = WorkerConfig("w", "m", str(path), "", kv_tokens=128, max_context_tokens=64, knobs=Knobs(2), **changes)
    core = build_engine(config, lambda stage, done, total: None).core
    core.add(Submit("r", [5, 9, 33, 7], SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)))
    found: list[int] = []
    while core.has_work():
        found += [token for delta in core.step().deltas for token in delta.token_ids]
    return found


@pytest.mark.parametrize("changes", [{"weights": "int8-mixed"}, {"kv_dtype": "fp8"}, {"kv_dtype": "int8"}])
def test_worker_configuration_asks_for_rounded_weights_and_caches(changes: dict[str, Any], tmp_path: Path) -> None:
    path = llama(tmp_path / "plain")
    assert engine_tokens(path, **changes)[0] == engine_tokens(path)[0]


def test_unknown_precision_is_refused_naming_the_known(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match="weights is 'int3'"):
        engine_tokens(llama(tmp_path / "plain"), weights="int3")


@pytest.mark.parametrize("precision", [WeightPrecision.INT8, WeightPrecision.INT4])
@pytest.mark.parametrize("factor", [1e-9, 1e-6, 1e-4, 1e7])
def test_small_and_large_rows_are_rounded_as_near_as_others(precision: WeightPrecision, factor: float) -> None:
    weight = torch.randn(6, 256, generator=torch.Generator().manual_seed(2)) * 0.02
    weight[1] = 0
    rounding = Rounding(precision)
    usual = rounding.made(weight, "mlp_down", 0)
    assert isinstance(usual, QuantTensor)
    weight[3] *= factor
    made = rounding.made(weight, "mlp_down", 0)
    assert not isinstance(made, torch.Tensor)
    error = (made.dequantize() - weight).abs().amax(dim=1)
    bound = {WeightPrecision.INT8: 0.6 / 127, WeightPrecision.INT4: 1.3 / 15}[precision]
    assert bool((error <= weight.abs().amax(dim=1) * bound).all()), error


@pytest.mark.parametrize("precision", ROUNDED)
@pytest.mark.parametrize("columns", [8, 50, 99, 100])
def test_widths_that_no_group_divides_are_rounded_by_rows(precision: WeightPrecision, columns: int) -> None:
    weight = torch.randn(24, columns, generator=torch.Generator().manual_seed(2))
    made = Rounding(precision, group=32).made(weight, "mlp_down", 0)
    assert not isinstance(made, torch.Tensor)
    bound = 0.04 if precision is WeightPrecision.FP8 else 0.01
    assert float((made.dequantize() - weight).norm() / weight.norm()) < bound


@pytest.mark.parametrize("precision", ["int4", "fp4"])
def test_worker_rounds_what_it_can_and_names_the_widths_that_it_cannot(precision: str, tmp_path: Path) -> None:
    path = llama(tmp_path / "plain", intermediate_size=99)
    assert len(engine_tokens(path, weights=precision)) == 6
    config = WorkerConfig("w", "m", str(path), "", kv_tokens=128, max_context_tokens=64, weights=precision)
    notes = build_engine(config, lambda stage, done, total: None).notes
    assert any(f"widths 99 are rounded to int8: {precision} has no groups" in note for note in notes), notes
