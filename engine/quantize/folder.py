"""What stands beside the weights of a written folder: configuration, tokenizer, chat template."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders

from engine.errors import UnsupportedFormat
from engine.quantize.texts import calibration_text
from engine.spec import read_spec
from engine.spec.families import family_of
from engine.spec.gguf_header import read_gguf_header
from engine.spec.model_spec import CheckpointFormat, ModelSpec
from engine.text.gguf_tokenizer import parts_from_gguf
from engine.text.loading import load_text
from engine.text.spelling import Spelling

COPIED = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "LICENSE",
    "LICENSE.txt",
    "NOTICE",
)
COPIED_FOLDERS = ("additional_chat_templates",)
WRITTEN_NAMES = ("config.json", *COPIED, *COPIED_FOLDERS)


def write_beside(spec: ModelSpec, folder: Path, quantisation: dict[str, Any]) -> None:
    """Everything but the weights. Raises: UnsupportedFormat where a GGUF file says what a folder cannot."""
    if spec.format is CheckpointFormat.HF:
        source = Path(spec.path)
        config = json.loads((source / "config.json").read_text(encoding="utf-8"))
        for name in COPIED:
            if (source / name).is_file():
                shutil.copyfile(source / name, folder / name)
        for name in COPIED_FOLDERS:
            if (source / name).is_dir():
                shutil.copytree(source / name, folder / name, dirs_exist_ok=True)
    else:
        config = config_of(spec)
        _write_tokenizer(spec, folder)
    _write(folder / "config.json", config | {"quantization_config": quantisation})


def config_of(spec: ModelSpec) -> dict[str, Any]:
    """config.json of a model that a GGUF file describes. What reads back otherwise is refused by check_folder."""
    first = spec.layers[0]
    attention, rope = first.attention, first.attention.rope
    family = family_of(spec.architecture)
    if rope is None or rope.scaling_kind not in ("none", "linear"):
        raise UnsupportedFormat(
            f"{spec.name} stretches its rotation by {'nothing' if rope is None else rope.scaling_kind}, which the "
            "GGUF file states in tensors that folders do not have.",
            "Take the Hugging Face folder of the same model.",
        )
    config: dict[str, Any] = {
        "architectures": [family.hf_architectures[0]],
        "model_type": family.key,
        "hidden_act": "silu",
        "hidden_size": spec.hidden_size,
        "intermediate_size": first.mlp.intermediate_size,
        "num_hidden_layers": len(spec.layers),
        "num_attention_heads": attention.num_heads,
        "num_key_value_heads": attention.num_kv_heads,
        "head_dim": attention.head_dim,
        "max_position_embeddings": spec.max_context_tokens,
        "rms_norm_eps": spec.norm_eps,
        "rope_theta": rope.theta,
        "tie_word_embeddings": spec.tie_embeddings,
        "vocab_size": spec.vocab_size,
        "attention_bias": attention.o_bias,
        "mlp_bias": first.mlp.bias,
        "bos_token_id": spec.bos_token_id,
        "eos_token_id": list(spec.eos_token_ids),
        "torch_dtype": "float16",
    }
    if rope.scaling_kind == "linear":
        config["rope_scaling"] = {"rope_type": "linear", "factor": dict(rope.scaling)["factor"]}
    if any(layer.attention.window_tokens for layer in spec.layers):
        config["sliding_window"] = next(la.attention.window_tokens for la in spec.layers if la.attention.window_tokens)
    return config


def check_folder(spec: ModelSpec, folder: Path) -> None:
    """Read the folder back. Raises: UnsupportedFormat where it describes another model, or other tokens."""
    written = read_spec(folder)
    for what in ("layers", "hidden_size", "vocab_size", "norm_eps", "tie_embeddings", "extra", "kv_scheme"):
        if getattr(written, what) != getattr(spec, what):
            raise UnsupportedFormat(
                f"{spec.name}: the written folder reads back with other {what}.",
                "Take the Hugging Face folder of the same model.",
            )
    if spec.format is CheckpointFormat.GGUF:
        text = calibration_text()
        if load_text(written).encode(text) != load_text(spec).encode(text):
            raise UnsupportedFormat(
                f"{spec.name}: the written tokenizer cuts text otherwise than the GGUF file's.",
                "Take the Hugging Face folder of the same model.",
            )


def _write_tokenizer(spec: ModelSpec, folder: Path) -> None:
    parts = parts_from_gguf(
        read_gguf_header(Path(spec.path)).metadata, architecture=spec.architecture, source=spec.name
    )
    if parts.table.spelling is not Spelling.BYTE_LEVEL:
        raise UnsupportedFormat(
            f"{spec.name} has a vocabulary of the sentencepiece kind; a folder's tokenizer is not written from it.",
            "Take the Hugging Face folder of the same model.",
        )
    described = json.loads(parts.head.to_str())
    vocabulary = described["model"]["vocab"]
    for token in parts.specials:
        vocabulary.setdefault(token.text, token.token_id)
    complete = Tokenizer.from_str(json.dumps(described))
    complete.decoder = decoders.ByteLevel()
    for token in parts.specials:
        complete.add_special_tokens([AddedToken(token.text, special=token.control, normalized=False)])
    complete.save(str(folder / "tokenizer.json"))
    _write(folder / "tokenizer_config.json", {**parts.special_names, "add_bos_token": bool(parts.prefix_ids)})
    if "default" in parts.templates:
        (folder / "chat_template.jinja").write_text(parts.templates["default"], encoding="utf-8")


def _write(path: Path, found: dict[str, Any]) -> None:
    path.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
