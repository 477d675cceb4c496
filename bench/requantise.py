"""Models for bench.peers in other kinds: `python -m bench.requantise --gguf FILE --to Q4_K --out NEW`.

Each matrix is decoded and rounded again to the kind asked for, where its rows divide into that kind's blocks, else to
the kind that llama.cpp falls back on. With --random 1B the matrices are random, of a 1B Llama's shape, beside the
vocabulary of FILE. What such a model says means nothing; what it costs does.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

FALLBACK = {"Q4_K": "Q5_0", "Q6_K": "Q8_0"}  # for rows that are no multiple of 256
KINDS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q6_K")
SHAPES = {"1B": {"embedding_length": 2048, "block_count": 16, "feed_forward_length": 8192, "heads": 32, "kv_heads": 8}}
ROWS_AT_ONCE = 4096


def q4_k(x: Floats) -> Bytes:
    """Shapes: x [rows, K], K a multiple of 256 -> [rows, bytes]"""
    blocks = x.reshape(-1, 8, 32)
    least = np.minimum(blocks.min(axis=2), 0.0)
    steps = (blocks.max(axis=2) - least) / 15
    d, d_min = _half(steps.max(axis=1) / 63), _half(-least.min(axis=1) / 63)
    scales, minima = _rounded(steps, d, 63), _rounded(-least, d_min, 63)
    step = (d[:, None] * scales)[:, :, None]
    low = (d_min[:, None] * minima)[:, :, None]
    codes = np.clip(np.rint(np.divide(blocks + low, step, out=np.zeros_like(blocks), where=step > 0)), 0, 15)
    packed = np.zeros((len(blocks), 12), np.uint8)
    packed[:, :4] = scales[:, :4] | (scales[:, 4:] >> 4 << 6)
    packed[:, 4:8] = minima[:, :4] | (minima[:, 4:] >> 4 << 6)
    packed[:, 8:] = (scales[:, 4:] & 15) | (minima[:, 4:] & 15) << 4
    pairs = codes.astype(np.uint8).reshape(-1, 4, 2, 32)
    nibbles = (pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(-1, 128)
    return _rows(x, _half_bytes(d), _half_bytes(d_min), packed, nibbles)


def q6_k(x: Floats) -> Bytes:
    """Shapes: x [rows, K], K a multiple of 256 -> [rows, bytes]"""
    blocks = x.reshape(-1, 16, 16)
    steps = np.abs(blocks).max(axis=2) / 31
    d = _half(steps.max(axis=1) / 127)
    scales = _rounded(steps, d, 127)
    step = (d[:, None] * scales)[:, :, None]
    codes = np.rint(np.divide(blocks, step, out=np.zeros_like(blocks), where=step > 0))
    unsigned = (np.clip(codes, -32, 31) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    low = (unsigned[:, :, :2] & 15 | (unsigned[:, :, 2:] & 15) << 4).reshape(-1, 128)
    high = unsigned >> 4
    bits = high[:, :, 0] | high[:, :, 1] << 2 | high[:, :, 2] << 4 | high[:, :, 3] << 6
    return _rows(x, low, bits.reshape(-1, 64), scales, _half_bytes(d))


def encoded(x: Floats, kind: str) -> Bytes:
    """Shapes: x [rows, K] -> [rows, bytes]"""
    if kind in ("Q4_K", "Q6_K"):
        return q4_k(x) if kind == "Q4_K" else q6_k(x)
    rows: Bytes = quantize(x, GGMLQuantizationType[kind])
    return rows


def kind_for(columns: int, kind: str) -> str:
    return FALLBACK[kind] if kind in FALLBACK and columns % 256 else kind


def requantised(reader: GGUFReader, kind: str, writer: GGUFWriter) -> None:
    """Every tensor of the model: matrices in their new kind, the rest as it is."""
    for tensor in reader.tensors:
        if len(tensor.shape) < 2:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
            continue
        to = kind_for(int(tensor.shape[0]), kind)
        parts = [
            encoded(dequantize(tensor.data[start : start + ROWS_AT_ONCE], tensor.tensor_type), to)
            for start in range(0, len(tensor.data), ROWS_AT_ONCE)
        ]
        writer.add_tensor(tensor.name, np.concatenate(parts), raw_dtype=GGMLQuantizationType[to])


def random_model(shape: dict[str, int], kind: str, vocab: int, writer: GGUFWriter) -> None:
    """A Llama with tied embeddings whose codes are random, with scales that keep its numbers small."""
    random = np.random.default_rng(7)
    hidden, inner = shape["embedding_length"], shape["feed_forward_length"]
    kv_rows = hidden // shape["heads"] * shape["kv_heads"]

    def matrix(name: str, rows: int, columns: int) -> None:
        block, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
        one = encoded(random.standard_normal((64, columns), np.float32) * columns**-0.5, kind)
        data = np.tile(one, (-(-rows // 64), 1))[:rows]
        assert data.shape == (rows, columns // block * size)
        writer.add_tensor(name, data, raw_dtype=GGMLQuantizationType[kind])

    matrix("token_embd.weight", vocab, hidden)
    writer.add_tensor("output_norm.weight", np.ones(hidden, np.float32))
    for layer in range(shape["block_count"]):
        for name, rows, columns in (
            ("attn_q", hidden, hidden),
            ("attn_k", kv_rows, hidden),
            ("attn_v", kv_rows, hidden),
            ("attn_output", hidden, hidden),
            ("ffn_gate", inner, hidden),
            ("ffn_up", inner, hidden),
            ("ffn_down", hidden, inner),
        ):
            matrix(f"blk.{layer}.{name}.weight", rows, columns)
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(hidden, np.float32))


def copy_facts(reader: GGUFReader, writer: GGUFWriter, changes: dict[str, int]) -> None:
    """Everything the file says of the model and its tokens; changes by the end of a key's name."""
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind is GGUFValueType.ARRAY else None
        changed = next((new for end, new in changes.items() if field.name.endswith(f".{end}")), None)
        value: Any = field.contents() if changed is None else changed
        writer.add_key_value(field.name, value, kind, sub_type=inner)


def _half(x: Floats) -> Floats:
    rounded: Floats = x.astype(np.float16).astype(np.float32)
    return rounded


def _half_bytes(x: Floats) -> Bytes:
    return x.astype(np.float16).reshape(-1, 1).view(np.uint8)


def _rounded(x: Floats, step: Floats, most: int) -> Bytes:
    wide = np.divide(x, step[:, None], out=np.zeros_like(x), where=step[:, None] > 0)
    codes: Bytes = np.clip(np.rint(wide), 0, most).astype(np.uint8)
    return codes


def _rows(x: Floats, *fields: Bytes) -> Bytes:
    rows: Bytes = np.concatenate(fields, axis=1).reshape(len(x), -1)
    return rows


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.requantise", description=__doc__)
    parser.add_argument("--gguf", required=True, type=Path)
    parser.add_argument("--to", required=True, choices=KINDS)
    parser.add_argument("--random", choices=sorted(SHAPES), help="random matrices of this shape")
    parser.add_argument("--out", required=True, type=Path)
    arguments = parser.parse_args(words)
    if not arguments.gguf.is_file():
        parser.error(f"there is no file {arguments.gguf}")
    reader = GGUFReader(arguments.gguf)
    architecture = reader.fields["general.architecture"].contents()
    writer = GGUFWriter(arguments.out, architecture)
    shape = SHAPES.get(arguments.random or "")
    if shape is None:
        copy_facts(reader, writer, {})
        requantised(reader, arguments.to, writer)
    else:
        head_dim = shape["embedding_length"] // shape["heads"]
        sizes = {"attention.head_count": shape["heads"], "attention.head_count_kv": shape["kv_heads"]}
        sizes |= {key: value for key, value in shape.items() if not key.endswith("heads")}
        sizes |= dict.fromkeys(("rope.dimension_count", "attention.key_length", "attention.value_length"), head_dim)
        copy_facts(reader, writer, sizes)
        vocab = next(int(t.shape[1]) for t in reader.tensors if t.name == "token_embd.weight")
        random_model(shape, arguments.to, vocab, writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(f"{arguments.out}: {arguments.out.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
