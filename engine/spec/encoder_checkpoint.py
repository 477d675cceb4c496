"""ModelSpec of an encoder: a Hugging Face folder that sentence-transformers wrote."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from engine.errors import UnsupportedFormat
from engine.spec.decoder_shape import commonest_dtype
from engine.spec.encoder_families import ENCODERS, NESTED, UNUSED, EncoderFamily
from engine.spec.fields import MAX_CONTEXT, MAX_LAYERS, MAX_VOCABULARY, MAX_WIDTH, Fields
from engine.spec.hf_folder import refuse_repeats, weight_files
from engine.spec.model_spec import (
    AttentionKind,
    AttentionSpec,
    CheckpointFormat,
    LayerSpec,
    MlpKind,
    MlpSpec,
    ModelSpec,
    TensorInfo,
)
from engine.spec.pooling import hf_pooling, stated_max_tokens
from engine.spec.safetensors_header import read_safetensors_header
from engine.spec.tensor_table import tensor_table

# config.json's names for the MLP's function -> MlpSpec.activation
_ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}


def encoder_family(config: Fields) -> EncoderFamily | None:
    """The encoder that config.json states; None where it is something else."""
    names = config.texts("architectures")
    kind = config.values.get("model_type")
    for family in ENCODERS:
        if (names and names[0] in family.hf_architectures) or (not names and kind == family.key):
            return family
    return None


def hf_encoder_spec(folder: Path, config: Fields, family: EncoderFamily) -> ModelSpec:
    """Raises: UnsupportedFormat, ConfigError."""
    config.one_of("position_embedding_type", ("absolute",), "absolute")
    if config.truth("is_decoder", False):
        raise config.refuse("is_decoder", "false")
    if "quantization_config" in config:
        raise config.refuse("quantization_config", "an unquantised checkpoint")
    hidden = config.whole("hidden_size", 1, MAX_WIDTH)
    pooling = hf_pooling(folder, hidden)
    if pooling is None:
        raise UnsupportedFormat(
            f"{folder.name} is an encoder without modules.json, which says how its texts become vectors.",
            "Import the folder as sentence-transformers publishes it, with modules.json and 1_Pooling.",
        )
    files = weight_files(folder)
    tensors = tuple(info for file in files for info in read_safetensors_header(file))
    refuse_repeats(folder, tensors)
    first = config.whole("pad_token_id", 0, MAX_VOCABULARY) + 1 if family.positions_after_padding else 0
    context = config.whole("max_position_embeddings", first + 1, MAX_CONTEXT) - first
    return checked(
        ModelSpec(
            name=folder.name,
            architecture=family.key,
            format=CheckpointFormat.HF,
            path=str(folder),
            files=tuple(str(file) for file in files),
            hidden_size=hidden,
            vocab_size=config.whole("vocab_size", 1, MAX_VOCABULARY),
            max_context_tokens=min(context, stated_max_tokens(folder) or context),
            norm_eps=config.number("layer_norm_eps", 0.0, 1.0, 1e-12),
            tie_embeddings=True,
            layers=encoder_layers(
                config,
                hidden,
                layers=config.whole("num_hidden_layers", 1, MAX_LAYERS),
                heads="num_attention_heads",
                inner=config.whole("intermediate_size", 1, MAX_WIDTH),
                activation=_ACTIVATIONS[config.one_of("hidden_act", tuple(_ACTIVATIONS), "gelu")],
            ),
            tensors=tuple(_read(tensors)),
            pooling=pooling,
            generates=False,
            first_position=first,
        )
    )


def checked(spec: ModelSpec) -> ModelSpec:
    """The spec, once its tensors are known to be there. Raises: UnsupportedFormat."""
    found = replace(spec, source_dtype=commonest_dtype(spec.tensors)) if spec.tensors else spec
    tensor_table(found)
    return found


def encoder_layers(
    stated: Fields, hidden: int, *, layers: int, heads: str, inner: int, activation: str
) -> tuple[LayerSpec, ...]:
    """heads: the name of the value that states them. Raises: UnsupportedFormat."""
    count = stated.whole(heads, 1, MAX_WIDTH)
    if hidden % count:
        raise stated.refuse(heads, f"a divisor of the width {hidden}")
    dim = hidden // count
    attention = AttentionSpec(
        AttentionKind.BIDIRECTIONAL, count, count, dim, dim**-0.5, rope=None, qkv_bias=True, o_bias=True
    )
    mlp = MlpSpec(MlpKind.DENSE, inner, activation=activation, bias=True)
    return tuple(LayerSpec(index, attention, mlp) for index in range(layers))


def _read(tensors: Iterable[TensorInfo]) -> Iterable[TensorInfo]:
    """Those that an embedding reads, under the names they have in a model of their own."""
    for info in tensors:
        name = next((info.name.removeprefix(p) for p in NESTED if info.name.startswith(p)), info.name)
        if name not in UNUSED:
            yield replace(info, name=name)
