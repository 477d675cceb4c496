"""From the tensors that a checkpoint keeps of one quantised matrix to codes beside scales. Exact.

Little-endian words of codes along a row are, byte for byte, pairs of neighbours with the first one low, which is what
CodedTensor has; other packings are put in that order on the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from engine.errors import UnsupportedFormat
from engine.quant.coded_tensor import LARGEST_SCALE, CodedTensor, Outliers, check_codes
from engine.spec.quantisation import QuantScheme, Storage

AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # column of eight -> its place in a word of the gemm packing
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
DIVISOR = "weight_global_scale"
MIDDLE = {4: 8, 8: 128}  # the zero point of codes around their middle


def coded(scheme: QuantScheme, parts: Mapping[str, Tensor], name: str, shape: tuple[int, int]) -> CodedTensor | Tensor:
    """A matrix of its parts by suffix; decoded, float32, where codes of 8 bits have zero points of their own.

    Raises: UnsupportedFormat for codes or multipliers that are not numbers, columns that are not in whole groups, and
        what contradicts the matrix
    """
    _check(parts, name, shape)
    match scheme.storage:
        case Storage.FLOAT8:
            return check_codes(_float8(scheme, parts, shape), name)
        case Storage.NVFP4:
            rows = torch.ones(shape[0], device=parts["weight_scale"].device) / parts["weight_global_scale"].reshape(1)
            found = CodedTensor("fp4_nv", shape, parts["weight_packed"], _bytes(parts["weight_scale"]), row_scales=rows)
            return check_codes(found, name)
        case Storage.MXFP4:
            found = CodedTensor("fp4_mx", shape, parts["weight_packed"], _bytes(parts["weight_scale"]))
            return check_codes(found, name)
        case Storage.WHOLE:
            return _whole(parts, name, shape)
    return _packed(scheme, parts, name, shape)


def _check(parts: Mapping[str, Tensor], name: str, shape: tuple[int, int]) -> None:
    """All that multiplies or is kept beside is a number that may multiply, whatever becomes of it."""
    # Compared in float32: in float16 the bound itself would be infinite.
    wide = {suffix: part.to(torch.float32) for suffix, part in parts.items() if part.dtype in FLOATS}
    found = {suffix: part.abs() <= LARGEST_SCALE for suffix, part in wide.items()}
    if DIVISOR in wide:
        found[DIVISOR] &= wide[DIVISOR] >= 1 / LARGEST_SCALE
    if found:
        bad = torch.stack([(~good).sum() for good in found.values()]).tolist()
        for suffix, count in zip(found, bad, strict=True):
            if count:
                need = "numbers above 0" if suffix == DIVISOR else f"numbers up to {LARGEST_SCALE:.0e}"
                raise UnsupportedFormat(
                    f"{name}.{suffix} holds {count:,} numbers that cannot multiply; {need} are needed.",
                    "Download the checkpoint again, or quantise the model again.",
                )
    stated = parts.get("weight_shape")
    if stated is not None and tuple(stated.tolist()) != shape:
        raise UnsupportedFormat(
            f"{name}.weight_shape says {stated.tolist()}; the configuration makes it {list(shape)}.",
            "The configuration and the weights do not belong together: download or convert both again.",
        )


def _float8(scheme: QuantScheme, parts: Mapping[str, Tensor], shape: tuple[int, int]) -> CodedTensor:
    rows = shape[0]
    scales = parts[scheme.scale_name]
    if scheme.block is not None:
        scales = scales.repeat_interleave(scheme.block[0], dim=0)[:rows]
    elif scales.numel() == 1:
        scales = scales.reshape(1, 1).expand(rows, 1)
    return CodedTensor("fp8", shape, _bytes(parts["weight"]), scales.reshape(rows, -1).contiguous())


def _whole(parts: Mapping[str, Tensor], name: str, shape: tuple[int, int]) -> CodedTensor | Tensor:
    scales = _per_row(parts["weight_scale"], shape[0])
    zeros = parts.get("weight_zero_point")
    outliers = _outliers(parts, name, shape[1])
    if zeros is not None and bool(zeros.any()):
        if outliers is not None:
            raise UnsupportedFormat(
                f"{name} has outlier columns beside codes with zero points.", "Quantise the model again without these."
            )
        return _decoded(parts["weight"], scales, _per_row(zeros, shape[0]))
    return check_codes(CodedTensor("int8", shape, parts["weight"], scales, outliers=outliers), name)


def _outliers(parts: Mapping[str, Tensor], name: str, width: int) -> Outliers | None:
    columns = parts.get("outlier_columns")
    if columns is None:
        return None
    if bool((columns < 0).any() | (columns >= width).any() | (columns.diff() <= 0).any()):
        raise UnsupportedFormat(f"{name} has outlier columns out of order or range.", "Quantise the model again.")
    found = Outliers(columns, parts["outlier_weight"])
    if "outlier_threshold" not in parts:
        return found
    threshold = float(parts["outlier_threshold"])
    if not threshold > 0:
        raise UnsupportedFormat(
            f"{name} has {threshold:g} as its outlier_threshold; a size above 0 is needed.", "Quantise the model again."
        )
    return replace(found, threshold=threshold)


def _packed(
    scheme: QuantScheme, parts: Mapping[str, Tensor], name: str, shape: tuple[int, int]
) -> CodedTensor | Tensor:
    """Whole numbers in words: compressed-tensors, AWQ, GPTQ."""
    bits, rows = scheme.bits, shape[0]
    zeros: Tensor | None = None
    if scheme.storage is Storage.PACKED:
        codes = parts["weight_packed"].contiguous().view(torch.uint8)  # [N, K bytes or halves]
        scales = _per_row(parts["weight_scale"], rows)
        if scheme.zeros:
            zeros = _along_first(parts["weight_zero_point"], bits)[:rows]
        order = parts.get("weight_g_idx")
    elif scheme.storage is Storage.AWQ:
        codes = _pairs(_awq_columns(parts["qweight"]).T)
        scales, zeros, order = parts["scales"].T.contiguous(), _awq_columns(parts["qzeros"]).T, None
    else:
        codes = _words_along_first(parts["qweight"])
        scales, order = parts["scales"].T.contiguous(), parts.get("g_idx")
        zeros = _along_first(parts["qzeros"].T.contiguous(), bits)
        if scheme.zeros_less_one:
            zeros = (zeros + 1) & (2**bits - 1)
    if zeros is not None and bool((zeros == MIDDLE[bits]).all()):
        zeros = None
    stored_order = None if order is None else _stored_order(order, scales.shape[1], name, needed=scheme.ordered)
    if stored_order is not None:
        codes = _reordered(codes, stored_order, bits)
    if bits == 4:
        kept = None if zeros is None else zeros.contiguous()
        found = CodedTensor("int4", shape, codes, scales, zeros=kept, columns=stored_order)
        return check_codes(found, name)
    if zeros is not None:
        plain = _decoded(codes, scales, zeros)
        if stored_order is None:
            return plain
        return torch.empty_like(plain).index_copy_(1, stored_order.to(torch.int64), plain)
    signed = (codes ^ MIDDLE[8]).view(torch.int8)
    return check_codes(CodedTensor("int8", shape, signed, scales, columns=stored_order), name)


def _stored_order(groups: Tensor, count: int, name: str, *, needed: bool) -> Tensor | None:
    """The column each place of codes sorted by their group multiplies; None where they are sorted as they come."""
    columns = groups.shape[0]
    if bool((groups.to(torch.int64) == -1).all()):  # compressed-tensors: no order
        if needed:
            raise UnsupportedFormat(
                f"{name} has an index of columns that says nothing, where the configuration states that columns are "
                "ordered by activations.",
                "Quantise the model again: which group a column is in cannot be known.",
            )
        return None
    order = torch.argsort(groups.to(torch.int64), stable=True)
    wanted = torch.arange(columns, device=groups.device) // (columns // count)
    if not torch.equal(groups.to(torch.int64)[order], wanted):
        raise UnsupportedFormat(
            f"{name} has columns in groups of unlike sizes; {count} groups of {columns // count} are needed.",
            "Quantise the model again without static groups, or without desc_act.",
        )
    return None if torch.equal(order, torch.arange(columns, device=order.device)) else order.to(torch.int32)


def _reordered(codes: Tensor, order: Tensor, bits: int) -> Tensor:
    at = order.to(torch.int64)
    return codes[:, at] if bits == 8 else _pairs(_unpaired(codes)[:, at])


def _decoded(codes: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    """(code - zero) * scale. Shapes: codes [N, K]; scales, zeros [N, G] -> [N, K] float32"""
    rows, groups = scales.shape
    wide = codes.to(torch.float32).view(rows, groups, -1) - zeros.to(torch.float32).unsqueeze(-1)
    return (wide * scales.to(torch.float32).unsqueeze(-1)).view(rows, -1)


def _per_row(scales: Tensor, rows: int) -> Tensor:
    """Shapes: [N, G], [N], [1] or [] -> [N, G]"""
    if scales.numel() == 1:
        return scales.reshape(1, 1).expand(rows, 1).contiguous()
    return scales.reshape(rows, -1)


def _bytes(stored: Tensor) -> Tensor:
    return stored.contiguous().view(torch.uint8)


def _bytes_of_words(words: Tensor) -> Tensor:
    """[a, b] int32 -> [a, b, 4] uint8"""
    return words.reshape(-1).contiguous().view(torch.uint8).view(*words.shape, 4)


def _unpaired(codes: Tensor) -> Tensor:
    """[N, K / 2] bytes -> [N, K] codes"""
    return torch.stack((codes & 15, codes >> 4), dim=-1).flatten(-2)


def _pairs(codes: Tensor) -> Tensor:
    """[N, K] codes -> [N, K / 2] bytes"""
    return codes[:, 0::2] | (codes[:, 1::2] << 4)


def _along_first(words: Tensor, bits: int) -> Tensor:
    """Words along the first dimension. Shapes: [N / per word, G] int32 -> [N, G] uint8"""
    held = _bytes_of_words(words)
    codes = held if bits == 8 else torch.stack((held & 15, held >> 4), dim=-1).flatten(-2)
    return codes.permute(0, 2, 1).reshape(-1, words.shape[1])


def _words_along_first(words: Tensor) -> Tensor:
    """Words along the inputs, as rows of outputs. Shapes: [K / per word, N] int32 -> [N, bytes of K codes]"""
    held = _bytes_of_words(words)
    return held.permute(1, 0, 2).reshape(words.shape[1], -1)


def _awq_columns(words: Tensor) -> Tensor:
    """Shapes: [rows, N / 8] int32 -> [rows, N] uint8"""
    held = _bytes_of_words(words)
    places = torch.stack((held & 15, held >> 4), dim=-1).flatten(-2)  # by place in the word
    return places[..., list(AWQ_ORDER)].reshape(words.shape[0], -1)
