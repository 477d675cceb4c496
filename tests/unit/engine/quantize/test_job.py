"""`bayard quantize`: what is written loads as what was meant, an interruption costs nothing, nothing is overwritten."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from engine.errors import Conflict, InvalidParameter, UnsupportedFormat
from engine.models import load_model
from engine.quant.encode import encode
from engine.quantize import int4_search, layer_rounding
from engine.quantize import job as job_module
from engine.quantize.compensation import Compensator, compensated_to
from engine.quantize.int4_search import best_scale, rounded_int4, sample_of
from engine.quantize.job import QuantizeJob, quantize
from engine.quantize.kv_form import best_scales
from engine.quantize.partial_folder import PARTIAL
from engine.quantize.quality import compare
from engine.quantize.text_pass import batch_of, windows_of
from engine.quantize.texts import calibration_text, evaluation_text
from engine.spec import read_spec
from engine.spec.kv_scales import LARGEST as LARGEST_CODE
from engine.spec.model_spec import KvScheme
from engine.spec.precision import WeightPrecision
from tests.fakes.family_models import saved_model
from tests.fakes.known_tokens import KnownTokens
from tests.fakes.quantised_checkpoints import llama

TOKENS = [7, 50, 3, 3, 91, 22, 8, 64, 12, 70] * 9
WRITTEN = [WeightPrecision.FP8, WeightPrecision.INT8, WeightPrecision.INT8_MIXED, WeightPrecision.INT4]
NEAR = {"fp8": 0.2, "int8": 0.03, "int8-mixed": 0.03, "int4": 0.4}


@pytest.fixture(autouse=True)
def tokens_without_a_tokenizer(monkeypatch: pytest.MonkeyPatch, one_thread: None) -> None:
    monkeypatch.setattr(job_module, "load_text", lambda spec: KnownTokens(TOKENS))


def logits_of(path: Path) -> torch.Tensor:
    spec = read_spec(path)
    model = load_model(spec, "cpu", torch.float32, lambda done, total: None)
    return model.forward(batch_of(spec, windows_of(TOKENS, 512), torch.device("cpu"), torch.float32))


@pytest.mark.parametrize("text", ["", "some text"])
@pytest.mark.parametrize("precision", WRITTEN)
def test_written_folder_computes_nearly_what_the_original_does(
    precision: WeightPrecision, text: str, tmp_path: Path
) -> None:
    plain = llama(tmp_path / "plain")
    stages: list[str] = []
    written = quantize(
        QuantizeJob(plain, precision, tmp_path / "out", text), lambda stage, done, total: stages.append(stage)
    )
    assert written.quantisation is not None
    assert "quantising" in stages
    assert not list(tmp_path.glob(f"*{PARTIAL}"))
    found, wanted = logits_of(tmp_path / "out"), logits_of(plain)
    assert 0 < float((found - wanted).norm() / wanted.norm()) < NEAR[precision]


def test_learning_makes_four_bits_clearly_better_than_rounding_to_the_nearest(tmp_path: Path) -> None:
    plain = llama(tmp_path / "plain")
    wanted = logits_of(plain)
    errors = []
    for name, text in (("nearest", ""), ("learnt", "some text")):
        quantize(QuantizeJob(plain, WeightPrecision.INT4, tmp_path / name, text), lambda stage, done, total: None)
        errors.append(float((logits_of(tmp_path / name) - wanted).norm()))
    assert errors[1] < 0.8 * errors[0], errors


@pytest.mark.parametrize("precision", WRITTEN)
def test_rows_are_written_alike_however_many_are_rounded_at_once(
    precision: WeightPrecision, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though what scales a layer's inner width divides rows of the projection before."""
    plain = llama(tmp_path / "plain")
    for name in ("whole", "tiles"):
        quantize(QuantizeJob(plain, precision, tmp_path / name, "some text"), lambda stage, done, total: None)
        monkeypatch.setattr(layer_rounding, "LEAST_ROWS", 8)
        monkeypatch.setattr(layer_rounding, "THREAD_ROWS", 40)
        monkeypatch.setattr(int4_search, "THREAD_TILE_NUMBERS", 12 * 128)
    for shard in (tmp_path / "whole").glob("*.safetensors"):
        whole, tiles = load_file(shard), load_file(tmp_path / "tiles" / shard.name)
        assert set(whole) == set(tiles)
        assert all(torch.equal(whole[name].view(torch.uint8), tiles[name].view(torch.uint8)) for name in whole)


def test_groups_are_as_asked_and_finer_ones_are_nearer(tmp_path: Path) -> None:
    plain = llama(tmp_path / "plain")
    wanted, errors = logits_of(plain), []
    for group in (0, 32):
        out = tmp_path / str(group)
        job = QuantizeJob(plain, WeightPrecision.FP8, out, "", group=group)
        written = quantize(job, lambda stage, done, total: None)
        assert written.source_dtype.endswith(" g32") == (group == 32)
        errors.append(float((logits_of(out) - wanted).norm()))
    assert errors[1] < errors[0], errors


@pytest.mark.parametrize(
    ("precision", "group", "message"),
    [(WeightPrecision.INT8, 32, "a multiplier a row"), (WeightPrecision.INT4, 48, "do not divide a matrix's width")],
)
def test_groups_that_cannot_be_are_refused(
    precision: WeightPrecision, group: int, message: str, tmp_path: Path
) -> None:
    plain = llama(tmp_path / "plain")
    with pytest.raises(InvalidParameter, match=message):
        quantize(QuantizeJob(plain, precision, tmp_path / "out", "", group=group), lambda stage, done, total: None)


def test_interrupted_run_goes_on_where_it_stopped_and_writes_the_same(tmp_path: Path) -> None:
    plain = llama(tmp_path / "plain")
    asked = [QuantizeJob(plain, WeightPrecision.INT4, tmp_path / name, "text") for name in ("whole", "cut")]
    quantize(asked[0], lambda stage, done, total: None)

    def stop(stage: str, done: int, total: int) -> None:
        if stage == "quantising":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize(asked[1], stop)
    partial = tmp_path / f"cut{PARTIAL}"
    first = partial / "model-00002-of-00004.safetensors"
    kept_at = first.stat().st_mtime_ns
    with pytest.raises(Conflict, match="another model, text or precision"):
        quantize(QuantizeJob(plain, WeightPrecision.FP8, tmp_path / "cut", "text"), lambda stage, done, total: None)
    quantize(asked[1], lambda stage, done, total: None)
    assert (tmp_path / "cut" / first.name).stat().st_mtime_ns == kept_at
    for shard in (tmp_path / "whole").glob("*.safetensors"):
        whole, cut = load_file(shard), load_file(tmp_path / "cut" / shard.name)
        assert set(whole) == set(cut)
        assert all(torch.equal(whole[name].view(torch.uint8), cut[name].view(torch.uint8)) for name in whole)


def test_folder_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    plain = llama(tmp_path / "plain")
    (tmp_path / "out").mkdir()
    with pytest.raises(Conflict, match="is there already"):
        quantize(QuantizeJob(plain, WeightPrecision.FP8, tmp_path / "out", ""), lambda stage, done, total: None)


def test_quantised_checkpoint_is_not_quantised_again(tmp_path: Path) -> None:
    plain = llama(tmp_path / "plain")
    quantize(QuantizeJob(plain, WeightPrecision.FP8, tmp_path / "out", ""), lambda stage, done, total: None)
    with pytest.raises(UnsupportedFormat, match="is quantised already"):
        quantize(
            QuantizeJob(tmp_path / "out", WeightPrecision.INT8, tmp_path / "b", ""), lambda stage, done, total: None
        )


def test_scaling_by_activations_lowers_the_error_of_outputs() -> None:
    draw = torch.Generator().manual_seed(4)
    x, weight = torch.randn(300, 64, generator=draw), torch.randn(48, 64, generator=draw)
    x[:, 9] *= 30
    sample = sample_of(x)
    scale = best_scale([weight], sample, 32)
    plain, scaled = rounded_int4(weight, 32).dequantize(), rounded_int4(weight * scale, 32).dequantize() / scale
    assert float(((scaled - weight) @ x.T).norm()) < 0.6 * float(((plain - weight) @ x.T).norm())


@pytest.mark.parametrize("kind", ["fp8", "int8", "int4"])
def test_compensation_lowers_the_error_of_outputs_with_the_same_multipliers(kind: str) -> None:
    draw = torch.Generator().manual_seed(5)
    x = torch.randn(600, 96, generator=draw) @ torch.randn(96, 96, generator=draw)
    weight = torch.randn(40, 96, generator=draw)
    nearest = rounded_int4(weight, 32) if kind == "int4" else encode(weight, kind)
    better = compensated_to(nearest, weight, [Compensator.of(part) for part in sample_of(x).moments])
    errors = [float(((form.dequantize() - weight) @ x.T).norm()) for form in (nearest, better)]
    assert errors[1] < 0.85 * errors[0]
    assert torch.equal(better.scales, nearest.scales)


def test_compare_measures_nothing_between_a_model_and_itself_and_something_else_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.quantize.quality.load_text", lambda spec: KnownTokens(TOKENS))
    plain = llama(tmp_path / "plain")
    same = compare(plain, ("stored", "stored"), "text", "mine")
    assert (same.perplexity_change, same.agreement, same.mean_kl, same.tokens) == (0.0, 1.0, 0.0, len(TOKENS) - 1)
    other = compare(plain, ("stored", "fp4"), "text", "mine")
    assert other.mean_kl > 0
    assert other.agreement < 1


def test_texts_are_two_and_of_some_length() -> None:
    texts = calibration_text(), evaluation_text()
    assert all(len(text.split()) > 900 for text in texts)
    assert not set(texts[0].splitlines()) & set(texts[1].splitlines()) - {""}


@pytest.mark.parametrize("kv", ["fp8", "int8"])
@pytest.mark.parametrize("precision", [WeightPrecision.STORED, WeightPrecision.FP8])
def test_multipliers_of_a_cache_are_written_read_back_and_used(
    precision: WeightPrecision, kv: str, tmp_path: Path
) -> None:
    plain, out = llama(tmp_path / "plain"), tmp_path / "out"
    written = quantize(QuantizeJob(plain, precision, out, "text", kv=kv), lambda stage, done, total: None)
    assert written.kv_scheme == KvScheme(kv)
    assert (written.quantisation is None) == (precision is WeightPrecision.STORED)
    stored = load_file_of(out)
    batch = batch_of(written, windows_of(TOKENS, 512), torch.device("cpu"), torch.float32)
    load_model(read_spec(plain), "cpu", torch.float32, lambda done, total: None).forward(batch)
    largest = LARGEST_CODE[kv]
    for layer, view in enumerate(batch.kv_views):
        for plane, half in enumerate("kv"):
            scale = stored[f"model.layers.{layer}.self_attn.{half}_scale"]
            assert scale.shape == (1,)
            share = float(scale * largest / view[:, plane].abs().max())
            assert 0.39 < share < 1.01 if kv == "int8" else 0.99 < share < 1.95
    if precision is WeightPrecision.STORED:
        original = load_file(plain / "model.safetensors")
        assert all(torch.equal(stored[name], tensor) for name, tensor in original.items())
    built = [loaded_with_cache(out, kv, calibrated) for calibrated in (True, False)]
    wanted = logits_of(out)
    errors = [float((found - wanted).norm() / wanted.norm()) for found in built]
    assert 0 < errors[1] < errors[0] < 0.12, errors


def test_multipliers_of_a_cache_stay_those_of_its_kind_in_fewer_bits(tmp_path: Path) -> None:
    plain, learnt, out = llama(tmp_path / "plain"), tmp_path / "learnt", tmp_path / "out"
    quantize(QuantizeJob(plain, WeightPrecision.STORED, learnt, "text", kv="int8"), lambda stage, done, total: None)
    written = quantize(QuantizeJob(learnt, WeightPrecision.INT8, out, ""), lambda stage, done, total: None)
    assert written.kv_scheme == KvScheme("int8"), "or they would be read as those of E4M3"
    kept, scales = load_file_of(learnt), load_file_of(out)
    names = [name for name in kept if name.endswith(("k_scale", "v_scale"))]
    assert names
    assert all(torch.equal(scales[name], kept[name]) for name in names)
    again = tmp_path / "again"
    quantize(QuantizeJob(learnt, WeightPrecision.INT8, again, "text", kv="fp8"), lambda stage, done, total: None)
    assert read_spec(again).kv_scheme == KvScheme("fp8"), "others were learnt"
    assert not any(torch.equal(load_file_of(again)[name], kept[name]) for name in names)


def test_every_matrix_that_is_not_rounded_is_named_as_one(tmp_path: Path) -> None:
    """Or other readers of the format look for its codes, and compute nonsense without a word."""
    for family in ("deepseek_v2", "qwen3_moe"):
        saved_model(family, tmp_path / family)
        out = tmp_path / f"{family}-int8"
        quantize(QuantizeJob(tmp_path / family, WeightPrecision.INT8, out, ""), lambda stage, done, total: None)
        stored = load_file_of(out)
        ignored = set(json.loads((out / "config.json").read_text())["quantization_config"]["ignore"])
        matrices = {n.removesuffix(".weight") for n, t in stored.items() if n.endswith(".weight") and t.dim() == 2}
        plain = {name for name in matrices if f"{name}.weight_scale" not in stored}
        assert plain - {"model.embed_tokens"} == ignored - {"lm_head"} | (plain & {"lm_head"})
        assert (family == "qwen3_moe") or any(name.endswith("kv_b_proj") for name in ignored)


def load_file_of(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


def loaded_with_cache(path: Path, kv: str, calibrated: bool) -> torch.Tensor:
    spec, dtype = read_spec(path), {"fp8": torch.uint8, "int8": torch.int8}[kv]
    model = load_model(spec, "cpu", torch.float32, lambda done, total: None, kv_dtype=dtype, calibrated_kv=calibrated)
    return model.forward(batch_of(spec, windows_of(TOKENS, 512), torch.device("cpu"), dtype))


def test_scales_that_cut_the_largest_few_are_those_of_the_least_error() -> None:
    """Of whole numbers; and E4M3 puts a layer's commonest large number on one of its steps."""
    numbers = torch.randn(400, 2, 2, 16, 16, generator=torch.Generator().manual_seed(1))
    numbers[0, 0, 0, 0, 0] = 9.0
    found = best_scales(numbers, "int8") * 127
    assert 3.5 < float(found[0]) < 6.0
    assert abs(float(found[1]) - float(numbers[:, 1].abs().max())) < 1.5
    numbers[:, 1] = 1.0
    numbers[0, 1, 0, 0, 0] = 1.0625 * 448 / 416
    scale = best_scales(numbers, "fp8")[1]
    codes = (torch.tensor(1.0) / scale).to(torch.float8_e4m3fn).to(torch.float32)
    assert abs(float(codes * scale) - 1.0) < 0.01
    assert best_scales(torch.zeros(1, 2, 2, 4, 4), "fp8").gt(0).all()
    with pytest.raises(UnsupportedFormat, match="no finite number"):
        best_scales(torch.full((1, 2, 1, 4, 4), torch.inf), "int8")


@pytest.mark.parametrize(
    ("precision", "text", "kv", "message"),
    [
        (WeightPrecision.STORED, "text", "", "--to is stored"),
        (WeightPrecision.STORED, "", "fp8", "--calibrate is none"),
        (WeightPrecision.INT8, "text", "fp4", "--kv is 'fp4'"),
    ],
)
def test_caches_that_cannot_be_learnt_are_refused(
    precision: WeightPrecision, text: str, kv: str, message: str, tmp_path: Path
) -> None:
    plain = llama(tmp_path / "plain")
    with pytest.raises(InvalidParameter, match=message):
        quantize(QuantizeJob(plain, precision, tmp_path / "out", text, kv=kv), lambda stage, done, total: None)


def test_columns_make_up_for_others_in_parts_where_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one matrix a part would, so that the products of all pairs of inputs are never held."""
    draw = torch.Generator().manual_seed(4)
    x, weight = torch.randn(400, 96, generator=draw), torch.randn(24, 96, generator=draw)
    x[:, 1::2] = x[:, 0::2] * 0.9 + x[:, 1::2] * 0.1
    whole = sample_of(x)
    monkeypatch.setattr(int4_search, "TOGETHER", 64)
    parts = sample_of(x)
    assert [part.width for part in parts.moments] == [64, 32]
    assert torch.equal(parts.mean_square, whole.mean_square)
    nearest, made_up = encode(weight, "int8"), [Compensator.of(part) for part in parts.moments]
    found = compensated_to(nearest, weight, made_up).dequantize()
    for columns, of_part in zip((slice(0, 64), slice(64, 96)), made_up, strict=True):
        part = replace(nearest, codes=nearest.codes[:, columns], shape=(24, columns.stop - columns.start))
        alone = compensated_to(part, weight[:, columns], [of_part]).dequantize()
        assert torch.equal(found[:, columns], alone)
    errors = [float(((made - weight) @ x.T).norm()) for made in (nearest.dequantize(), found)]
    assert errors[1] < 0.8 * errors[0], errors
    scale = torch.rand(96, generator=draw) + 0.5
    wanted = sample_of(x / scale)
    for divided in (whole, parts):
        divided.divide(scale)
        assert torch.allclose(divided.mean_square, wanted.mean_square, rtol=1e-4)
        assert torch.allclose(divided.mean_size, wanted.mean_size, rtol=1e-4)
        assert torch.allclose(divided.rows, wanted.rows)
