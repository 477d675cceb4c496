"""quantization_config of config.json, made rules. What is not understood is refused: it may change the numbers."""

from __future__ import annotations

import re

from engine.spec.fields import MAX_WIDTH, Fields
from engine.spec.quantisation import CHANNEL, TENSOR, Quantisation, QuantScheme, Rule, Storage, label_of

METHODS = ("compressed-tensors", "awq", "gptq", "fp8", "fbgemm_fp8")
FP8_BLOCK = 128
CT_FORMATS = (
    "pack-quantized",
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "mixed-precision",
)
CT_STATUS = ("compressed", "frozen")
MAX_PATTERN_CHARACTERS = 512
MAX_REPEATS = 6  # in one expression: matching must end soon whatever a checkpoint brings
_REPEATS = re.compile(r"(?<!\\)[*+{]")
_REPEATED_GROUP = re.compile(r"\)[*+{]")


def read_quantisation(stated: Fields) -> Quantisation:
    """Raises: UnsupportedFormat, naming what is not understood."""
    method = stated.text("quant_method", "")
    if method not in METHODS:
        raise stated.refuse("quant_method", f"one of {', '.join(METHODS)}")
    if method == "compressed-tensors":
        return _compressed_tensors(stated)
    skipped = _patterns(stated, "modules_to_not_convert") + _patterns(stated, "ignored_layers")
    scheme = {"awq": _awq, "gptq": _gptq, "fp8": _fp8, "fbgemm_fp8": _fbgemm}[method](stated)
    return Quantisation(method, label_of(method, {"": scheme}), (Rule(("Linear",), scheme),), skipped)


def _awq(stated: Fields) -> QuantScheme:
    stated.one_of("version", ("gemm",), "gemm")
    if not stated.truth("zero_point", True):
        raise stated.refuse("zero_point", "true")
    bits = stated.whole(stated.first_stated("bits", "w_bit"), 4, 4)
    return QuantScheme(Storage.AWQ, bits, _group(stated, stated.first_stated("group_size", "q_group_size")), zeros=True)


def _gptq(stated: Fields) -> QuantScheme:
    bits = stated.whole("bits", 4, 8)
    if bits not in (4, 8):
        raise stated.refuse("bits", "4 or 8")
    stored = stated.one_of("checkpoint_format", ("gptq", "gptq_v2"), "gptq")
    overrides = stated.section("dynamic")
    if overrides is not None and any(not name.startswith("-:") for name in overrides.values):
        raise stated.refuse("dynamic", "rules that only leave modules out")
    return QuantScheme(Storage.GPTQ, bits, _group(stated, "group_size"), zeros=True, zeros_less_one=stored == "gptq")


def _fp8(stated: Fields) -> QuantScheme:
    stated.one_of("fmt", ("e4m3",), "e4m3")
    stated.one_of("activation_scheme", ("dynamic", "static"), "dynamic")
    if "weight_block_size" not in stated:
        return QuantScheme(Storage.FLOAT8, 8, TENSOR)
    if stated.wholes("weight_block_size", 1, MAX_WIDTH) != (FP8_BLOCK, FP8_BLOCK):
        raise stated.refuse("weight_block_size", f"[{FP8_BLOCK}, {FP8_BLOCK}]")
    return QuantScheme(Storage.FLOAT8, 8, block=(FP8_BLOCK, FP8_BLOCK), scale_name="weight_scale_inv")


def _fbgemm(stated: Fields) -> QuantScheme:
    stated.number("activation_scale_ub", 0.0, 1e9, 1200.0)  # a bound on what activations are rounded with
    return QuantScheme(Storage.FLOAT8, 8, CHANNEL)


def _compressed_tensors(stated: Fields) -> Quantisation:
    overall = stated.one_of("format", CT_FORMATS, CT_FORMATS[0])
    stated.one_of("quantization_status", CT_STATUS, CT_STATUS[0])
    sparse = stated.section("sparsity_config")
    if sparse is not None and sparse.text("format", "dense") != "dense":
        raise stated.refuse("sparsity_config", "dense weights")
    transforms = stated.section("transform_config")
    if transforms is not None and transforms.values.get("config_groups"):
        raise stated.refuse("transform_config", "no rotations of activations")
    groups = stated.section("config_groups")
    if groups is None or not groups.values:
        raise stated.refuse("config_groups", "at least one group")
    rules: dict[str, Rule] = {}
    for name in sorted(groups.values):
        group = groups.section(name)
        weights = None if group is None else group.section("weights")
        if group is None or weights is None:
            raise groups.refuse(name, "a group that says how weights are quantised")
        if group.section("output_activations") is not None:
            raise group.refuse("output_activations", "none")
        stored_as = group.one_of("format", CT_FORMATS, overall)
        rules[name] = Rule(_patterns(group, "targets") or ("Linear",), _ct_scheme(weights, stored_as))
    label = label_of("compressed-tensors", {name: rule.scheme for name, rule in rules.items()})
    return Quantisation("compressed-tensors", label, tuple(rules.values()), _patterns(stated, "ignore"))


def _ct_scheme(weights: Fields, stored_as: str) -> QuantScheme:
    bits = weights.whole("num_bits", 4, 8)
    strategy = weights.one_of("strategy", ("tensor", "channel", "group", "block", "tensor_group"), "tensor")
    zeros = not weights.truth("symmetric", True)
    is_float = weights.one_of("type", ("int", "float"), "int") == "float"
    if bits not in (4, 8):
        raise weights.refuse("num_bits", "4 or 8")
    if is_float and bits == 4:
        if stored_as == "mxfp4-pack-quantized":
            weights.whole("group_size", 32, 32)
            return QuantScheme(Storage.MXFP4, 4, 32)
        weights.whole("group_size", 16, 16)
        return QuantScheme(Storage.NVFP4, 4, 16)
    if strategy == "tensor_group":
        raise weights.refuse("strategy", "tensor_group with 4-bit floats only")
    if is_float:
        block = None
        if strategy == "block":
            shape = weights.wholes("block_structure", 1, MAX_WIDTH)
            if len(shape) != 2:
                raise weights.refuse("block_structure", "two sizes")
            block = (shape[0], shape[1])
        return QuantScheme(Storage.FLOAT8, 8, _ct_group(weights, strategy), block=block)
    if strategy == "block":
        raise weights.refuse("strategy", "tensor, channel or group, for whole numbers,")
    storage = Storage.WHOLE if stored_as in ("int-quantized", "naive-quantized") else Storage.PACKED
    if storage is Storage.WHOLE and bits != 8:
        raise weights.refuse("num_bits", "8, where numbers are not packed,")
    return QuantScheme(storage, bits, _ct_group(weights, strategy), zeros)


def _ct_group(weights: Fields, strategy: str) -> int:
    if strategy == "group":
        return weights.whole("group_size", 1, MAX_WIDTH)
    return TENSOR if strategy == "tensor" else CHANNEL


def _group(stated: Fields, name: str) -> int:
    size = stated.whole(name, -1, MAX_WIDTH)
    if size == 0:
        raise stated.refuse(name, "-1 or a number of columns")
    return CHANNEL if size == -1 else size


def _patterns(stated: Fields, name: str) -> tuple[str, ...]:
    """Module names and expressions. Expressions that could take long to match are refused."""
    found = stated.texts(name)
    for pattern in found:
        expression = pattern.removeprefix("re:")
        costly = len(_REPEATS.findall(expression)) > MAX_REPEATS or _REPEATED_GROUP.search(expression) is not None
        if len(pattern) > MAX_PATTERN_CHARACTERS or (pattern.startswith("re:") and costly):
            raise stated.refuse(name, f"expressions of at most {MAX_REPEATS} repeats, none of them of a group,")
        if pattern.startswith("re:"):
            try:
                re.compile(expression)
            except re.error as error:
                raise stated.refuse(name, "expressions that can be read") from error
    return found
