"""Dequantisers beside the gguf package, bit for bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from engine.errors import UnsupportedFormat
from engine.ggml_types import COMPUTABLE_TYPES, GGML_TYPES, PLAIN_TYPES, TYPE_BY_ID
from engine.quant.gguf_blocks import DEQUANTISERS, dequantise_rows
from engine.quant.quant_tensor import QuantTensor, concatenate_rows

ROWS, COLUMNS = 7, 768
# Where a block has fp16 numbers.
HALF_FIELDS = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "MXFP4": (),
}


def random_rows(kind: str, seed: int) -> np.ndarray:
    """Random block bytes whose fp16 scales are finite, so that bits can be compared."""
    stored = next(t for t in GGML_TYPES if t.name == kind)
    draw = np.random.default_rng(seed)
    if kind in PLAIN_TYPES:
        values = draw.standard_normal((ROWS, COLUMNS), dtype=np.float32)
        return gguf.quantize(values, gguf.GGMLQuantizationType[kind]).view(np.uint8).reshape(ROWS, -1)
    blocks = draw.integers(0, 256, (ROWS * COLUMNS // stored.block_elements, stored.block_bytes), dtype=np.uint8)
    for at in HALF_FIELDS[kind]:
        scales = (draw.standard_normal(len(blocks)) * 0.1).astype(np.float16)
        blocks[:, at : at + 2] = scales.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(ROWS, -1)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", COMPUTABLE_TYPES)
def test_dequantise_random_blocks_equals_gguf_package_bit_for_bit(kind: str, seed: int) -> None:
    rows = random_rows(kind, seed)
    stored_as = {"F32": np.float32, "F16": np.float16}.get(kind, np.uint8)
    with np.errstate(over="ignore"):  # MXFP4's largest exponents
        wanted = gguf.dequantize(rows.view(stored_as), gguf.GGMLQuantizationType[kind]).astype(np.float32)
    found = dequantise_rows(kind, torch.from_numpy(rows))
    assert found.shape == (ROWS, COLUMNS)
    assert np.array_equal(found.numpy().view(np.uint32), wanted.reshape(ROWS, COLUMNS).view(np.uint32))


def test_dequantise_unsupported_kind_is_refused_naming_it() -> None:
    with pytest.raises(UnsupportedFormat, match="IQ2_XXS"):
        dequantise_rows("IQ2_XXS", torch.zeros(1, 66, dtype=torch.uint8))


def test_type_table_agrees_with_gguf_package() -> None:
    for kind, (elements, size) in gguf.GGML_QUANT_SIZES.items():
        known = TYPE_BY_ID[int(kind)]
        assert (known.name, known.block_elements, known.block_bytes) == (kind.name, elements, size)


def test_computable_types_are_those_with_a_dequantiser() -> None:
    assert set(COMPUTABLE_TYPES) == set(DEQUANTISERS)


@pytest.mark.parametrize("kind", COMPUTABLE_TYPES)
def test_quant_tensor_slices_and_index_give_the_same_rows_as_the_whole(kind: str) -> None:
    tensor = QuantTensor(kind, torch.from_numpy(random_rows(kind, 9)), (ROWS, COLUMNS))
    whole = tensor.dequantize()
    assert torch.equal(tensor.dequantize(slice(2, 5)), whole[2:5])
    assert torch.equal(tensor.dequantize(slice(5, 99)), whole[5:])
    assert tensor.dequantize(slice(3, 3)).shape == (0, COLUMNS)
    assert torch.equal(tensor.dequantize_at(torch.tensor([6, 0, 6])), whole[[6, 0, 6]])


def test_quant_tensor_concatenated_rows_follow_in_order() -> None:
    parts = [QuantTensor("Q4_K", torch.from_numpy(random_rows("Q4_K", s)), (ROWS, COLUMNS)) for s in (1, 2)]
    joined = concatenate_rows(parts)
    assert joined.shape == (2 * ROWS, COLUMNS)
    assert torch.equal(joined.dequantize(), torch.cat([p.dequantize() for p in parts]))
    assert joined.num_bytes == sum(p.num_bytes for p in parts)


def test_quant_tensor_with_wrong_row_bytes_is_an_assertion() -> None:
    with pytest.raises(AssertionError):
        QuantTensor("Q8_0", torch.zeros(2, 33, dtype=torch.uint8), (2, 32))
