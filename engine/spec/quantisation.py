"""How a Hugging Face checkpoint's matrices are quantised, and which tensors hold one.

A module is a matrix's name without ".weight". What is stored plain stays plain whatever the rules say; a matrix that is
not stored plain must have the tensors that its rule asks for.
Source: the compressed-tensors, AutoAWQ, AutoGPTQ, FBGEMM and FP8 layouts as their checkpoints have them
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from engine.errors import UnsupportedFormat

E4M3 = "F8_E4M3"
FLOATS = ("F32", "F16", "BF16")
AWQ_PACK = 8  # numbers in a word
OUTLIER_PARTS = ("outlier_columns", "outlier_weight", "outlier_threshold")
TENSOR, CHANNEL = 0, -1  # as group sizes: one multiplier a matrix, one a row


class Storage(StrEnum):
    """The tensors that hold one matrix."""

    PACKED = "packed"  # weight_packed: words of 4- or 8-bit codes along a row (compressed-tensors)
    WHOLE = "whole"  # weight: int8 (compressed-tensors)
    FLOAT8 = "float8"  # weight: E4M3
    NVFP4 = "nvfp4"  # weight_packed: pairs of E2M1, E4M3 scales, one divisor
    MXFP4 = "mxfp4"  # weight_packed: pairs of E2M1, E8M0 scales
    AWQ = "awq"  # qweight: words along columns, in the order of the gemm kernel
    GPTQ = "gptq"  # qweight: words along rows


@dataclass(frozen=True, slots=True)
class QuantScheme:
    storage: Storage
    bits: int
    group: int = CHANNEL  # neighbours of a row with one multiplier; or TENSOR, CHANNEL
    zeros: bool = False
    block: tuple[int, int] | None = None  # FLOAT8: rows and columns that share a multiplier
    scale_name: str = "weight_scale"
    zeros_less_one: bool = False  # GPTQ: zero points are stored one lower
    ordered: bool = False  # neighbours of a group lie anywhere in a row: an index says where, and must be there


@dataclass(frozen=True, slots=True)
class Component:
    """One tensor of a matrix. shapes: those it may have; () is a scalar."""

    suffix: str
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    required: bool = True


@dataclass(frozen=True, slots=True)
class Rule:
    targets: tuple[str, ...]  # class names, module names, or "re:" and an expression
    scheme: QuantScheme


@dataclass(frozen=True, slots=True)
class Quantisation:
    method: str  # as the configuration names it
    label: str  # for people: "AWQ int4 g128"
    rules: tuple[Rule, ...]
    ignore: tuple[str, ...] = ()  # modules that are stored plain

    def scheme_of(self, module: str) -> QuantScheme | None:
        """The rule that names the module itself, else one that fits its name, else the one for all linear layers.

        None: it is to be plain. Raises: UnsupportedFormat where rules that come first alike are not alike
        """
        if any(matches(pattern, module) for pattern in self.ignore):
            return None
        named: list[QuantScheme] = []
        fitting: list[QuantScheme] = []
        general: list[QuantScheme] = []
        for rule in self.rules:
            if module in rule.targets:
                named.append(rule.scheme)
            elif any(t != "Linear" and matches(t, module) for t in rule.targets):
                fitting.append(rule.scheme)
            elif "Linear" in rule.targets:
                general.append(rule.scheme)
        found = named or fitting or general
        if any(scheme != found[0] for scheme in found):
            raise UnsupportedFormat(
                f"quantization_config has {len(found)} groups for {module} that store it otherwise.",
                "Let the targets of one group alone fit it, in config.json: that of the tensors it is stored in.",
            )
        return found[0] if found else None


def matches(pattern: str, module: str) -> bool:
    """Whether a rule's name or expression is of a module. Expressions match from the beginning."""
    if pattern.startswith("re:"):
        return re.match(pattern[3:], module) is not None
    return module == pattern or module.endswith(f".{pattern}") or module.startswith(f"{pattern}.")


def components(scheme: QuantScheme, rows: int, columns: int) -> tuple[Component, ...]:
    """The tensors of a matrix [rows, columns]; the first of them holds its codes."""
    per_word = 32 // scheme.bits
    groups = _groups(scheme, columns)
    scale = Component(scheme.scale_name, FLOATS, _scale_shapes(scheme, rows, columns))
    match scheme.storage:
        case Storage.PACKED:
            found = [Component("weight_packed", ("I32",), ((rows, -(-columns // per_word)),)), scale]
            if scheme.zeros:
                found.append(Component("weight_zero_point", ("I32",), ((-(-rows // per_word), groups),)))
            found.append(Component("weight_g_idx", ("I32",), ((columns,),), required=scheme.ordered))
            found.append(Component("weight_shape", ("I64", "I32"), ((2,),), required=False))
        case Storage.WHOLE:
            found = [Component("weight", ("I8",), ((rows, columns),)), scale]
            found.append(Component("weight_zero_point", ("I8",), scale.shapes, required=scheme.zeros))
            counts = range(1, 129)
            shapes = tuple((n,) for n in counts), tuple((rows, n) for n in counts), ((1,),)
            for suffix, dtype, allowed in zip(OUTLIER_PARTS, ("I32", "F16", "F32"), shapes, strict=True):
                found.append(Component(suffix, (dtype,), allowed, required=False))
        case Storage.FLOAT8:
            found = [Component("weight", (E4M3,), ((rows, columns),)), scale]
        case Storage.NVFP4:
            found = [
                Component("weight_packed", ("U8",), ((rows, columns // 2),)),
                Component("weight_scale", (E4M3,), ((rows, columns // 16),)),
                Component("weight_global_scale", ("F32",), ((1,), ())),
                Component("input_global_scale", FLOATS, ((1,), ()), required=False),
            ]
        case Storage.MXFP4:
            found = [
                Component("weight_packed", ("U8",), ((rows, columns // 2),)),
                Component("weight_scale", ("U8", "F8_E8M0"), ((rows, columns // 32),)),
            ]
        case Storage.AWQ:
            found = [
                Component("qweight", ("I32",), ((columns, rows // AWQ_PACK),)),
                Component("scales", ("F16", "BF16"), ((groups, rows),)),
                Component("qzeros", ("I32",), ((groups, rows // AWQ_PACK),)),
            ]
        case Storage.GPTQ:
            found = [
                Component("qweight", ("I32",), ((columns // per_word, rows),)),
                Component("scales", FLOATS, ((groups, rows),)),
                Component("qzeros", ("I32",), ((groups, rows // per_word),)),
                Component("g_idx", ("I32",), ((columns,),), required=scheme.ordered),
            ]
    # What activations were rounded with when the checkpoint was made: they are kept here, or rounded by their own size.
    found.append(Component("input_scale", FLOATS, ((1,), ()), required=False))
    found.append(Component("input_zero_point", ("I8",), ((1,), ()), required=False))
    return tuple(found)


def _groups(scheme: QuantScheme, columns: int) -> int:
    return 1 if scheme.group in (TENSOR, CHANNEL) else -(-columns // scheme.group)


def _scale_shapes(scheme: QuantScheme, rows: int, columns: int) -> tuple[tuple[int, ...], ...]:
    if scheme.block is not None:
        return ((-(-rows // scheme.block[0]), -(-columns // scheme.block[1])),)
    if scheme.group == TENSOR:
        return ((1,), (), (1, 1))
    if scheme.group == CHANNEL:
        return ((rows, 1), (rows,))
    return ((rows, _groups(scheme, columns)),)


# Multipliers of a cache; those of layers that cache keys and values are read by engine.spec.kv_scales. Queries are not
# rounded here.
KV_SUFFIXES = (".k_scale", ".v_scale", ".q_scale")


def is_kv_scale(name: str) -> bool:
    return name.endswith(KV_SUFFIXES)


def label_of(method: str, rules: Mapping[str, QuantScheme]) -> str:
    """What people read: the method, and the first rule's storage, bits and group."""
    scheme = next(iter(rules.values()))
    kind = {Storage.FLOAT8: "fp8", Storage.NVFP4: "nvfp4", Storage.MXFP4: "mxfp4"}.get(
        scheme.storage, f"int{scheme.bits}"
    )
    group = f" g{scheme.group}" if scheme.group > 0 else ""
    return f"{method} {kind}{group}"
