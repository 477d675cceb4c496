"""Which tensors a checkpoint must hold: each role's stored name and shape, checked before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass

from engine.errors import UnsupportedFormat
from engine.ggml_types import COMPUTABLE_TYPES, PLAIN_TYPES
from engine.spec.encoder_families import encoder_tensors
from engine.spec.families import family_of
from engine.spec.family import Family, Norms
from engine.spec.kv_scales import take_kv_scales
from engine.spec.model_spec import (
    AttentionKind,
    AttentionSpec,
    CheckpointFormat,
    ExpertStorage,
    LayerSpec,
    MlpKind,
    MlpSpec,
    ModelSpec,
    TensorInfo,
)
from engine.spec.quantisation import is_kv_scale
from engine.spec.quantised_tensors import part_role, take_parts
from engine.spec.tensor_names import stored_name

Role = tuple[str, int | None]  # what a tensor is for, and its layer

EXPERT_ROLES = ("experts_gate", "experts_up", "experts_down")
DERIVED_SUFFIXES = ("rotary_emb.inv_freq",)  # stored by old exporters, computed from the configuration by everyone


@dataclass(frozen=True, slots=True)
class Expected:
    role: Role
    name: str
    shape: tuple[int, ...]
    required: bool = True


def expected_tensors(spec: ModelSpec) -> Iterator[Expected]:
    """Every tensor that belongs to such a model, in the order a forward pass meets them."""
    if spec.is_encoder:
        for role, index, name, shape in encoder_tensors(spec):
            yield Expected((role, index), name, shape)
        return
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
        for role, shape in _layer_shapes(family, spec.format, spec.hidden_size, layer):
            name = stored_name(spec.format, role, layer.index, family.names)
            if role in EXPERT_ROLES and "*" in name:
                for expert, expert_role in enumerate(expert_roles(role, layer.mlp)):
                    yield Expected((expert_role, layer.index), name.replace("*", str(expert)), shape[1:])
            else:
                yield Expected((role, layer.index), name, shape)
    yield of_model("final_norm", (spec.hidden_size,))
    if spec.generates:
        yield of_model("lm_head", (spec.vocab_size, spec.hidden_size), required=not spec.tie_embeddings)


def expert_roles(role: str, mlp: MlpSpec) -> list[str]:
    """The roles of one matrix's experts where each is stored for itself."""
    return [f"{role}.{expert}" for expert in range(mlp.num_experts)]


def _layer_shapes(
    family: Family, stored_as: CheckpointFormat, hidden: int, layer: LayerSpec
) -> Iterator[tuple[str, tuple[int, ...]]]:
    if family.norms is not Norms.AFTER:
        yield "attn_norm", (hidden,)
    if layer.attention.kind is AttentionKind.LATENT:
        yield from _latent_shapes(stored_as, hidden, layer.attention)
    else:
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


def _latent_shapes(
    stored_as: CheckpointFormat, hidden: int, attention: AttentionSpec
) -> Iterator[tuple[str, tuple[int, ...]]]:
    heads, latent, rope = attention.num_heads, attention.latent_dim or 0, attention.rope_head_dim or 0
    value, still = attention.value_dim or 0, attention.head_dim - rope
    if attention.q_latent_dim is None:
        yield "attn_q", (heads * attention.head_dim, hidden)
    else:
        yield "attn_q_a", (attention.q_latent_dim, hidden)
        yield "attn_q_a_norm", (attention.q_latent_dim,)
        yield "attn_q_b", (heads * attention.head_dim, attention.q_latent_dim)
    yield "attn_kv_a", (latent + rope, hidden)
    yield "attn_kv_a_norm", (latent,)
    if stored_as is CheckpointFormat.GGUF:
        yield "attn_k_b", (heads, latent, still)
        yield "attn_v_b", (heads, value, latent)
    else:
        yield "attn_kv_b", (heads * (still + value), latent)
    yield "attn_o", (hidden, heads * value)


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
        parts = _quantised(spec, expected, stored)
        if parts:
            (role, layer), infos = expected.role, parts
            table |= {(part_role(role, suffix), layer): info for suffix, info in infos.items()}
            table[expected.role] = next(iter(infos.values()))
            continue
        info = stored.pop(expected.name, None)
        if info is None:
            if expected.required:
                raise _missing(spec, expected)
            continue
        _check(spec, expected, info)
        if expected.required:  # a tied head that is stored all the same repeats the embedding
            table[expected.role] = info
    if not spec.is_encoder:
        table |= take_kv_scales(spec, stored)
    _check_experts(spec, table)
    left = [name for name in stored if not name.endswith(DERIVED_SUFFIXES)]
    if spec.quantisation is not None:
        left = [name for name in left if not is_kv_scale(name)]
    if left:
        raise UnsupportedFormat(
            f"{spec.name} holds {len(left):,} tensors that the architecture {spec.architecture} does not have, "
            f"{_some(left)}.",
            "The checkpoint is of another architecture than it states, or of a variant that is not supported.",
        )
    return table


def _quantised(
    spec: ModelSpec, expected: Expected, stored: MutableMapping[str, TensorInfo]
) -> dict[str, TensorInfo] | None:
    """The tensors of a matrix that is not stored plain and has a rule; of embeddings there is none."""
    info = stored.get(expected.name)
    is_matrix = len(expected.shape) == 2 and expected.name.endswith(".weight") and expected.role[0] != "embed"
    if spec.quantisation is None or not is_matrix or (info is not None and info.dtype in PLAIN_TYPES):
        return None
    if info is None and not expected.required and not any(name.startswith("lm_head.") for name in stored):
        return None
    return take_parts(spec, expected.name, expected.shape, stored)


def _check_experts(spec: ModelSpec, table: Mapping[Role, TensorInfo]) -> None:
    """Matrices that one kernel takes together must be stored alike: gates and ups, and downs."""
    for layer in spec.layers:
        if layer.mlp.kind is not MlpKind.EXPERTS or layer.mlp.storage is not ExpertStorage.ONE_MATRIX_EACH:
            continue
        for roles in (EXPERT_ROLES[:2], EXPERT_ROLES[2:]):
            each = [role for name in roles for role in (name, *expert_roles(name, layer.mlp))]
            kinds = sorted({table[role, layer.index].dtype for role in each if (role, layer.index) in table})
            if len(kinds) > 1:
                raise UnsupportedFormat(
                    f"{spec.name} stores the {' and '.join(roles)} matrices of layer {layer.index} as "
                    f"{' and '.join(kinds)}; one type for all of them is needed.",
                    "Import a file whose experts' gate and up matrices are quantised alike, as most are.",
                )


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
