"""Which tensors a checkpoint must hold: each role's stored name and shape, checked before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from engine.errors import UnsupportedFormat
from engine.ggml_types import COMPUTABLE_TYPES, PLAIN_TYPES
from engine.spec.model_spec import CheckpointFormat, LayerSpec, ModelSpec, TensorInfo

Role = tuple[str, int | None]  # what a tensor is for, and its layer

# role -> (name in a GGUF file, name in a Hugging Face folder); layer roles follow the layer's prefix
MODEL_NAMES: dict[str, tuple[str, str]] = {
    "embed": ("token_embd.weight", "model.embed_tokens.weight"),
    "final_norm": ("output_norm.weight", "model.norm.weight"),
    "lm_head": ("output.weight", "lm_head.weight"),
    "rope_factors": ("rope_freqs.weight", ""),
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
}
DERIVED_SUFFIXES = ("rotary_emb.inv_freq",)  # stored by old exporters, computed from the configuration by everyone


@dataclass(frozen=True, slots=True)
class Expected:
    role: Role
    name: str
    shape: tuple[int, ...]
    required: bool = True


def stored_name(stored_as: CheckpointFormat, role: str, layer: int | None = None) -> str:
    column = 0 if stored_as is CheckpointFormat.GGUF else 1
    if layer is None:
        return MODEL_NAMES[role][column]
    prefix = ("blk.", "model.layers.")[column]
    return f"{prefix}{layer}.{LAYER_NAMES[role][column]}"


def expected_tensors(spec: ModelSpec) -> Iterator[Expected]:
    """Every tensor that belongs to such a model, in the order a forward pass meets them."""

    def of_model(role: str, shape: tuple[int, ...], required: bool = True) -> Expected:
        return Expected((role, None), stored_name(spec.format, role), shape, required)

    yield of_model("embed", (spec.vocab_size, spec.hidden_size))
    rope = spec.layers[0].attention.rope
    if rope is not None and rope.scaling_kind == "factors":
        yield of_model("rope_factors", (rope.rotary_dim // 2,))
    for layer in spec.layers:
        for role, shape in _layer_shapes(spec.hidden_size, layer):
            yield Expected((role, layer.index), stored_name(spec.format, role, layer.index), shape)
    yield of_model("final_norm", (spec.hidden_size,))
    yield of_model("lm_head", (spec.vocab_size, spec.hidden_size), required=not spec.tie_embeddings)


def _layer_shapes(hidden: int, layer: LayerSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    attention, inner = layer.attention, layer.mlp.intermediate_size
    q_rows, kv_rows = attention.num_heads * attention.head_dim, attention.num_kv_heads * attention.head_dim
    yield "attn_norm", (hidden,)
    for role, rows in (("attn_q", q_rows), ("attn_k", kv_rows), ("attn_v", kv_rows)):
        yield role, (rows, hidden)
        if attention.qkv_bias:
            yield f"{role}_bias", (rows,)
    if attention.qk_norm:
        yield "attn_q_norm", (attention.head_dim,)
        yield "attn_k_norm", (attention.head_dim,)
    yield "attn_o", (hidden, q_rows)
    if attention.o_bias:
        yield "attn_o_bias", (hidden,)
    yield "mlp_norm", (hidden,)
    for role, shape in (("mlp_gate", (inner, hidden)), ("mlp_up", (inner, hidden)), ("mlp_down", (hidden, inner))):
        yield role, shape
        if layer.mlp.bias:
            yield f"{role}_bias", shape[:1]


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
    if info.dtype not in allowed:
        raise UnsupportedFormat(
            f"{spec.name} stores {info.name} as {info.dtype}; {', '.join(allowed)} can be computed with.",
            "Import a checkpoint quantised to one of these types, for example Q4_K_M or Q8_0.",
        )


def _some(names: Iterable[str]) -> str:
    found = sorted(names)
    return f"for example {found[0]}" if len(found) > 1 else found[0]
