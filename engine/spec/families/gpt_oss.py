"""gpt-oss: every second layer in a window, a sink a head, experts with biases and a clamped gate, stored as MXFP4."""

from __future__ import annotations

from dataclasses import replace

from engine.spec.experts_fields import expert_mlp
from engine.spec.family import Family, Window
from engine.spec.fields import Fields
from engine.spec.model_spec import ExpertStorage, LayerSpec, RopeSpec

CLAMP, SLOPE = 7.0, 1.702  # what the kernels of swiglu_clamped compute with


def _adapt(stated: Fields, layers: tuple[LayerSpec, ...]) -> tuple[LayerSpec, ...]:
    for name, known in (("swiglu_limit", CLAMP), ("swiglu_alpha", SLOPE)):
        if stated.number(name, 0.0, 1e6, known) != known:
            raise stated.refuse(name, f"{known}")
    storage = ExpertStorage.ONE_MATRIX_EACH
    if not stated.gguf:
        storage = ExpertStorage.MXFP4_BLOCKS if "quantization_config" in stated else ExpertStorage.TRANSPOSED
    plain = expert_mlp(stated, layers[0].mlp.intermediate_size)
    mlp = replace(plain, activation="swiglu_clamped", bias=True, storage=storage)
    return tuple(
        replace(la, attention=replace(la.attention, sinks=True, rope=_untruncated(la.attention.rope)), mlp=mlp)
        for la in layers
    )


def _untruncated(rope: RopeSpec | None) -> RopeSpec | None:
    """GGUF does not say that the pairs between fast and slow are not rounded to whole ones."""
    if rope is None or rope.scaling_kind != "yarn":
        return rope
    return replace(rope, scaling=tuple((dict(rope.scaling) | {"truncate": 0.0}).items()))


FAMILIES = (
    Family(
        "gpt_oss",
        "gpt-oss",
        ("GptOssForCausalLM",),
        ("gpt-oss",),
        window=Window.PATTERN,
        window_period=2,
        default_window=128,
        experts=True,
        activation="swiglu_clamped",
        quantisations=("mxfp4",),
        names={
            "mlp_norm": ("post_attention_norm.weight", "post_attention_layernorm.weight"),
            "router": ("ffn_gate_inp.weight", "mlp.router.weight"),
            "router_bias": ("ffn_gate_inp.bias", "mlp.router.bias"),
        },
        understands=("moe_intermediate_size",),
        adapt=_adapt,
    ),
)
