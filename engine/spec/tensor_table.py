"""Which tensors a checkpoint must hold: each role's stored name and shape, checked before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from engine.errors import UnsupportedFormat
from engine.ggml_types import COMPUTABLE_TYPES, PLAIN_TYPES
from engine.spec.families import family_of
from engine.spec.family import Family, Norms
from engine.spec.model_spec import (
    AttentionSpec,
    CheckpointFormat,
    ExpertStorage,
    LayerSpec,
    MlpKind,
    MlpSpec,
    ModelSpec,
    TensorInfo,
)

Role = tuple[str, int | None]  # what a tensor is for, and its layer

# role -> (name in a GGUF file, name in a Hugging Face folder); layer roles follow the layer's prefix. A name with a
# star is of one expert, any other one of all of them stacked. A family's own names come first.
MODEL_NAMES: dict[str, tuple[str, str]] = {
    "embed": ("token_embd.weight", "model.embed_tokens.weight"),
    "final_norm": ("output_norm.weight", "model.norm.weight"),
    "lm_head": ("output.weight", "lm_head.weight"),
    "rope_factors": ("rope_freqs.weight", ""),
    "rope_long": ("rope_factors_long.weight", ""),
    "rope_short": ("rope_factors_short.weight", ""),
}
LAYER_NAMES: dict[str, tuple[str, str]] = {
    "attn_norm": ("attn_norm.weight", "input_layernorm.weight"),
    "attn_q": ("attn_q.weight", "self_attn.q_proj.weight"),
    "attn_k": ("attn_k.weight", "self_attn.k_proj.weight"),
    "attn_v": ("attn_v.weight", "self_attn.v_proj.weight"),
    "attn_o": ("attn_output.weight", "self_attn.o_proj.weight"),
    "attn_q_bias": ("attn_q.bias", "self_attn.q_proj.bias"),
    "attn_k_bias": ("attn_k.bias", "self_attn.k_proj.bias"),
    "attn_v_bias": ("attn_v.bias", "self_attn.v_proj.bias"),
    "attn_o_bias": ("attn_output.bias", "self_attn.o_proj.bias"),
    "attn_q_norm": ("attn_q_norm.weight", "self_attn.q_norm.weight"),
    "attn_k_norm": ("attn_k_norm.weight", "self_attn.k_norm.weight"),
    "mlp_norm": ("ffn_norm.weight", "post_attention_layernorm.weight"),
    "mlp_gate": ("ffn_gate.weight", "mlp.gate_proj.weight"),
    "mlp_up": ("ffn_up.weight", "mlp.up_proj.weight"),
    "mlp_down": ("ffn_down.weight", "mlp.down_proj.weight"),
    "mlp_gate_bias": ("ffn_gate.bias", "mlp.gate_proj.bias"),
    "mlp_up_bias": ("ffn_up.bias", "mlp.up_proj.bias"),
    "mlp_down_bias": ("ffn_down.bias", "mlp.down_proj.bias"),
    "attn_post_norm": ("post_attention_norm.weight", "post_attention_layernorm.weight"),
    "mlp_post_norm": ("post_ffw_norm.weight", "post_feedforward_layernorm.weight"),
    "attn_qkv": ("attn_qkv.weight", "self_attn.qkv_proj.weight"),
    "mlp_gate_up": ("ffn_up.weight", "mlp.gate_up_proj.weight"),
    "router": ("ffn_gate_inp.weight", "mlp.gate.weight"),
    "router_correction": ("exp_probs_b.bias", "mlp.gate.e_score_correction_bias"),
    "experts_gate": ("ffn_gate_exps.weight", "mlp.experts.*.gate_proj.weight"),
    "experts_up": ("ffn_up_exps.weight", "mlp.experts.*.up_proj.weight"),
    "experts_down": ("ffn_down_exps.weight", "mlp.experts.*.down_proj.weight"),
    "router_bias": ("ffn_gate_inp.bias", "mlp.gate.bias"),
    "experts_gate_bias": ("ffn_gate_exps.bias", ""),
    "experts_up_bias": ("ffn_up_exps.bias", ""),
    "experts_gate_up": ("", "mlp.experts.gate_up_proj"),
    "experts_gate_up_blocks": ("", "mlp.experts.gate_up_proj_blocks"),
    "experts_gate_up_scales": ("", "mlp.experts.gate_up_proj_scales"),
    "experts_gate_up_bias": ("", "mlp.experts.gate_up_proj_bias"),
    "experts_down_stack": ("", "mlp.experts.down_proj"),
    "experts_down_blocks": ("", "mlp.experts.down_proj_blocks"),
    "experts_down_scales": ("", "mlp.experts.down_proj_scales"),
    "experts_down_bias": ("ffn_down_exps.bias", "mlp.experts.down_proj_bias"),
    "attn_sinks": ("attn_sinks.weight", "self_attn.sinks"),
    "shared_gate": ("ffn_gate_shexp.weight", "mlp.shared_experts.gate_proj.weight"),
    "shared_up": ("ffn_up_shexp.weight", "mlp.shared_experts.up_proj.weight"),
    "shared_down": ("ffn_down_shexp.weight", "mlp.shared_experts.down_proj.weight"),
}
EXPERT_ROLES = ("experts_gate", "experts_up", "experts_down")
DERIVED_SUFFIXES = ("rotary_emb.inv_freq",)  # stored by old exporters, computed from the configuration by everyone


@dataclass(frozen=True, slots=True)
class Expected:
    role: Role
    name: str
    shape: tuple[int, ...]
    required: bool = True


def stored_name(
    stored_as: CheckpointFormat, role: str, layer: int | None = None, names: Mapping[str, tuple[str, str]] | None = None
) -> str:
    """names: those that a family has for itself"""
    column = 0 if stored_as is CheckpointFormat.GGUF else 1
    found = (names or {}).get(role)
    if layer is None:
        return (found or MODEL_NAMES[role])[column]
    prefix = ("blk.", "model.layers.")[column]
    return f"{prefix}{layer}.{(found or LAYER_NAMES[role])[column]}"


def expected_tensors(spec: ModelSpec) -> Iterator[Expected]:
    """Every tensor that belongs to such a model, in the order a forward pass meets them."""

    family = family_of(spec.architecture)

    def of_model(role: str, shape: tuple[int, ...], required: bool = True) -> Expected:
        return Expected((role, None), stored_name(spec.format, role), shape, required)

    yield of_model("embed", (spec.vocab_size, spec.hidden_size))
    rope = spec.layers[0].attention.rope
    if rope is not None and rope.scaling_kind == "factors":
        yield of_model("rope_factors", (rope.rotary_dim // 2,))
    if rope is not None and rope.scaling_kind == "long_factors":
        yield of_model("rope_long", (rope.rotary_dim // 2,))
        yield of_model("rope_short", (rope.rotary_dim // 2,))
    for layer in spec.layers:
        for role, shape in _layer_shapes(family, spec.hidden_size, layer):
            name = stored_name(spec.format, role, layer.index, family.names)
            if role in EXPERT_ROLES and "*" in name:
                for expert, expert_role in enumerate(expert_roles(role, layer.mlp)):
                    yield Expected((expert_role, layer.index), name.replace("*", str(expert)), shape[1:])
            else:
                yield Expected((role, layer.index), name, shape)
    yield of_model("final_norm", (spec.hidden_size,))
    yield of_model("lm_head", (spec.vocab_size, spec.hidden_size), required=not spec.tie_embeddings)


def expert_roles(role: str, mlp: MlpSpec) -> list[str]:
    """The roles of one matrix's experts where each is stored for itself."""
    return [f"{role}.{expert}" for expert in range(mlp.num_experts)]


def _layer_shapes(family: Family, hidden: int, layer: LayerSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    if family.norms is not Norms.AFTER:
        yield "attn_norm", (hidden,)
    yield from _attention_shapes(family, hidden, layer.attention)
    if family.norms is not Norms.BEFORE:
        yield "attn_post_norm", (hidden,)
    if family.norms is not Norms.AFTER:
        yield "mlp_norm", (hidden,)
    yield from _mlp_shapes(family, hidden, layer.mlp)
    if family.norms is not Norms.BEFORE:
        yield "mlp_post_norm", (hidden,)


def _attention_shapes(family: Family, hidden: int, attention: AttentionSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    q_rows, kv_rows = attention.num_heads * attention.head_dim, attention.num_kv_heads * attention.head_dim
    inputs = [("attn_q", q_rows), ("attn_k", kv_rows), ("attn_v", kv_rows)]
    for role, rows in [("attn_qkv", q_rows + 2 * kv_rows)] if family.fused_qkv else inputs:
        yield role, (rows, hidden)
        if attention.qkv_bias:
            yield f"{role}_bias", (rows,)
    if attention.qk_norm or attention.qk_norm_whole:
        yield "attn_q_norm", (attention.head_dim if attention.qk_norm else q_rows,)
        yield "attn_k_norm", (attention.head_dim if attention.qk_norm else kv_rows,)
    if attention.sinks:
        yield "attn_sinks", (attention.num_heads,)
    yield "attn_o", (hidden, q_rows)
    if attention.o_bias:
        yield "attn_o_bias", (hidden,)


def _mlp_shapes(family: Family, hidden: int, mlp: MlpSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    inner, shared = mlp.intermediate_size, mlp.shared_intermediate_size
    if mlp.kind is MlpKind.EXPERTS:
        yield "router", (mlp.num_experts, hidden)
        if mlp.router_correction:
            yield "router_correction", (mlp.num_experts,)
        yield from _expert_shapes(hidden, mlp)
        if shared:
            yield from (("shared_gate", (shared, hidden)), ("shared_up", (shared, hidden)))
            yield "shared_down", (hidden, shared)
        return
    inputs = [("mlp_gate", (inner, hidden)), ("mlp_up", (inner, hidden))]
    if family.fused_gate_up:
        inputs = [("mlp_gate_up", (2 * inner, hidden))]
    for role, shape in (*inputs, ("mlp_down", (hidden, inner))):
        yield role, shape
        if mlp.bias:
            yield f"{role}_bias", shape[:1]


def _expert_shapes(hidden: int, mlp: MlpSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    count, inner = mlp.num_experts, mlp.intermediate_size
    if mlp.bias:
        yield "router_bias", (count,)
    if mlp.storage is ExpertStorage.ONE_MATRIX_EACH:
        for role, shape in zip(EXPERT_ROLES, ((inner, hidden), (inner, hidden), (hidden, inner)), strict=True):
            yield role, (count, *shape)
            if mlp.bias:
                yield f"{role}_bias", (count, shape[0])
        return
    for role, rows, columns in (("experts_gate_up", 2 * inner, hidden), ("experts_down", hidden, inner)):
        if mlp.storage is ExpertStorage.TRANSPOSED:
            yield role if role == "experts_gate_up" else "experts_down_stack", (count, columns, rows)
        else:
            yield f"{role}_blocks", (count, rows, columns // 32, 16)
            yield f"{role}_scales", (count, rows, columns // 32)
        if mlp.bias:
            yield f"{role}_bias", (count, rows)


def tensor_table(spec: ModelSpec) -> dict[Role, TensorInfo]:
    """The spec's tensors by role.

    Raises: UnsupportedFormat for a tensor that is missing, has another shape or type, or belongs to no role
    """
    stored = {info.name: info for info in spec.tensors}
    table: dict[Role, TensorInfo] = {}
    for expected in expected_tensors(spec):
        info = stored.pop(expected.name, None)
        if info is None:
            if expected.required:
                raise _missing(spec, expected)
            continue
        _check(spec, expected, info)
        if expected.required:  # a tied head that is stored all the same repeats the embedding
            table[expected.role] = info
    left = [name for name in stored if not name.endswith(DERIVED_SUFFIXES)]
    if left:
        raise UnsupportedFormat(
            f"{spec.name} holds {len(left):,} tensors that the architecture {spec.architecture} does not have, "
            f"{_some(left)}.",
            "The checkpoint is of another architecture than it states, or of a variant that is not supported.",
        )
    return table


def _missing(spec: ModelSpec, expected: Expected) -> UnsupportedFormat:
    return UnsupportedFormat(
        f"{spec.name} lacks the tensor {expected.name} {list(expected.shape)} of the architecture {spec.architecture}.",
        "The checkpoint is incomplete or of a variant that is not supported: download or convert it again.",
    )


def _check(spec: ModelSpec, expected: Expected, info: TensorInfo) -> None:
    if info.shape != expected.shape:
        raise UnsupportedFormat(
            f"{spec.name} has {info.name} as {list(info.shape)}; its configuration needs {list(expected.shape)}.",
            "The configuration and the weights do not belong together: download or convert both again.",
        )
    allowed = COMPUTABLE_TYPES if len(info.shape) > 1 and spec.format is CheckpointFormat.GGUF else PLAIN_TYPES
    if expected.role[0].endswith(("_blocks", "_scales")):
        allowed = ("U8",)
    if info.dtype not in allowed:
        raise UnsupportedFormat(
            f"{spec.name} stores {info.name} as {info.dtype}; {', '.join(allowed)} can be computed with.",
            "Import a checkpoint quantised to one of these types, for example Q4_K_M or Q8_0.",
        )


def _some(names: Iterable[str]) -> str:
    found = sorted(names)
    return f"for example {found[0]}" if len(found) > 1 else found[0]
