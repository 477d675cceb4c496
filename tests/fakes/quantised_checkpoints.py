"""Small checkpoints in each quantised format, written number by number, beside the numbers that they stand for.

What is stored is drawn at random over all codes and decoded here in plain loops over words and nibbles, so neither
direction shares anything with the code under test.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

Stored = dict[str, torch.Tensor]
Made = tuple[Stored, np.ndarray]  # tensors by suffix, and the numbers [N, K] float32

AWQ_COLUMN_OF_PLACE = (0, 2, 4, 6, 1, 3, 5, 7)
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def words(codes: np.ndarray, bits: int) -> torch.Tensor:
    """Codes [..., n] put in words along the last axis, the first one lowest."""
    per_word = 32 // bits
    grouped = codes.astype(np.uint32).reshape(*codes.shape[:-1], -1, per_word)
    out = np.zeros(grouped.shape[:-1], dtype=np.uint32)
    for place in range(per_word):
        out |= grouped[..., place] << np.uint32(bits * place)
    return torch.from_numpy(out.view(np.int32).copy())


def e4m3_number(code: int) -> float:
    sign = -1.0 if code & 0x80 else 1.0
    exponent, fraction = (code >> 3) & 15, code & 7
    return sign * (fraction / 8 * 2.0**-6 if exponent == 0 else (1 + fraction / 8) * 2.0 ** (exponent - 7))


E4M3_NUMBERS = np.array([e4m3_number(code) for code in range(256)], dtype=np.float32)
E2M1_NUMBERS = np.array([*E2M1, *(-number for number in E2M1)], dtype=np.float32)


def draw_codes(rng: np.random.Generator, rows: int, columns: int, count: int, skip: tuple[int, ...] = ()) -> np.ndarray:
    """Every code at least once where there is room, else random ones."""
    allowed = np.array([code for code in range(count) if code not in skip])
    found = rng.choice(allowed, size=rows * columns)
    found[: min(len(allowed), found.size)] = allowed[: min(len(allowed), found.size)]
    return rng.permutation(found).reshape(rows, columns).astype(np.uint8)


def draw_scales(rng: np.random.Generator, shape: tuple[int, ...], largest: float, dtype: torch.dtype) -> torch.Tensor:
    """Multipliers that keep a matrix's numbers near those of a random model."""
    return torch.tensor(rng.uniform(0.5, 1.5, shape) * 0.08 / largest, dtype=torch.float32).to(dtype)


def _f32(scales: torch.Tensor) -> np.ndarray:
    return scales.to(torch.float32).numpy()


def ct_packed(bits: int, group: int, *, zeros: bool = False, order: bool = False) -> Callable[..., Made]:
    def make(rng: np.random.Generator, rows: int, columns: int) -> Made:
        size = group or columns
        codes = draw_codes(rng, rows, columns, 2**bits)
        scales = draw_scales(rng, (rows, columns // size), 2 ** (bits - 1), torch.bfloat16)
        stored = {
            "weight_packed": words(codes, bits),
            "weight_scale": scales,
            "weight_shape": torch.tensor([rows, columns], dtype=torch.int64),
        }
        of_column = np.arange(columns) // size
        if order:
            of_column = rng.permutation(of_column)
            stored["weight_g_idx"] = torch.from_numpy(of_column.astype(np.int32))
        zero = np.full((rows, columns // size), 2 ** (bits - 1))
        if zeros:
            zero = draw_codes(rng, rows, columns // size, 2**bits)
            stored["weight_zero_point"] = words(zero.T, bits).T.contiguous()
        numbers = np.zeros((rows, columns), dtype=np.float32)
        for k in range(columns):
            g = of_column[k]
            numbers[:, k] = (codes[:, k].astype(np.float32) - zero[:, g]) * _f32(scales)[:, g]
        return stored, numbers

    return make


def ct_int8(*, static: bool = False, group: int = 0, zeros: bool = False) -> Callable[..., Made]:
    def make(rng: np.random.Generator, rows: int, columns: int) -> Made:
        codes = draw_codes(rng, rows, columns, 256).view(np.int8)
        scales = draw_scales(rng, (rows, columns // (group or columns)), 127, torch.float32)
        stored = {"weight": torch.from_numpy(codes.copy()), "weight_scale": scales}
        if static:
            stored["input_scale"] = torch.tensor([0.02])
            stored["input_zero_point"] = torch.tensor([0], dtype=torch.int8)
        wide = codes.astype(np.float32)
        if zeros:
            zero = rng.integers(-9, 9, (rows, 1)).astype(np.int8)
            stored["weight_zero_point"] = torch.from_numpy(zero)
            wide = wide - zero
        return stored, wide * np.repeat(_f32(scales), columns // scales.shape[1], axis=1)

    return make


def fp8(per: str, scale_name: str = "weight_scale", dtype: torch.dtype = torch.float32) -> Callable[..., Made]:
    def make(rng: np.random.Generator, rows: int, columns: int) -> Made:
        codes = draw_codes(rng, rows, columns, 256, skip=(0x7F, 0xFF))
        shape = {"tensor": (1,), "scalar": (), "row": (rows, 1), "block": (-(-rows // 128), columns // 128)}[per]
        scales = draw_scales(rng, shape, 448, dtype)
        wide = _f32(scales)
        if per == "block":
            wide = np.repeat(np.repeat(wide, 128, axis=0)[:rows], 128, axis=1)
        numbers = E4M3_NUMBERS[codes] * wide
        weight = torch.from_numpy(codes).view(torch.float8_e4m3fn)
        return {"weight": weight, scale_name: scales, "input_scale": torch.tensor(1.0)}, numbers

    return make


def nvfp4(rng: np.random.Generator, rows: int, columns: int) -> Made:
    codes = draw_codes(rng, rows, columns, 16)
    scales = draw_codes(rng, rows, columns // 16, 0x7F)
    divisor = np.float32(4096.0)  # a power of two, so that whether it divides or its inverse multiplies is the same
    numbers = E2M1_NUMBERS[codes] * np.repeat(E4M3_NUMBERS[scales] / divisor, 16, axis=1)
    packed = (codes[:, 0::2] | (codes[:, 1::2] << 4)).astype(np.uint8)
    return {
        "weight_packed": torch.from_numpy(packed),
        "weight_scale": torch.from_numpy(scales).view(torch.float8_e4m3fn),
        "weight_global_scale": torch.tensor([divisor]),
        "input_global_scale": torch.tensor([300.0]),
    }, numbers


def mxfp4(rng: np.random.Generator, rows: int, columns: int) -> Made:
    codes = draw_codes(rng, rows, columns, 16)
    exponents = rng.integers(118, 123, (rows, columns // 32)).astype(np.uint8)
    numbers = E2M1_NUMBERS[codes] * np.repeat(2.0 ** (exponents.astype(np.float32) - 127), 32, axis=1)
    packed = (codes[:, 0::2] | (codes[:, 1::2] << 4)).astype(np.uint8)
    return {"weight_packed": torch.from_numpy(packed), "weight_scale": torch.from_numpy(exponents)}, numbers


def awq(group: int) -> Callable[..., Made]:
    def make(rng: np.random.Generator, rows: int, columns: int) -> Made:
        codes, zeros = draw_codes(rng, rows, columns, 16), draw_codes(rng, rows, columns // group, 16)
        scales = draw_scales(rng, (columns // group, rows), 8, torch.float16)
        numbers = np.zeros((rows, columns), dtype=np.float32)
        for k in range(columns):
            g = k // group
            numbers[:, k] = (codes[:, k].astype(np.float32) - zeros[:, g]) * _f32(scales)[g]

        def packed(by_input: np.ndarray) -> torch.Tensor:
            """[inputs, N] -> words of eight outputs, in the order of the gemm kernel"""
            places = by_input.reshape(by_input.shape[0], -1, 8)[..., list(AWQ_COLUMN_OF_PLACE)]
            return words(places, 4).squeeze(-1)

        return {"qweight": packed(codes.T), "qzeros": packed(zeros.T), "scales": scales}, numbers

    return make


def gptq(bits: int, group: int, *, sym: bool, less_one: bool = True, order: bool = False) -> Callable[..., Made]:
    def make(rng: np.random.Generator, rows: int, columns: int) -> Made:
        size = group if group > 0 else columns
        groups = columns // size
        codes = draw_codes(rng, rows, columns, 2**bits)
        zeros = np.full((groups, rows), 2 ** (bits - 1)) if sym else 1 + draw_codes(rng, groups, rows, 2**bits - 1)
        scales = draw_scales(rng, (groups, rows), 2 ** (bits - 1), torch.float16)
        of_column = np.arange(columns) // size
        if order:
            of_column = rng.permutation(of_column)
        numbers = np.zeros((rows, columns), dtype=np.float32)
        for k in range(columns):
            g = of_column[k]
            numbers[:, k] = (codes[:, k].astype(np.float32) - zeros[g]) * _f32(scales)[g]
        return {
            "qweight": words(codes, bits).T.contiguous(),
            "qzeros": words(zeros - less_one, bits),
            "scales": scales,
            "g_idx": torch.from_numpy(of_column.astype(np.int32)),
        }, numbers

    return make


def ct_config(stored_as: str, weights: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "format": stored_as,
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}},
        "ignore": ["lm_head"],
        **more,
    }


@dataclass(frozen=True)
class Format:
    make: Callable[..., Made]
    config: dict[str, Any]
    kind: str  # of the weight it becomes


def _int(bits: int, group: int = 0, **more: Any) -> dict[str, Any]:
    how = {"strategy": "group", "group_size": group} if group else {"strategy": "channel"}
    return {"num_bits": bits, "type": "int", "symmetric": True, **how, **more}


def _float(bits: int, strategy: str, **more: Any) -> dict[str, Any]:
    return {"num_bits": bits, "type": "float", "symmetric": True, "strategy": strategy, **more}


PACK, WHOLE, FLOAT = "pack-quantized", "int-quantized", "float-quantized"
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False}
FORMATS: dict[str, Format] = {
    "ct-w4a16": Format(ct_packed(4, 32), ct_config(PACK, _int(4, 32)), "int4"),
    "ct-w4a16-zeros": Format(ct_packed(4, 32, zeros=True), ct_config(PACK, _int(4, 32, symmetric=False)), "int4"),
    "ct-w4a16-order": Format(ct_packed(4, 32, order=True), ct_config(PACK, _int(4, 32, actorder="group")), "int4"),
    "ct-w4a16-row": Format(ct_packed(4, 0), ct_config(PACK, _int(4)), "int4"),
    "ct-w8a16": Format(ct_packed(8, 64), ct_config(PACK, _int(8, 64)), "int8"),
    "ct-w8a16-zeros": Format(ct_packed(8, 64, zeros=True), ct_config(PACK, _int(8, 64, symmetric=False)), "F32"),
    "ct-w8a8": Format(ct_int8(), ct_config(WHOLE, _int(8)), "int8"),
    "ct-w8a8-static": Format(ct_int8(static=True), ct_config(WHOLE, _int(8)), "int8"),
    "ct-w8a8-zeros": Format(ct_int8(zeros=True), ct_config(WHOLE, _int(8, symmetric=False)), "F32"),
    "ct-fp8-tensor": Format(fp8("tensor"), ct_config(FLOAT, _float(8, "tensor")), "fp8"),
    "ct-fp8-row": Format(fp8("row", dtype=torch.bfloat16), ct_config(FLOAT, _float(8, "channel")), "fp8"),
    "ct-fp8-block": Format(fp8("block"), ct_config(FLOAT, _float(8, "block", block_structure=[128, 128])), "fp8"),
    "ct-nvfp4": Format(nvfp4, ct_config("nvfp4-pack-quantized", _float(4, "tensor_group", group_size=16)), "fp4_nv"),
    "ct-mxfp4": Format(mxfp4, ct_config("mxfp4-pack-quantized", _float(4, "group", group_size=32)), "fp4_mx"),
    "awq": Format(
        awq(32), {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}, "int4"
    ),
    "gptq": Format(gptq(4, 32, sym=True), GPTQ, "int4"),
    "gptq-zeros": Format(gptq(4, 32, sym=False), GPTQ | {"sym": False}, "int4"),
    "gptq-v2": Format(
        gptq(4, 32, sym=False, less_one=False), GPTQ | {"sym": False, "checkpoint_format": "gptq_v2"}, "int4"
    ),
    "gptq-order": Format(gptq(4, 32, sym=True, order=True), GPTQ | {"desc_act": True}, "int4"),
    "gptq-8": Format(gptq(8, -1, sym=True), GPTQ | {"bits": 8, "group_size": -1}, "int8"),
    "gptq-8-order-zeros": Format(
        gptq(8, 64, sym=False, order=True), GPTQ | {"bits": 8, "group_size": 64, "desc_act": True}, "F32"
    ),
    "fp8-scalar": Format(fp8("scalar"), {"quant_method": "fp8", "activation_scheme": "static"}, "fp8"),
    "fp8-block": Format(
        fp8("block", "weight_scale_inv"), {"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8"
    ),
    "fbgemm": Format(fp8("row"), {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, "fp8"),
}


def llama(folder: Path, *, intermediate_size: int = 256, **changes: Any) -> Path:
    config = transformers.LlamaConfig(
        vocab_size=96,
        hidden_size=128,
        intermediate_size=intermediate_size,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.1,
        **changes,
    )
    torch.manual_seed(3)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def write_pair(folder: Path, name: str, *, keep: tuple[str, ...] = (), **changes: Any) -> tuple[Path, Path]:
    """A model in the format, and one of the plain numbers it stands for. keep: parts of names that stay plain"""
    form = FORMATS[name]
    plain, quantised = llama(folder / "plain", **changes), folder / "quantised"
    quantised.mkdir()
    stored = load_file(plain / "model.safetensors")
    rng = np.random.default_rng(11)
    decoded = dict(stored)
    for full in sorted(stored):
        module = full.removesuffix(".weight")
        if module.rpartition(".")[2] not in PROJECTIONS or any(part in full for part in keep):
            continue
        rows, columns = stored[full].shape
        parts, numbers = form.make(rng, rows, columns)
        del stored[full]
        stored |= {f"{module}.{suffix}": tensor for suffix, tensor in parts.items()}
        decoded[full] = torch.from_numpy(numbers)
    save_file({key: tensor.contiguous() for key, tensor in stored.items()}, quantised / "model.safetensors")
    save_file(decoded, plain / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((plain / "config.json").read_text())
    (quantised / "config.json").write_text(json.dumps(config | {"quantization_config": form.config}))
    return quantised, plain
