"""Multipliers of a KV cache that a checkpoint brings: read, checked, used, and refused by name."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from engine.builder import build_engine
from engine.errors import InvalidParameter, UnsupportedFormat
from engine.kernels.scaled_cache import parts
from engine.messages import Knobs, Submit, WorkerConfig
from engine.models import Model, load_model
from engine.quantize.text_pass import batch_of
from engine.spec import read_spec
from engine.spec.kv_scales import calibrated_scales
from tests.fakes.engine_runs import greedy, run, tokens
from tests.fakes.quantised_checkpoints import llama

E4M3 = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "tensor", "dynamic": False}
HEADS = 2
LAYERS = 2
STYLES = {
    "compressed-tensors": "self_attn.{}_scale",
    "modelopt": "self_attn.{0}_proj.{0}_scale",
    "vllm": "self_attn.attn.{}_scale",
}
K, V = torch.tensor([0.02]), torch.tensor([0.004])


def with_scales(
    folder: Path, *, style: str = "compressed-tensors", scheme: Any = E4M3, config: bool = True, **changed: Any
) -> Path:
    """A small Llama with k_scale and v_scale. changed: tensors by "LAYER_k" or "LAYER_v"; None: it has none"""
    path = llama(folder)
    stored = load_file(path / "model.safetensors")
    for layer in range(LAYERS):
        for half, usual in (("k", K), ("v", V)):
            tensor = changed.get(f"l{layer}_{half}", usual * (layer + 1))
            if tensor is not None:
                stored[f"model.layers.{layer}.{STYLES[style].format(half)}"] = tensor
    save_file(stored, path / "model.safetensors", metadata={"format": "pt"})
    stated = {
        "quant_method": "compressed-tensors",
        "format": "dense",
        "quantization_status": "frozen",
        "config_groups": {},
        "kv_cache_scheme": scheme,
    }
    if config:
        found = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps(found | {"quantization_config": stated}))
    return path


def scales_of(model: Model) -> list[torch.Tensor | None]:
    return [layer.attention.kv_scales for layer in model.layers]  # type: ignore[attr-defined]


def config_of(path: Path, **changes: Any) -> WorkerConfig:
    return WorkerConfig(
        "w", "m", str(path), "", kv_tokens=512, max_context_tokens=96, threads=1, knobs=Knobs(8, 64, 16), **changes
    )


def built(path: Path, **changes: Any) -> Any:
    return build_engine(config_of(path, **changes), lambda stage, done, total: None)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("config", [True, False])
def test_scales_of_every_spelling_are_read_by_layer(
    style: str, config: bool, tmp_path: Path, load: Callable[..., Model]
) -> None:
    path = with_scales(tmp_path, style=style, config=config)
    assert calibrated_scales(read_spec(path), "auto", "fp8") == (
        True,
        "calibrated: the checkpoint's k_scale and v_scale",
    )
    found = scales_of(load(path, kv_dtype=torch.uint8, calibrated_kv=True))
    for layer, scales in enumerate(found):
        assert scales is not None
        wanted = torch.stack((K, V)).expand(2, HEADS) * (layer + 1)
        assert torch.equal(scales, wanted)
    assert scales_of(load(path)) == [None] * LAYERS


def test_scales_of_heads_are_each_heads_and_of_another_kind_keep_the_range(
    tmp_path: Path, load: Callable[..., Model]
) -> None:
    each = torch.tensor([0.5, 0.25])
    path = with_scales(tmp_path, l0_k=each.view(2, 1, 1).to(torch.bfloat16), l0_v=each.clone())
    for dtype, factor in ((torch.uint8, 1.0), (torch.int8, 448 / 127)):
        found = scales_of(load(path, kv_dtype=dtype, calibrated_kv=True))[0]
        assert found is not None
        assert torch.equal(found, each.expand(2, 2) * factor)
    assert "made for fp8" in calibrated_scales(read_spec(path), "auto", "int8")[1]


@pytest.mark.parametrize("kind", ["fp8", "int8"])
def test_a_written_cache_holds_the_constants_and_numbers_beyond_them_saturate(kind: str, tmp_path: Path) -> None:
    tiny = torch.tensor([1e-6])
    path = with_scales(tmp_path, scheme=E4M3 | {"type": "float" if kind == "fp8" else "int"}, l0_k=tiny)
    engine = built(path, kv_dtype=kind)
    assert engine.kernels["KV multipliers"] == "calibrated: the checkpoint's k_scale and v_scale"
    core = engine.core
    run(core, Submit("a", list(range(3, 40)), greedy(4, ignore_eos=True)))
    for layer, view in enumerate(core.runner._kv_views):
        codes, scales = parts(view)
        for plane, constant in enumerate((tiny if layer == 0 else K * 2, V * (layer + 1))):
            written = scales[:, plane] != 0
            assert written.any()
            assert (scales[:, plane][written] == constant).all()
        if layer == 0:
            keys = codes[:, 0][scales[:, 0] != 0].to(torch.int16)
            largest = keys & 0x7F if kind == "fp8" else keys.abs()
            assert (largest <= (0x7E if kind == "fp8" else 127)).all(), "0x7F is no number"
            assert (largest == (0x7E if kind == "fp8" else 127)).float().mean() > 0.9


class RoundedCache(transformers.DynamicCache):
    """Transformers' own cache, what goes into it being rounded number by number with the checkpoint's constants."""

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any) -> Any:
        made = []
        for states, usual in ((key_states, K), (value_states, V)):
            scale = usual * (layer_idx + 1)
            codes = (states / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
            made.append(codes.to(states.dtype) * scale)
        return super().update(*made, layer_idx)


def test_logits_are_those_of_transformers_with_a_cache_rounded_by_the_same_constants(tmp_path: Path) -> None:
    path = with_scales(tmp_path)
    truth = transformers.LlamaForCausalLM.from_pretrained(llama(tmp_path / "plain")).eval()
    spec, ids = read_spec(path), list(range(3, 60))
    model = load_model(spec, "cpu", torch.float32, lambda done, total: None, kv_dtype=torch.uint8, calibrated_kv=True)
    found = model.forward(batch_of(spec, [ids], torch.device("cpu"), torch.uint8))
    with torch.no_grad():
        asked = {"input_ids": torch.tensor([ids]), "use_cache": True}
        name = "cache" if "cache" in inspect.signature(truth.forward).parameters else "past_key_values"
        wanted = truth(**asked, **{name: RoundedCache()}).logits[0]
        plain = truth(**asked).logits[0]
    # A number on the border between two codes may fall on either side.
    assert float((found - wanted).norm() / wanted.norm()) < 0.1 * float((plain - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("kind", ["fp8", "int8"])
def test_tokens_do_not_depend_on_what_else_is_in_the_batch(kind: str, tmp_path: Path) -> None:
    path = with_scales(tmp_path)
    prompts = {f"r{i}": [(7 * i + 11 * j) % 90 for j in range(5 + 13 * i)] for i in range(4)}
    submits = {name: Submit(name, ids, greedy(10, ignore_eos=True)) for name, ids in prompts.items()}
    together = run(built(path, kv_dtype=kind).core, *submits.values())
    for name, submit in submits.items():
        alone = run(built(path, kv_dtype=kind).core, submit)
        assert tokens(alone[name]) == tokens(together[name])


def test_what_is_asked_for_wins_and_a_cache_of_floats_has_none(tmp_path: Path) -> None:
    path, plain = with_scales(tmp_path / "a"), llama(tmp_path / "b")
    assert built(path, kv_dtype="fp8", kv_scales="dynamic").kernels["KV multipliers"].startswith("dynamic: ")
    assert built(path, kv_dtype="fp8", kv_scales="calibrated").kernels["KV multipliers"].startswith("calibrated: ")
    assert "brings no k_scale" in built(plain, kv_dtype="fp8").kernels["KV multipliers"]
    assert "KV multipliers" not in built(path, kv_scales="calibrated").kernels
    with pytest.raises(UnsupportedFormat, match="brings no k_scale and v_scale") as refused:
        built(plain, kv_dtype="int8", kv_scales="calibrated")
    assert "bayard quantize" in str(refused.value.hint)
    with pytest.raises(InvalidParameter, match="kv_scales is 'static'"):
        built(plain, kv_scales="static")


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"l1_k": None, "l1_v": None}, "layer 1 has no k_scale"),
        ({"scheme": E4M3 | {"num_bits": 4}}, "num_bits 4"),
        ({"scheme": E4M3 | {"symmetric": False}}, "symmetric False"),
        ({"scheme": E4M3 | {"strategy": "channel"}}, "strategy channel"),
    ],
)
def test_scales_that_cannot_be_used_leave_heads_their_own_and_are_refused_if_asked_for(
    changed: dict[str, Any], told: str, tmp_path: Path
) -> None:
    spec = read_spec(with_scales(tmp_path, **changed))
    used, why = calibrated_scales(spec, "auto", "fp8")
    assert not used
    assert told in why
    with pytest.raises(UnsupportedFormat, match=told):
        calibrated_scales(spec, "calibrated", "fp8")


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_multiplier_that_is_none_is_refused_by_name(value: float, tmp_path: Path, load: Callable[..., Model]) -> None:
    path = with_scales(tmp_path, l1_v=torch.tensor(value))
    with pytest.raises(UnsupportedFormat, match=r"model\.layers\.1\.self_attn\.v_scale = "):
        load(path, kv_dtype=torch.uint8, calibrated_kv=True)
    load(path, kv_dtype=torch.uint8)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"l0_k": torch.ones(3)}, r"layers\.0\.self_attn\.k_scale as F32 \[3\]"),
        ({"l0_k": torch.ones(1, dtype=torch.int32)}, r"k_scale as I32"),
        ({"l1_v": None}, r"layers\.1\.self_attn\.k_scale, and no v_scale"),
    ],
)
def test_scales_of_another_shape_or_without_their_other_half_are_refused_by_name(
    changed: dict[str, Any], told: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedFormat, match=told):
        read_spec(with_scales(tmp_path, **changed))
