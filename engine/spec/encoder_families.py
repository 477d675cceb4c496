"""The encoder families Bayard knows: BERT and those that differ from it by where positions begin."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from engine.spec.model_spec import CheckpointFormat, LayerSpec, ModelSpec


@dataclass(frozen=True, slots=True)
class EncoderFamily:
    key: str  # ModelSpec.architecture, and model_type in config.json
    title: str
    hf_architectures: tuple[str, ...]
    gguf_architectures: tuple[str, ...]
    differs: str  # from BERT, for people
    positions_after_padding: bool = False  # a text's first position is the padding token's id plus one


ENCODERS: tuple[EncoderFamily, ...] = (
    EncoderFamily("bert", "BERT, MiniLM, BGE, E5", ("BertModel",), ("bert",), ""),
    EncoderFamily("roberta", "RoBERTa", ("RobertaModel",), (), "positions begin after the padding token's id", True),
    EncoderFamily("xlm-roberta", "XLM-RoBERTa, multilingual E5, BGE-M3", ("XLMRobertaModel",), (), "as RoBERTa", True),
)
ENCODERS_BY_KEY = {family.key: family for family in ENCODERS}

# role -> (name in a GGUF file, name in a Hugging Face folder)
MODEL_NAMES: dict[str, tuple[str, str]] = {
    "embed": ("token_embd.weight", "embeddings.word_embeddings.weight"),
    "position_embed": ("position_embd.weight", "embeddings.position_embeddings.weight"),
    "type_embed": ("token_types.weight", "embeddings.token_type_embeddings.weight"),
    "embed_norm": ("token_embd_norm.weight", "embeddings.LayerNorm.weight"),
    "embed_norm_bias": ("token_embd_norm.bias", "embeddings.LayerNorm.bias"),
}
LAYER_NAMES: dict[str, tuple[str, str]] = {
    "attn_q": ("attn_q", "attention.self.query"),
    "attn_k": ("attn_k", "attention.self.key"),
    "attn_v": ("attn_v", "attention.self.value"),
    "attn_o": ("attn_output", "attention.output.dense"),
    "attn_norm": ("attn_output_norm", "attention.output.LayerNorm"),
    "mlp_up": ("ffn_up", "intermediate.dense"),
    "mlp_down": ("ffn_down", "output.dense"),
    "mlp_norm": ("layer_output_norm", "output.LayerNorm"),
}
# What checkpoints hold beside that and an embedding does not read.
UNUSED = ("embeddings.position_ids", "pooler.dense.weight", "pooler.dense.bias", "embeddings.token_type_ids")
NESTED = ("bert.", "roberta.")  # what names begin with where the encoder was saved inside another model


def encoder_tensors(spec: ModelSpec) -> Iterator[tuple[str, int | None, str, tuple[int, ...]]]:
    """Every tensor that an encoder reads: role, layer, stored name, shape. Tables may have rows to spare."""
    column = 0 if spec.format is CheckpointFormat.GGUF else 1
    hidden = spec.hidden_size
    stored = {info.name: info.shape for info in spec.tensors}
    least = {"position_embed": spec.first_position + spec.max_context_tokens, "type_embed": 1}
    for role, names in MODEL_NAMES.items():
        name = names[column]
        if role == "embed":
            yield role, None, name, (spec.vocab_size, hidden)
        elif role in least:
            yield role, None, name, (max(least[role], *stored.get(name, (0,))[:1]), hidden)
        else:
            yield role, None, name, (hidden,)
    for layer in spec.layers:
        prefix = ("blk.", "encoder.layer.")[column] + f"{layer.index}."
        for role, shape in _layer_shapes(hidden, layer):
            name = prefix + LAYER_NAMES[role][column]
            yield role, layer.index, f"{name}.weight", shape
            yield f"{role}_bias", layer.index, f"{name}.bias", shape[:1]


def _layer_shapes(hidden: int, layer: LayerSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    inner = layer.mlp.intermediate_size
    for role in ("attn_q", "attn_k", "attn_v", "attn_o"):
        yield role, (hidden, hidden)
    yield "attn_norm", (hidden,)
    yield "mlp_up", (inner, hidden)
    yield "mlp_down", (hidden, inner)
    yield "mlp_norm", (hidden,)
