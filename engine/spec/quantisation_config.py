"""quantization_config of config.json, made rules. What is not understood is refused: it may change the numbers."""

from __future__ import annotations

import re

from engine.spec.fields import MAX_WIDTH, Fields
from engine.spec.quantisation import CHANNEL, TENSOR, Quantisation, QuantScheme, Rule, Storage, label_of
from engine.spec.quantisation_keys import (
    GROUP_KEYS,
    KEYS,
    NUMBERS_KEYS,
    SPARSITY_KEYS,
    TRANSFORM_KEYS,
    refuse_unknown,
)

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
    refuse_unknown(stated, KEYS[method])
    if method == "compressed-tensors":
        return _compressed_tensors(stated)
    skipped = _patterns(stated, "modules_to_not_convert") + _patterns(stated, "ignored_layers")
    scheme = {"awq": _awq, "gptq": _gptq, "fp8": _fp8, "fbgemm_fp8": _fbgemm}[method](stated)
    return Quantisation(method, label_of(method, {"": scheme}), (Rule(("Linear",), scheme),), skipped)


def _awq(stated: Fields) -> QuantScheme:
    for name in ("version", "format", "checkpoint_format"):
        stated.one_of(name, ("gemm", "GEMM"), "gemm")
    if stated.truth("desc_act", False):
        raise stated.refuse("desc_act", "false")
    if not stated.truth("zero_point", True):
        raise stated.refuse("zero_point", "true")
    bits = stated.whole(stated.first_stated("bits", "w_bit"), 4, 4)
    return QuantScheme(Storage.AWQ, bits, _group(stated, stated.first_stated("group_size", "q_group_size")), zeros=True)


def _gptq(stated: Fields) -> QuantScheme:
    bits = stated.whole("bits", 4, 8)
    if bits not in (4, 8):
        raise stated.refuse("bits", "4 or 8")
    stored = stated.one_of("checkpoint_format", ("gptq", "gptq_v2"), stated.text("format", "gptq"))
    if stated.one_of("format", ("gptq", "gptq_v2"), stored) != stored:
        raise stated.refuse("format", f"{stored}, as checkpoint_format states,")
    stated.truth("sym", True)
    stated.one_of("data_type", ("int",), "int")
    overrides = stated.section("dynamic")
    if overrides is not None and any(not name.startswith("-:") for name in overrides.values):
        raise stated.refuse("dynamic", "rules that only leave modules out")
    group = _group(stated, "group_size")
    ordered = stated.truth("desc_act", False) and group > 0
    less_one = stored == "gptq"
    return QuantScheme(Storage.GPTQ, bits, group, zeros=True, zeros_less_one=less_one, ordered=ordered)


def _fp8(stated: Fields) -> QuantScheme:
    stated.one_of("fmt", ("e4m3",), "e4m3")
    stated.one_of("activation_scheme", ("dynamic", "static"), "dynamic")
    stated.one_of("scale_fmt", ("float", "ue8m0"), "float")  # of powers of two: numbers like any other
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
    if sparse is not None:
        refuse_unknown(sparse, SPARSITY_KEYS)
    transforms = stated.section("transform_config")
    if transforms is not None and transforms.values.get("config_groups"):
        raise stated.refuse("transform_config", "no rotations of activations")
    if transforms is not None:
        refuse_unknown(transforms, TRANSFORM_KEYS)
    if isinstance(stated.values.get("kv_cache_scheme"), dict):
        cache = stated.section("kv_cache_scheme")
        assert cache is not None
        refuse_unknown(cache, NUMBERS_KEYS)
    groups = stated.section("config_groups")
    if groups is None or not groups.values:
        raise stated.refuse("config_groups", "at least one group")
    rules: dict[str, Rule] = {}
    group_of: dict[str, str] = {}  # targets
    for name in groups.values:
        group = groups.section(name)
        weights = None if group is None else group.section("weights")
        if group is None or weights is None:
            raise groups.refuse(name, "a group that says how weights are quantised")
        if group.section("output_activations") is not None:
            raise group.refuse("output_activations", "none")
        refuse_unknown(group, GROUP_KEYS)
        refuse_unknown(weights, NUMBERS_KEYS)
        inputs = group.section("input_activations")
        if inputs is not None:
            refuse_unknown(inputs, NUMBERS_KEYS)
        stored_as = group.one_of("format", CT_FORMATS, overall)
        rules[name] = Rule(_patterns(group, "targets") or ("Linear",), _ct_scheme(weights, stored_as))
        for target in rules[name].targets:
            other = group_of.setdefault(target, name)
            if rules[other].scheme != rules[name].scheme:
                raise group.refuse("targets", f"modules of one group, where {target} is in {other} too,")
    label = label_of("compressed-tensors", {name: rule.scheme for name, rule in rules.items()})
    return Quantisation("compressed-tensors", label, tuple(rules.values()), _patterns(stated, "ignore"))


def _ct_scheme(weights: Fields, stored_as: str) -> QuantScheme:
    bits = weights.whole("num_bits", 4, 8)
    strategy = weights.one_of("strategy", ("tensor", "channel", "group", "block", "tensor_group"), _implied(weights))
    zeros = not weights.truth("symmetric", True)
    is_float = weights.one_of("type", ("int", "float"), "int") == "float"
    if bits not in (4, 8):
        raise weights.refuse("num_bits", "4 or 8")
    if weights.truth("dynamic", False):
        raise weights.refuse("dynamic", "false, since weights are stored as they were rounded,")
    ordered = _is_ordered(weights) and strategy == "group"
    if is_float and zeros:
        raise weights.refuse("symmetric", "true, for floats,")
    if is_float and ordered:
        raise weights.refuse("actorder", "none, for floats,")
    if is_float and bits == 4:
        storage, group = (Storage.MXFP4, 32) if stored_as == "mxfp4-pack-quantized" else (Storage.NVFP4, 16)
        if _group_size(weights) != group:
            raise weights.refuse("group_size", str(group))
        return QuantScheme(storage, 4, group)
    if strategy == "tensor_group":
        raise weights.refuse("strategy", "one that is not for 4-bit floats alone")
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
    if storage is Storage.WHOLE and ordered:
        raise weights.refuse("actorder", "none, where numbers are not packed,")
    return QuantScheme(storage, bits, _ct_group(weights, strategy), zeros, ordered=ordered)


def _implied(weights: Fields) -> str:
    """The strategy where none is stated: what the size of groups says."""
    size = weights.values.get("group_size")
    if size is None:
        return "tensor"
    return "channel" if size == -1 else "group"


def _is_ordered(weights: Fields) -> bool:
    """Whether an index says which group each column is in. Weights that alone were reordered are back in place."""
    stated = weights.values.get("actorder")
    if stated is None or isinstance(stated, bool):
        return stated is True
    return weights.one_of("actorder", ("group", "dynamic", "weight", "static"), "weight") in ("group", "dynamic")


def _ct_group(weights: Fields, strategy: str) -> int:
    if strategy == "group":
        return _group_size(weights)
    return TENSOR if strategy == "tensor" else CHANNEL


def _group_size(weights: Fields) -> int:
    """Not a list, which stands for many layers elsewhere."""
    if isinstance(weights.values.get("group_size"), list):
        raise weights.refuse("group_size", "a number of columns")
    return weights.whole("group_size", 1, MAX_WIDTH)


def _group(stated: Fields, name: str) -> int:
    if isinstance(stated.values.get(name), list):
        raise stated.refuse(name, "-1 or a number of columns")
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
