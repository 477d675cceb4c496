"""Multipliers inside GGUF blocks: each of each kind is looked at, where the decoder reads it."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest
import torch
import transformers

from engine.errors import UnsupportedFormat
from engine.ggml_types import COMPUTABLE_TYPES, PLAIN_TYPES, TYPE_BY_NAME
from engine.models import load_model
from engine.models.checkpoint import MappedCheckpoint
from engine.quant.block_check import HALVES, has_bad_multiplier
from engine.quant.quant_tensor import QuantTensor
from engine.quantize import job as job_module
from engine.quantize.job import QuantizeJob, quantize
from engine.spec import read_spec
from engine.spec.precision import WeightPrecision
from tests.fakes.gguf_models import write_gguf

KINDS = [kind for kind in COMPUTABLE_TYPES if kind not in PLAIN_TYPES]


@pytest.mark.parametrize("kind", KINDS)
def test_each_multiplier_that_is_no_number_is_found(kind: str) -> None:
    stored = TYPE_BY_NAME[kind]
    columns = 2 * stored.block_elements
    data = torch.randint(
        0, 60, (3, stored.row_bytes(columns)), dtype=torch.uint8
    )  # multipliers small, all codes finite
    whole = QuantTensor(kind, data, (3, columns))
    assert whole.dequantize().isfinite().all()
    assert not bool(has_bad_multiplier(whole))
    places = [0] if kind == "MXFP4" else [2 * at + 1 for at in HALVES[kind]]
    assert len(places) == (2 if kind in ("Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K") else 1)
    for place in places:
        for value in (255,) if kind == "MXFP4" else (0x7C, 0x7E, 0xFC):
            broken = data.clone()
            broken[1, stored.block_bytes + place] = value
            weight = QuantTensor(kind, broken, (3, columns))
            assert bool(has_bad_multiplier(weight)), (place, value)
            assert kind == "MXFP4" or not weight.dequantize().isfinite().all()


def test_file_with_a_multiplier_that_is_no_number_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = transformers.LlamaConfig(
        vocab_size=99,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
    )
    path = tmp_path / "model.gguf"
    write_gguf(path, transformers.LlamaForCausalLM(config), "llama", gguf.GGMLQuantizationType.Q8_0)
    spec = read_spec(path)
    load_model(spec, "cpu", torch.float32, lambda done, total: None)
    info = next(info for info in spec.tensors if "ffn_down" in info.name)
    with path.open("r+b") as file:
        file.seek(info.offset_bytes + 34 * 7 + 1)
        file.write(b"\x7e")
    with pytest.raises(UnsupportedFormat, match=f"{info.name} holds blocks whose multipliers are not numbers"):
        load_model(read_spec(path), "cpu", torch.float32, lambda done, total: None)
    monkeypatch.setattr(job_module, "write_beside", lambda spec, folder, config: None)  # it has no tokenizer
    job = QuantizeJob(path, WeightPrecision.INT8, tmp_path / "out", "")
    with pytest.raises(UnsupportedFormat, match=f"{info.name} holds blocks whose multipliers are not numbers"):
        quantize(job, lambda stage, done, total: None)
    assert [found.name for found in tmp_path.iterdir()] == ["model.gguf"], "nothing is left of it"


def test_what_a_device_was_asked_is_told_at_the_end() -> None:
    checkpoint = MappedCheckpoint.__new__(MappedCheckpoint)
    checkpoint._doubts = (("first", torch.tensor(False)), ("second", torch.tensor(True)))
    with pytest.raises(UnsupportedFormat, match="second holds blocks"):
        checkpoint.settle()
    checkpoint._doubts = checkpoint._doubts[:1]
    checkpoint.settle()
    assert not checkpoint._doubts
