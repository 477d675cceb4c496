"""What a worker will hold of a checkpoint, without loading it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.models.checkpoint import MappedCheckpoint
from engine.models.rounding import Rounding
from engine.spec import read_spec
from engine.spec.loaded import KINDS, loaded_spec
from engine.spec.precision import WeightPrecision, bits_of, fp8_group
from tests.fakes.quantised_checkpoints import FORMATS, llama, write_pair

ROUNDED = [precision for precision in WeightPrecision if precision is not WeightPrecision.STORED]


@pytest.mark.parametrize("name", ["ct-w4a16", "awq", "gptq-order", "ct-nvfp4", "fbgemm", "ct-w8a8"])
def test_loaded_spec_of_a_format_has_whole_matrices_of_the_kind_they_become(name: str, tmp_path: Path) -> None:
    spec = read_spec(write_pair(tmp_path, name)[0])
    loaded = loaded_spec(spec)
    plain = read_spec(tmp_path / "plain")
    assert loaded.num_parameters == plain.num_parameters
    kinds = {t.dtype for t in loaded.tensors if "proj" in t.name}
    assert kinds == {FORMATS[name].kind}
    assert loaded.weight_bytes == spec.weight_bytes  # every stored byte belongs to some matrix


@pytest.mark.parametrize("precision", ROUNDED)
def test_loaded_spec_predicts_the_bytes_of_rounded_matrices(precision: WeightPrecision, tmp_path: Path) -> None:
    spec = read_spec(llama(tmp_path / "plain"))
    loaded = loaded_spec(spec, precision)
    checkpoint = MappedCheckpoint(spec, lambda done, total: None)
    rounding = Rounding(precision, group=fp8_group(spec.hidden_size))
    for info in loaded.tensors:
        if "up_proj" in info.name:
            layer = int(info.name.split(".")[2])
            stored = checkpoint.matrix("mlp_up", layer)
            assert isinstance(stored, torch.Tensor)
            made = rounding.coded(stored, "mlp_up", layer)
            assert info.dtype == KINDS[precision]
            assert info.size_bytes == pytest.approx(made.num_bytes, rel=0.06)
        if "embed" in info.name:
            assert info.dtype == "F32"


@pytest.mark.parametrize("precision", [WeightPrecision.INT4, WeightPrecision.FP4])
def test_loaded_spec_of_a_width_without_groups_says_int8(precision: WeightPrecision, tmp_path: Path) -> None:
    loaded = loaded_spec(read_spec(llama(tmp_path / "plain", intermediate_size=99)), precision)
    found = {info.name.split(".")[-2]: (info.dtype, info.size_bytes) for info in loaded.tensors if "mlp" in info.name}
    assert found["up_proj"][0] == KINDS[precision]
    assert found["down_proj"] == ("int8", pytest.approx(128 * 99, rel=0.01))


@pytest.mark.parametrize("precision", ROUNDED)
def test_loaded_spec_predicts_the_head_that_an_accelerator_rounds(precision: WeightPrecision, tmp_path: Path) -> None:
    spec = read_spec(llama(tmp_path / "plain"))
    assert not spec.tie_embeddings
    stored = MappedCheckpoint(spec, lambda done, total: None).matrix("lm_head", None)
    made = Rounding(precision).head(stored)
    for on_cpu in (False, True):
        head = next(t for t in loaded_spec(spec, precision, on_cpu=on_cpu).tensors if t.name.startswith("lm_head"))
        if on_cpu or precision is WeightPrecision.INT8_MIXED:
            assert head.dtype == "F32"
        else:
            kind = "fp8" if precision is WeightPrecision.FP8 else "int8"
            bits = bits_of(WeightPrecision(kind), spec.hidden_size)
            assert (head.dtype, head.size_bytes) == (kind, pytest.approx(int(stored.numel() * bits / 8), rel=0.01))
    if precision is WeightPrecision.INT8_MIXED:
        assert made is stored
    else:
        assert isinstance(stored, torch.Tensor)
        wide = made if isinstance(made, torch.Tensor) else made.dequantize()
        limit = 0.05 if precision is WeightPrecision.FP8 else 0.01
        assert float((wide - stored).norm() / stored.norm()) < limit


def test_loaded_spec_of_what_stays_is_the_same(tmp_path: Path) -> None:
    spec = read_spec(llama(tmp_path / "plain"))
    assert loaded_spec(spec) is spec


def test_gguf_blocks_in_pieces_grow_on_an_accelerator_and_a_tied_table_is_held_twice(smollm_path: Path) -> None:
    spec = read_spec(smollm_path)
    on_cpu, held = loaded_spec(spec, on_cpu=True), loaded_spec(spec)
    assert on_cpu is spec
    assert spec.tie_embeddings
    found = {info.name: info for info in held.tensors}
    for info in spec.tensors:
        grown = found[info.name].size_bytes
        if info.name == "token_embd.weight":
            assert grown == info.size_bytes  # Q8_0 has its bytes there as here
        elif info.dtype == "Q4_1":
            assert grown == info.num_elements * 5.5 / 8
        else:
            assert grown == info.size_bytes
