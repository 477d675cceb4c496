"""Every quantised format of Hugging Face folders: all codes bit for bit, whole models, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.errors import UnsupportedFormat
from engine.layers.weight import kind_of
from engine.models import Model
from engine.models.checkpoint import MappedCheckpoint
from engine.spec import read_spec
from tests.fakes.quantised_checkpoints import FORMATS, write_pair

PROMPTS = [[5, 17, 80, 3, 3, 41, 9], [60, 2, 33], list(range(40, 62))]
ROLES = {"q_proj": "attn_q", "k_proj": "attn_k", "o_proj": "attn_o", "up_proj": "mlp_up", "down_proj": "mlp_down"}


def greedy(run: Callable[[list[list[int]]], list[torch.Tensor]], count: int = 6) -> list[list[int]]:
    texts = [list(prompt) for prompt in PROMPTS]
    for _ in range(count):
        for text, logits in zip(texts, run(texts), strict=True):
            text.append(int(logits[-1].argmax()))
    return texts


@pytest.mark.parametrize("name", FORMATS)
def test_format_is_decoded_bit_for_bit(name: str, tmp_path: Path) -> None:
    quantised, plain = write_pair(tmp_path, name)
    checkpoint = MappedCheckpoint(read_spec(quantised), lambda done, total: None)
    wanted = load_file(plain / "model.safetensors")
    for module, role in ROLES.items():
        of = "self_attn" if role.startswith("attn") else "mlp"
        weight = checkpoint.matrix(role, 1)
        assert kind_of(weight) == FORMATS[name].kind
        found = weight if isinstance(weight, torch.Tensor) else weight.dequantize()
        truth = wanted[f"model.layers.1.{of}.{module}.weight"]
        assert torch.equal(found, truth), module  # a zero may lose its sign


@pytest.mark.parametrize("name", FORMATS)
def test_model_in_a_format_equals_the_model_of_its_numbers(
    name: str, tmp_path: Path, load: Callable[..., Model], harness: Callable[..., Any], kernels: str
) -> None:
    quantised, plain = write_pair(tmp_path, name)
    model, truth = load(quantised), load(plain)
    close = {"atol": 1e-4, "rtol": 1e-4} if kernels == "reference" else {"atol": 2e-2, "rtol": 2e-2}
    found, wanted = (harness(m).run(PROMPTS, 4) for m in (model, truth))
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, **close)
    if kernels == "reference":
        runs = [greedy(lambda texts, m=m: harness(m).run(texts, 512)) for m in (model, truth)]
        assert runs[0] == runs[1]


@pytest.mark.parametrize("name", FORMATS)
def test_logits_do_not_depend_on_what_else_is_in_the_batch(
    name: str, tmp_path: Path, load: Callable[..., Model], harness: Callable[..., Any]
) -> None:
    model = load(write_pair(tmp_path, name)[0])
    together = harness(model).run(PROMPTS, 3)
    for prompt, logits in zip(PROMPTS, together, strict=True):
        torch.testing.assert_close(harness(model).run([prompt], 3)[0], logits, atol=1e-5, rtol=1e-5)


def test_layers_that_stay_plain_are_named_by_expressions_and_names(
    tmp_path: Path, load: Callable[..., Model], harness: Callable[..., Any]
) -> None:
    quantised, plain = write_pair(tmp_path, "ct-w4a16", keep=("layers.0.", "v_proj"))
    path = quantised / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"]["ignore"] = ["lm_head", r"re:.*layers\.0\..*", "v_proj"]
    path.write_text(json.dumps(config))
    found, wanted = (harness(load(folder)).run(PROMPTS, 64) for folder in (quantised, plain))
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, atol=2e-2, rtol=2e-2)


def test_layers_that_rules_ignore_must_be_plain(tmp_path: Path) -> None:
    quantised, _ = write_pair(tmp_path, "ct-w8a8")
    _change(quantised, ignore=["re:.*down_proj"])
    with pytest.raises(UnsupportedFormat, match="down_proj"):
        read_spec(quantised)


def test_groups_of_rules_are_chosen_by_the_narrower_target(tmp_path: Path) -> None:
    """MLPs in four bits, everything else in eight: two groups, of which one names its modules."""
    quantised, _ = write_pair(tmp_path, "ct-w8a8")
    other = write_pair(tmp_path / "b", "ct-fp8-row")
    stored = {k: v for k, v in load_file(quantised / "model.safetensors").items() if ".mlp." not in k}
    stored |= {k: v for k, v in load_file(other[0] / "model.safetensors").items() if ".mlp." in k}
    save_file(stored, quantised / "model.safetensors")
    config = json.loads((quantised / "config.json").read_text())
    groups = config["quantization_config"]["config_groups"]
    mlp = FORMATS["ct-fp8-row"].config["config_groups"]["group_0"] | {
        "targets": [r"re:.*mlp\..*"],
        "format": "float-quantized",
    }
    groups["group_1"] = mlp
    (quantised / "config.json").write_text(json.dumps(config))
    checkpoint = MappedCheckpoint(read_spec(quantised), lambda done, total: None)
    assert kind_of(checkpoint.matrix("attn_q", 0)) == "int8"
    weight = checkpoint.matrix("mlp_down", 0)
    assert kind_of(weight) == "fp8"
    truth = load_file(other[1] / "model.safetensors")["model.layers.0.mlp.down_proj.weight"]
    assert not isinstance(weight, torch.Tensor)
    assert torch.equal(weight.dequantize(), truth)


@pytest.mark.parametrize(
    ("name", "suffix"), [("ct-fp8-row", "weight"), ("fp8-block", "weight"), ("ct-nvfp4", "weight_scale")]
)
def test_codes_that_are_not_numbers_are_refused(
    name: str, suffix: str, tmp_path: Path, load: Callable[..., Model]
) -> None:
    quantised, _ = write_pair(tmp_path, name)
    stored = load_file(quantised / "model.safetensors")
    stored[f"model.layers.1.mlp.up_proj.{suffix}"].view(torch.uint8)[3, 2] = 0xFF
    save_file(stored, quantised / "model.safetensors")
    with pytest.raises(UnsupportedFormat, match="not numbers"):
        load(quantised)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("awq", {"version": "gemv"}, "version"),
        ("awq", {"bits": 3}, "bits"),
        ("awq", {"zero_point": False}, "zero_point"),
        ("gptq", {"bits": 3}, "bits"),
        ("gptq", {"dynamic": {"+:.*mlp.*": {"bits": 8}}}, "dynamic"),
        ("gptq", {"checkpoint_format": "marlin"}, "checkpoint_format"),
        ("fp8-block", {"weight_block_size": [64, 128]}, "weight_block_size"),
        ("fp8-block", {"fmt": "e5m2"}, "fmt"),
        ("fp8-block", {"quant_method": "bitsandbytes"}, "quant_method"),
        ("ct-w8a8", {"format": "marlin-24"}, "format"),
        ("ct-w8a8", {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config"),
        ("ct-w8a8", {"ignore": ["re:(a+)+b"]}, "ignore"),
        ("ct-w8a8", {"ignore": ["re:(("]}, "ignore"),
        ("ct-w8a8", {"config_groups": {}}, "config_groups"),
        ("ct-w8a8", {"transform_config": {"config_groups": {"u": {}}}}, "transform_config"),
    ],
)
def test_what_is_not_understood_is_refused(name: str, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    quantised, _ = write_pair(tmp_path, name)
    _change(quantised, **changes)
    with pytest.raises(UnsupportedFormat, match=message):
        read_spec(quantised)


def test_missing_and_misshapen_parts_are_refused(tmp_path: Path) -> None:
    quantised, _ = write_pair(tmp_path, "gptq")
    stored = load_file(quantised / "model.safetensors")
    name = "model.layers.0.mlp.down_proj.scales"
    scales = stored.pop(name)
    save_file(stored, quantised / "model.safetensors")
    with pytest.raises(UnsupportedFormat, match=r"lacks .*down_proj\.scales"):
        read_spec(quantised)
    save_file(stored | {name: scales[:1].contiguous()}, quantised / "model.safetensors")
    with pytest.raises(UnsupportedFormat, match=r"down_proj\.scales as F16 \[1, 128\]"):
        read_spec(quantised)


def test_groups_of_unlike_sizes_are_refused(tmp_path: Path, load: Callable[..., Model]) -> None:
    quantised, _ = write_pair(tmp_path, "gptq-order")
    stored = load_file(quantised / "model.safetensors")
    stored["model.layers.0.mlp.down_proj.g_idx"].zero_()
    save_file(stored, quantised / "model.safetensors")
    with pytest.raises(UnsupportedFormat, match="groups of unlike sizes"):
        load(quantised)


def _change(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"] |= changes
    path.write_text(json.dumps(config))
