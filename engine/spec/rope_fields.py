"""Rotary embedding as checkpoints state it, made one RopeSpec."""

from __future__ import annotations

import math

from engine.errors import UnsupportedFormat
from engine.spec.fields import MAX_CONTEXT, Fields
from engine.spec.model_spec import RopeSpec

DEFAULT_THETA = 10000.0
SCALING_KINDS = ("none", "linear", "llama3", "yarn")
LONG_NAMES = ("longrope", "su")
# Further kinds of a RopeSpec: "factors", a divisor a frequency in a GGUF tensor; "longrope", such divisors for contexts
# up to the original one and others beyond it, stated; "long_factors", the same in two GGUF tensors.


def hf_rope(
    config: Fields,
    head_dim: int,
    max_context_tokens: int,
    *,
    partial: float | None = None,
    layers: str = "full_attention",
) -> RopeSpec:
    """From rope_parameters, or the older rope_theta and rope_scaling.

    partial: the share of a head that rotates where none is stated; None: all, always
    layers: the kind whose rotation is wanted where each has one
    """
    _refuse_odd(config, head_dim)
    stated = config.section("rope_parameters") or config.section("rope_scaling")
    theta = config.number("rope_theta", 1.0, 1e12, DEFAULT_THETA)
    if stated is None:
        return RopeSpec(theta, _rotary_dim(config, config, head_dim, partial))
    if layers in stated:
        stated = stated.section(layers) or stated
    theta = stated.number("rope_theta", 1.0, 1e12, theta)
    rotary_dim = _rotary_dim(config, stated, head_dim, partial)
    name = "rope_type" if "rope_type" in stated else "type"
    kind = stated.one_of(name, ("default", *SCALING_KINDS[1:], *LONG_NAMES), "default")
    if kind == "default":
        return RopeSpec(theta, rotary_dim)
    if kind in LONG_NAMES:
        return RopeSpec(theta, rotary_dim, "longrope", _longrope(config, stated, rotary_dim, max_context_tokens))
    scaling = {"factor": stated.number("factor", 1.0, 1e6)}
    if kind != "linear":
        original = stated.whole("original_max_position_embeddings", 1, MAX_CONTEXT, max_context_tokens)
        scaling["original_max_tokens"] = float(original)
    if kind == "llama3":
        scaling["low_freq_factor"] = stated.number("low_freq_factor", 1e-6, 1e6)
        scaling["high_freq_factor"] = stated.number("high_freq_factor", 1e-6, 1e6)
    if kind == "yarn":
        scaling |= _yarn(stated)
    return RopeSpec(theta, rotary_dim, kind, tuple(scaling.items()))


def _rotary_dim(config: Fields, stated: Fields, head_dim: int, partial: float | None) -> int:
    share = config.number("partial_rotary_factor", 0.0, 1.0, 1.0 if partial is None else partial)
    share = stated.number("partial_rotary_factor", 0.0, 1.0, share)
    if share == 1.0:
        return head_dim
    rotary_dim = int(head_dim * share)
    if partial is None or rotary_dim < 2 or rotary_dim % 2:
        need = "1.0, or none, for this architecture" if partial is None else "one that leaves an even number of them"
        raise stated.refuse("partial_rotary_factor", f"{need},")
    return rotary_dim


def _refuse_odd(fields: Fields, head_dim: int) -> None:
    if head_dim % 2:
        raise UnsupportedFormat(
            f"{fields.source} gives heads of {head_dim} dimensions; the rotation pairs them, so they must be even.",
            "The configuration is damaged: download or convert the checkpoint again.",
        )


def _longrope(
    config: Fields, stated: Fields, rotary_dim: int, max_context_tokens: int
) -> tuple[tuple[str, float], ...]:
    """The divisors of both lengths, as short.0, long.0 and so on."""
    name = "original_max_position_embeddings"
    original = stated.whole(name, 1, MAX_CONTEXT, config.whole(name, 1, MAX_CONTEXT, max_context_tokens))
    factor = stated.number("factor", 1e-6, 1e6, max_context_tokens / original)
    default = 1.0 if factor <= 1.0 or original == 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    found = [("original_max_tokens", float(original))]
    found.append(("attention_factor", stated.number("attention_factor", 0.0, 1e6, default)))
    for length in ("short", "long"):
        divisors = stated.numbers(f"{length}_factor", rotary_dim // 2, 1e-6, 1e6)
        found += [(f"{length}.{i}", divisor) for i, divisor in enumerate(divisors)]
    return tuple(found)


def _yarn(stated: Fields) -> dict[str, float]:
    found = {
        "beta_fast": stated.number("beta_fast", 0.0, 1e6, 32.0),
        "beta_slow": stated.number("beta_slow", 0.0, 1e6, 1.0),
        "truncate": float(stated.truth("truncate", True)),
    }
    for name in ("attention_factor", "mscale", "mscale_all_dim"):
        if name in stated:
            found[name] = stated.number(name, 0.0, 1e6)
    return found


def gguf_rope(
    metadata: Fields, prefix: str, head_dim: int, max_context_tokens: int, factors: str, partial: float | None
) -> RopeSpec:
    """From {prefix}.rope.*; factors: "factors" or "long_factors" if the file holds such tensors, else empty."""
    _refuse_odd(metadata, head_dim)
    theta = metadata.number(f"{prefix}.rope.freq_base", 1.0, 1e12, DEFAULT_THETA)
    rotary_dim = metadata.whole(f"{prefix}.rope.dimension_count", 2, head_dim, head_dim)
    if rotary_dim % 2 or (rotary_dim != head_dim and partial is None):
        raise metadata.refuse(
            f"{prefix}.rope.dimension_count", f"{head_dim}, the head dimension, for this architecture,"
        )
    kind = metadata.one_of(f"{prefix}.rope.scaling.type", ("none", "linear", "yarn", *LONG_NAMES[:1]), "none")
    if kind == "longrope" and factors != "long_factors":
        raise metadata.refuse(f"{prefix}.rope.scaling.type", "one of none, linear, yarn, without rope_factors_long,")
    if factors == "long_factors":
        return RopeSpec(theta, rotary_dim, factors, _gguf_long(metadata, prefix, max_context_tokens))
    factor = metadata.number(f"{prefix}.rope.scaling.factor", 0.0, 1e6, 0.0)
    if f"{prefix}.rope.scale_linear" in metadata:  # the older way
        kind, factor = "linear", metadata.number(f"{prefix}.rope.scale_linear", 1.0, 1e6)
    if factors and kind != "none":
        raise metadata.refuse(f"{prefix}.rope.scaling.type", "none, since the file also holds rope_freqs.weight,")
    if factors:
        return RopeSpec(theta, rotary_dim, factors)
    if kind == "none" or factor in (0.0, 1.0):
        return RopeSpec(theta, rotary_dim)
    scaling = {"factor": factor}
    if kind == "yarn":
        name = f"{prefix}.rope.scaling.original_context_length"
        scaling["original_max_tokens"] = float(metadata.whole(name, 1, MAX_CONTEXT, max_context_tokens))
        scaling["beta_fast"] = metadata.number(f"{prefix}.rope.scaling.yarn_beta_fast", 0.0, 1e6, 32.0)
        scaling["beta_slow"] = metadata.number(f"{prefix}.rope.scaling.yarn_beta_slow", 0.0, 1e6, 1.0)
        scaling["truncate"] = 1.0
        if f"{prefix}.rope.scaling.attn_factor" in metadata:
            raise metadata.refuse(f"{prefix}.rope.scaling.attn_factor", "no value, or yarn's own factor,")
    return RopeSpec(theta, rotary_dim, kind, tuple(scaling.items()))


def _gguf_long(metadata: Fields, prefix: str, max_context_tokens: int) -> tuple[tuple[str, float], ...]:
    name = f"{prefix}.rope.scaling.original_context_length"
    original = float(metadata.whole(name, 1, MAX_CONTEXT, max_context_tokens))
    magnitude = metadata.number(f"{prefix}.rope.scaling.attn_factor", 0.0, 1e6, 1.0)
    return (("original_max_tokens", original), ("attention_factor", magnitude))
