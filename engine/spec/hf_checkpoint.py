"""ModelSpec of a Hugging Face folder: config.json beside safetensors files, sharded or not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from engine.spec.decoder_shape import DecoderShape, commonest_dtype
from engine.spec.encoder_checkpoint import encoder_family, hf_encoder_spec
from engine.spec.families import FAMILIES, family_named
from engine.spec.family import ACTIVATIONS, Bias, Family, Window
from engine.spec.fields import MAX_CONTEXT, MAX_LAYERS, MAX_VOCABULARY, MAX_WIDTH, Fields
from engine.spec.hf_folder import read_json, refuse_repeats, weight_files
from engine.spec.kv_scales import read_kv_scheme
from engine.spec.model_spec import CheckpointFormat, KvScheme, ModelSpec, TensorInfo
from engine.spec.pooling import decoder_pooling
from engine.spec.quantisation import Quantisation
from engine.spec.quantisation_config import read_quantisation
from engine.spec.quantisation_keys import FAMILY_KEYS, KEYS, refuse_unknown
from engine.spec.rope_fields import hf_rope
from engine.spec.safetensors_header import read_safetensors_header
from engine.spec.tensor_table import tensor_table

MAX_NEXT = 8  # layers for speculation


def hf_spec(folder: Path) -> ModelSpec:
    """Read config.json and the safetensors headers. Raises: UnsupportedFormat, ConfigError."""
    config = Fields(read_json(folder / "config.json"), f"{folder.name}/config.json")
    encoder = encoder_family(config)
    if encoder is not None:
        return hf_encoder_spec(folder, config, encoder)
    pooling = decoder_pooling(folder, config.whole("hidden_size", 1, MAX_WIDTH))
    family = family_named(_architecture(config, embeds=pooling is not None), CheckpointFormat.HF, folder.name)
    quantisation, kv_scheme = _quantisation(config, family)
    gates = ACTIVATIONS[family.activation]
    config.one_of(config.first_stated("hidden_activation", "hidden_act"), gates, gates[0])
    files = weight_files(folder)
    tensors = tuple(info for file in files for info in read_safetensors_header(file))
    refuse_repeats(folder, tensors)
    tensors = _of_whole_model(tensors)
    if family.next_token_layers:
        past = tuple(f"model.layers.{config.whole('num_hidden_layers', 1, MAX_LAYERS) + i}." for i in range(MAX_NEXT))
        tensors = tuple(info for info in tensors if not info.name.startswith(past))
    vocab_size = config.whole("vocab_size", 1, MAX_VOCABULARY)
    max_context = config.whole("max_position_embeddings", 1, MAX_CONTEXT)
    bos = config.token_ids("bos_token_id", vocab_size)
    tied = config.truth("tie_word_embeddings", family.tied)
    has_head = not _is_headless(config) and (tied or any(info.name == "lm_head.weight" for info in tensors))
    spec = ModelSpec(
        name=folder.name,
        architecture=family.key,
        format=CheckpointFormat.HF,
        path=str(folder),
        files=tuple(str(file) for file in files),
        hidden_size=config.whole("hidden_size", 1, MAX_WIDTH),
        vocab_size=vocab_size,
        max_context_tokens=max_context,
        norm_eps=config.number("rms_norm_eps", 0.0, 1.0, 1e-6),
        tie_embeddings=tied,
        layers=_shape(config, family, max_context).layers(family, config),
        tensors=tensors,
        bos_token_id=bos[0] if bos else None,
        eos_token_ids=_ends(folder, config, vocab_size),
        source_dtype=quantisation.label if quantisation else commonest_dtype(tensors),
        quantisation=quantisation,
        kv_scheme=kv_scheme,
        extra=tuple(family.scalars(config).items()),
        pooling=pooling,
        generates=has_head or pooling is None,
    )
    tensor_table(spec)
    return spec


def _architecture(config: Fields, *, embeds: bool) -> str:
    """The class name the folder states; exporters that leave it out still state model_type.

    embeds: the folder says how to pool, so the class may be one without a head
    """
    stated = config.texts("architectures")
    if stated:
        return stated[0].removesuffix("Model") + "ForCausalLM" if embeds and _is_headless(config) else stated[0]
    kind = config.text("model_type")
    return next((f.hf_architectures[0] for f in FAMILIES if f.key == kind), kind)


def _is_headless(config: Fields) -> bool:
    stated = config.texts("architectures")
    return bool(stated) and stated[0].endswith("Model")


def _of_whole_model(tensors: tuple[TensorInfo, ...]) -> tuple[TensorInfo, ...]:
    """A decoder saved without its head, as for embeddings, has its names without their beginning."""
    if any(info.name == "embed_tokens.weight" for info in tensors):
        return tuple(replace(info, name=f"model.{info.name}") for info in tensors)
    return tensors


def _quantisation(config: Fields, family: Family) -> tuple[Quantisation | None, KvScheme | None]:
    """The rules that matrices are stored by, and what multiplies a cache's codes.

    Some families have a form of their own, which their tensors show. A configuration may be of the cache alone.
    """
    stated = config.section("quantization_config") or config.section("compression_config")
    if stated is None:
        return None, None
    if stated.text("quant_method", "compressed-tensors") in family.quantisations:
        refuse_unknown(stated, FAMILY_KEYS)
        return None, None
    kv_scheme = read_kv_scheme(stated)
    if kv_scheme is not None and stated.values.get("config_groups") == {}:
        refuse_unknown(stated, KEYS["compressed-tensors"])
        return None, kv_scheme
    return read_quantisation(stated), kv_scheme


def _shape(config: Fields, family: Family, max_context: int) -> DecoderShape:
    heads = config.whole("num_attention_heads", 1, MAX_WIDTH)
    kv_heads = config.whole("num_key_value_heads", 1, heads, heads)
    if heads % kv_heads:
        raise config.refuse("num_key_value_heads", f"a divisor of the {heads} heads")
    hidden = config.whole("hidden_size", 1, MAX_WIDTH)
    head_dim = config.whole("head_dim", 2, MAX_WIDTH, max(hidden // heads, 2))
    stated_bias = config.truth("attention_bias", False)
    return DecoderShape(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=config.whole("intermediate_size", 1, MAX_WIDTH),
        rope=hf_rope(config, head_dim, max_context, partial=family.partial_rotary),
        windows=_windows(config, family),
        qkv_bias=family.bias is Bias.QKV or stated_bias,
        o_bias=family.bias is Bias.STATED and stated_bias,
        mlp_bias=config.truth("mlp_bias", False),
    )


def _windows(config: Fields, family: Family) -> tuple[int | None, ...]:
    layers = config.whole("num_hidden_layers", 1, MAX_LAYERS)
    in_use = family.window in (Window.EVERY_LAYER, Window.PATTERN) or (
        family.window is Window.UPPER_LAYERS and config.truth("use_sliding_window", False)
    )
    if not in_use or ("sliding_window" not in config and not family.default_window):
        return (None,) * layers
    window = config.whole("sliding_window", 1, MAX_CONTEXT, family.default_window)
    kinds = config.texts("layer_types")
    if kinds:
        if len(kinds) != layers or not set(kinds) <= {"full_attention", "sliding_attention"}:
            raise config.refuse("layer_types", f"{layers} of full_attention and sliding_attention")
        return tuple(window if kind == "sliding_attention" else None for kind in kinds)
    if family.window is Window.PATTERN:
        period = config.whole("sliding_window_pattern", 1, MAX_LAYERS, family.window_period)
        return tuple(window if (i + 1) % period else None for i in range(layers))
    first = config.whole("max_window_layers", 0, MAX_LAYERS, 0) if family.window is Window.UPPER_LAYERS else 0
    return tuple(window if i >= first else None for i in range(layers))


def _ends(folder: Path, config: Fields, vocab_size: int) -> tuple[int, ...]:
    """End-of-sequence ids of config.json and of generation_config.json, which chat models often extend."""
    found = list(config.token_ids("eos_token_id", vocab_size))
    path = folder / "generation_config.json"
    if path.is_file():
        found += Fields(read_json(path), f"{folder.name}/{path.name}").token_ids("eos_token_id", vocab_size)
    return tuple(dict.fromkeys(found))
