"""ModelSpec of a GGUF file."""

from __future__ import annotations

from pathlib import Path

from engine.errors import UnsupportedFormat
from engine.spec.decoder_shape import DecoderShape, commonest_dtype
from engine.spec.encoder_families import ENCODERS
from engine.spec.families import family_named
from engine.spec.family import Bias, Family, Window
from engine.spec.fields import MAX_CONTEXT, MAX_LAYERS, MAX_WIDTH, Fields
from engine.spec.gguf_encoder import gguf_encoder_spec
from engine.spec.gguf_header import GgufHeader, read_gguf_header
from engine.spec.gguf_names import GGUF_NAMES, renamed
from engine.spec.model_spec import CheckpointFormat, ModelSpec, TensorInfo
from engine.spec.rope_fields import gguf_rope
from engine.spec.tensor_names import stored_name
from engine.spec.tensor_table import tensor_table

# Keys under the architecture's name that are understood. Any other one may change the sums, so it is refused.
READ_KEYS = (
    "context_length",
    "embedding_length",
    "block_count",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scaling.finetuned",  # says that training used the scaling; changes nothing
    "vocab_size",
    "expert_count",
    "expert_used_count",
)
MAX_NAME_CHARACTERS = 120
FACTORS = (("rope_factors", "factors"), ("rope_long", "long_factors"))  # tensor -> a RopeSpec's kind
NEXT_KEY = "nextn_predict_layers"
END_KEYS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")


def gguf_spec(path: Path) -> ModelSpec:
    """Read a GGUF file's header. Raises: UnsupportedFormat, ConfigError."""
    return spec_of_header(read_gguf_header(path))


def spec_of_header(header: GgufHeader) -> ModelSpec:
    metadata = Fields(header.metadata, Path(header.path).name)
    _refuse_part(metadata)
    if not header.tensors:
        raise UnsupportedFormat(f"{metadata.source} holds no tensors.", "It is a vocabulary alone: import a model.")
    prefix = metadata.text("general.architecture")
    encoder = next((family for family in ENCODERS if prefix in family.gguf_architectures), None)
    if encoder is not None:
        return gguf_encoder_spec(header, encoder, _name(metadata, Path(header.path).stem))
    has_experts = metadata.whole(f"{prefix}.expert_count", 0, MAX_WIDTH, 0) > 0
    family = family_named(prefix, CheckpointFormat.GGUF, metadata.source, experts=has_experts)
    _refuse_unknown(metadata, prefix, family, has_experts)
    tensors = {info.name: info for info in header.tensors}
    past = _next_token_layers(metadata, prefix, family)
    tensors = {name: info for name, info in tensors.items() if not name.startswith(past)}
    stated = renamed(metadata, prefix, tensors)
    hidden = metadata.whole(f"{prefix}.embedding_length", 1, MAX_WIDTH)
    max_context = metadata.whole(f"{prefix}.context_length", 1, MAX_CONTEXT)
    vocab_size = _vocabulary(metadata, prefix, tensors)
    bos = metadata.token_ids("tokenizer.ggml.bos_token_id", vocab_size)
    ends = tuple(dict.fromkeys(i for key in END_KEYS for i in metadata.token_ids(key, vocab_size)))
    spec = ModelSpec(
        name=_name(metadata, Path(header.path).stem),
        architecture=family.key,
        format=CheckpointFormat.GGUF,
        path=header.path,
        files=(header.path,),
        hidden_size=hidden,
        vocab_size=vocab_size,
        max_context_tokens=max_context,
        norm_eps=metadata.number(f"{prefix}.attention.layer_norm_rms_epsilon", 0.0, 1.0),
        tie_embeddings=stored_name(CheckpointFormat.GGUF, "lm_head") not in tensors,
        layers=_shape(metadata, prefix, family, tensors, hidden, max_context).layers(family, stated),
        tensors=tuple(tensors.values()),
        bos_token_id=bos[0] if bos else None,
        eos_token_ids=ends,
        source_dtype=commonest_dtype(tuple(tensors.values())),
        extra=tuple(family.scalars(stated).items()),
    )
    tensor_table(spec)
    return spec


def _name(metadata: Fields, stem: str) -> str:
    """The stated name if people can read it, else the file's."""
    stated = metadata.text("general.name", stem).strip()
    return stated if stated and stated.isprintable() and len(stated) <= MAX_NAME_CHARACTERS else stem


def _shape(
    metadata: Fields, prefix: str, family: Family, tensors: dict[str, TensorInfo], hidden: int, max_context: int
) -> DecoderShape:
    layers = _layers(metadata, prefix, family)
    heads = metadata.whole(f"{prefix}.attention.head_count", 1, MAX_WIDTH)
    kv_heads = metadata.whole(f"{prefix}.attention.head_count_kv", 1, heads, heads)
    if heads % kv_heads:
        raise metadata.refuse(f"{prefix}.attention.head_count_kv", f"a divisor of the {heads} heads")
    head_dim = metadata.whole(f"{prefix}.attention.key_length", 2, MAX_WIDTH, max(hidden // heads, 2))
    if not family.latent:  # such a family states the widths of its own in other keys
        metadata.whole(f"{prefix}.attention.value_length", head_dim, head_dim, head_dim)
    factors = next((kind for role, kind in FACTORS if stored_name(CheckpointFormat.GGUF, role) in tensors), "")

    def in_first_layer(role: str) -> bool:
        return stored_name(CheckpointFormat.GGUF, role, 0) in tensors

    return DecoderShape(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=metadata.whole(f"{prefix}.feed_forward_length", 1, MAX_WIDTH),
        rope=gguf_rope(metadata, prefix, head_dim, max_context, factors, family.partial_rotary),
        windows=_windows(metadata, prefix, family, layers),
        qkv_bias=family.bias is Bias.QKV or in_first_layer("attn_q_bias"),
        o_bias=in_first_layer("attn_o_bias"),
        mlp_bias=in_first_layer("mlp_gate_bias"),
    )


def _layers(metadata: Fields, prefix: str, family: Family) -> int:
    stated = metadata.whole(f"{prefix}.block_count", 1, MAX_LAYERS)
    return stated - (metadata.whole(f"{prefix}.{NEXT_KEY}", 0, stated - 1, 0) if family.next_token_layers else 0)


def _next_token_layers(metadata: Fields, prefix: str, family: Family) -> tuple[str, ...]:
    """How the names of layers start that are for speculation only, past the last one that runs."""
    end = metadata.whole(f"{prefix}.block_count", 1, MAX_LAYERS)
    return tuple(f"blk.{i}." for i in range(_layers(metadata, prefix, family), end))


def _windows(metadata: Fields, prefix: str, family: Family, layers: int) -> tuple[int | None, ...]:
    window = metadata.whole(f"{prefix}.attention.sliding_window", 0, MAX_CONTEXT, family.default_window)
    if window and family.window not in (Window.EVERY_LAYER, Window.PATTERN):
        raise metadata.refuse(f"{prefix}.attention.sliding_window", "no value, for this architecture,")
    if not window or family.window is Window.EVERY_LAYER:
        return (window or None,) * layers
    period = metadata.whole(f"{prefix}.attention.sliding_window_pattern", 1, MAX_LAYERS, family.window_period)
    return tuple(window if (i + 1) % period else None for i in range(layers))


def _vocabulary(metadata: Fields, prefix: str, tensors: dict[str, TensorInfo]) -> int:
    """The embedding's rows; what the metadata says must not be more."""
    name = stored_name(CheckpointFormat.GGUF, "embed")
    embed = tensors.get(name)
    if embed is None or len(embed.shape) != 2:
        raise UnsupportedFormat(f"{metadata.source} has no matrix {name}.", "Convert the checkpoint again.")
    rows = embed.shape[0]
    metadata.whole(f"{prefix}.vocab_size", 1, rows, rows)
    tokens = metadata.values.get("tokenizer.ggml.tokens")
    if isinstance(tokens, list) and len(tokens) > rows:
        raise UnsupportedFormat(
            f"{metadata.source} has a vocabulary of {len(tokens):,} tokens and an embedding of {rows:,} rows.",
            "The vocabulary and the weights do not belong together: convert the checkpoint again.",
        )
    return rows


def _refuse_unknown(metadata: Fields, prefix: str, family: Family, has_experts: bool) -> None:
    if has_experts and not family.experts:
        raise metadata.refuse(f"{prefix}.expert_count", "a model without experts, or with none,")
    known = {f"{prefix}.{key}" for key in (*READ_KEYS, *(GGUF_NAMES[name] for name in family.understands))}
    if family.next_token_layers:
        known.add(f"{prefix}.{NEXT_KEY}")
    for key in metadata.values:
        if key.startswith(f"{prefix}.") and key not in known:
            raise UnsupportedFormat(
                f"{metadata.source} states {key}, which is not understood and may change what the model computes.",
                f"Convert the checkpoint again as a plain {prefix} model, or ask for support of this variant.",
            )


def _refuse_part(metadata: Fields) -> None:
    parts = metadata.whole("split.count", 0, 1 << 16, 0)
    if parts > 1:
        raise UnsupportedFormat(
            f"{metadata.source} is part {metadata.whole('split.no', 0, parts, 0) + 1} of a model in {parts} files.",
            "Merge the parts first: llama-gguf-split --merge FIRST_PART MERGED.gguf",
        )
