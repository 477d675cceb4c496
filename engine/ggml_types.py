"""The storage types a GGUF file may name: how many elements a block holds and how many bytes it takes.

A leaf: it imports nothing of Bayard and no tensor library, since headers are read where torch is not.
Source: the ggml type enumeration; withdrawn ids (Q4_2, Q4_3, repacked Q4_0 and IQ4_NL) are absent on purpose.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GgmlType:
    id: int
    name: str
    block_elements: int
    block_bytes: int
    row_head_bytes: int = 0  # before the blocks of a row

    def row_bytes(self, elements: int) -> int:
        """Bytes of a row; elements must be a multiple of block_elements."""
        return self.row_head_bytes + elements // self.block_elements * self.block_bytes


GGML_TYPES: tuple[GgmlType, ...] = (
    GgmlType(0, "F32", 1, 4),
    GgmlType(1, "F16", 1, 2),
    GgmlType(2, "Q4_0", 32, 18),
    GgmlType(3, "Q4_1", 32, 20),
    GgmlType(6, "Q5_0", 32, 22),
    GgmlType(7, "Q5_1", 32, 24),
    GgmlType(8, "Q8_0", 32, 34),
    GgmlType(9, "Q8_1", 32, 40),
    GgmlType(10, "Q2_K", 256, 84),
    GgmlType(11, "Q3_K", 256, 110),
    GgmlType(12, "Q4_K", 256, 144),
    GgmlType(13, "Q5_K", 256, 176),
    GgmlType(14, "Q6_K", 256, 210),
    GgmlType(15, "Q8_K", 256, 292),
    GgmlType(16, "IQ2_XXS", 256, 66),
    GgmlType(17, "IQ2_XS", 256, 74),
    GgmlType(18, "IQ3_XXS", 256, 98),
    GgmlType(19, "IQ1_S", 256, 50),
    GgmlType(20, "IQ4_NL", 32, 18),
    GgmlType(21, "IQ3_S", 256, 110),
    GgmlType(22, "IQ2_S", 256, 82),
    GgmlType(23, "IQ4_XS", 256, 136),
    GgmlType(24, "I8", 1, 1),
    GgmlType(25, "I16", 1, 2),
    GgmlType(26, "I32", 1, 4),
    GgmlType(27, "I64", 1, 8),
    GgmlType(28, "F64", 1, 8),
    GgmlType(29, "IQ1_M", 256, 56),
    GgmlType(30, "BF16", 1, 2),
    GgmlType(34, "TQ1_0", 256, 54),
    GgmlType(35, "TQ2_0", 256, 66),
    GgmlType(39, "MXFP4", 32, 17),
    GgmlType(40, "NVFP4", 64, 36),
    GgmlType(41, "Q1_0", 128, 18),
)

TYPE_BY_ID: dict[int, GgmlType] = {t.id: t for t in GGML_TYPES}
# What no file names: int8 numbers after one float32 scale a row, as engine.quant.host_blocks makes them.
I8_ROW = GgmlType(-1, "I8_ROW", 1, 1, 4)
# ... and four-bit numbers, 128 of which share a float32 scale: (q - 8) * scale, or q * scale + a float32 offset.
I4_G128, I4Z_G128 = GgmlType(-1, "I4_G128", 128, 68), GgmlType(-1, "I4Z_G128", 128, 72)
TYPE_BY_NAME: dict[str, GgmlType] = {t.name: t for t in (*GGML_TYPES, I8_ROW, I4_G128, I4Z_G128)}

# What there are dequantisers for (engine.quant.gguf_blocks), so what a weight may be stored as.
COMPUTABLE_TYPES: tuple[str, ...] = (
    "F32",
    "F16",
    "BF16",
    "Q4_0",
    "Q4_1",
    "Q5_0",
    "Q5_1",
    "Q8_0",
    "Q4_K",
    "Q5_K",
    "Q6_K",
    "Q2_K",
    "Q3_K",
    "IQ4_NL",
    "IQ4_XS",
    "MXFP4",
)
PLAIN_TYPES: tuple[str, ...] = ("F32", "F16", "BF16")  # one number an element; what norms and biases are stored as
