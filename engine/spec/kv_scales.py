"""The multipliers of a KV cache of bytes that a checkpoint brings: which tensors they are, and whether to use them."""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from enum import StrEnum

from engine.errors import InvalidParameter, UnsupportedFormat
from engine.spec.fields import Fields
from engine.spec.model_spec import AttentionKind, KvScheme, ModelSpec, TensorInfo
from engine.spec.quantisation import FLOATS

ROLES = ("attn_k_scale", "attn_v_scale")
HINT = "Use kv_scales dynamic, or learn them: `bayard quantize MODEL --kv fp8 --calibrate FILE`."
# compressed-tensors, ModelOpt, and what vLLM calls them.
_NAME = re.compile(r"model\.layers\.(\d+)\.self_attn\.(?:attn\.|k_proj\.|v_proj\.|qkv_proj\.)?([kv])_scale")


class KvKind(StrEnum):
    """Caches of bytes."""

    FP8 = "fp8"
    INT8 = "int8"


LARGEST: dict[str, float] = {KvKind.FP8: 448.0, KvKind.INT8: 127.0}  # codes


class KvScales(StrEnum):
    """What multiplies the codes of a cache of bytes."""

    AUTO = "auto"  # CALIBRATED where the checkpoint has them for every layer
    DYNAMIC = "dynamic"  # each head of each token has its own, of its largest number
    CALIBRATED = "calibrated"  # constants of the checkpoint


def kv_scales_named(name: str) -> KvScales:
    """Raises: InvalidParameter for a name that is none."""
    try:
        return KvScales(name)
    except ValueError:
        raise InvalidParameter(
            f"kv_scales is {name!r}.", f"Use one of {', '.join(KvScales)}.", param="kv_scales"
        ) from None


def read_kv_scheme(stated: Fields) -> KvScheme | None:
    """What a compressed-tensors configuration says of the cache. A scheme that is not understood is a fault of it."""
    if not isinstance(stated.values.get("kv_cache_scheme"), dict):
        return None  # other methods state a word, if anything, and mean E4M3
    scheme = stated.section("kv_cache_scheme")
    assert scheme is not None
    kind = {"float": "fp8", "int": "int8"}[scheme.one_of("type", ("int", "float"), "int")]
    wanted = {"num_bits": 8, "symmetric": True, "dynamic": False}
    found = {name: scheme.values.get(name, value) for name, value in wanted.items()}
    if scheme.text("strategy", "tensor") not in ("tensor", "attn_head"):
        return KvScheme(kind, f"its kv_cache_scheme has the strategy {scheme.text('strategy', 'tensor')}")
    wrong = [f"{name} {found[name]}" for name, value in wanted.items() if found[name] != value]
    return KvScheme(kind, f"its kv_cache_scheme has {' and '.join(wrong)}" if wrong else "")


def take_kv_scales(
    spec: ModelSpec, stored: MutableMapping[str, TensorInfo]
) -> dict[tuple[str, int | None], TensorInfo]:
    """The multipliers by role and layer, of layers that cache keys and values.

    Mutates: stored, which loses what is taken
    Raises: UnsupportedFormat for one of another type or shape, named twice, or without its other half
    """
    found: dict[tuple[str, int | None], TensorInfo] = {}
    for name in [name for name in stored if _NAME.fullmatch(name)]:
        match = _NAME.fullmatch(name)
        assert match is not None
        index, role = int(match[1]), f"attn_{match[2]}_scale"
        if index >= len(spec.layers) or spec.layers[index].attention.kind is AttentionKind.LATENT:
            continue
        info, heads = stored.pop(name), spec.layers[index].attention.num_kv_heads
        if info.dtype not in FLOATS or info.shape not in ((), (1,), (heads,), (heads, 1, 1)):
            raise UnsupportedFormat(
                f"{spec.name} has {name} as {info.dtype} {list(info.shape)}; a number, or one for each of "
                f"{heads} heads, in {', '.join(FLOATS)} is needed.",
                "The configuration and the weights do not belong together: download both again.",
            )
        if (role, index) in found:
            raise UnsupportedFormat(
                f"{spec.name} has both {found[role, index].name} and {name}.", "Take the one out that is not meant."
            )
        found[role, index] = info
    for (role, layer), info in found.items():
        other = ROLES[1 - ROLES.index(role)]
        if (other, layer) not in found:
            raise UnsupportedFormat(
                f"{spec.name} has {info.name}, and no {other.removeprefix('attn_')} of layer {layer}.",
                "The checkpoint is incomplete: download or convert it again.",
            )
    return found


def calibrated_scales(spec: ModelSpec, asked: str, cache_kind: str) -> tuple[bool, str]:
    """Whether constants of the checkpoint multiply the codes of a cache, and why.

    cache_kind: "fp8" or "int8"; another cache has no multipliers, and nothing to tell of
    Raises: InvalidParameter; UnsupportedFormat where constants are asked for and there are none
    """
    wanted = kv_scales_named(asked)
    if cache_kind not in LARGEST:
        return False, ""
    if wanted is KvScales.DYNAMIC:
        return False, "dynamic: each head of each token has its own, as asked"
    missing = _missing(spec)
    if not missing:
        made_for = spec.kv_scheme.kind if spec.kv_scheme else "fp8"
        scaled = "" if made_for == cache_kind else f", made for {made_for}, over the same range"
        return True, f"calibrated: the checkpoint's k_scale and v_scale{scaled}"
    if wanted is KvScales.CALIBRATED:
        raise UnsupportedFormat(f"{spec.name} has no multipliers for its KV cache: {missing}.", HINT)
    return False, f"dynamic: each head of each token has its own; {missing}"


def _missing(spec: ModelSpec) -> str:
    """Why a checkpoint's multipliers cannot be used; empty where they can."""
    stored = {info.name: info for info in spec.tensors}
    with_scales = {layer for _, layer in take_kv_scales(spec, stored)}
    if not with_scales:
        return "the checkpoint brings no k_scale and v_scale"
    without = [layer.index for layer in spec.layers if layer.index not in with_scales]
    if without:
        return f"layer {without[0]} has no k_scale and v_scale"
    return spec.kv_scheme.fault if spec.kv_scheme else ""
