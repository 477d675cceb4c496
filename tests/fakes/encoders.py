"""Small random encoders as sentence-transformers publishes them, and what transformers makes of their texts."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import gguf
import torch
import transformers

from engine.spec.encoder_families import LAYER_NAMES, MODEL_NAMES

VOCABULARY = 97
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 66,
    "type_vocab_size": 2,
    "initializer_range": 0.2,
    "pad_token_id": 1,
}
POOLINGS = {"mean": "mean_tokens", "cls": "cls_token", "last": "lasttoken"}
CASES = {
    "bert": ("Bert", "mean", {}),
    "bert-cls-tanh": ("Bert", "cls", {"hidden_act": "gelu_new"}),
    "roberta": ("Roberta", "mean", {}),
    "xlm-roberta": ("XLMRoberta", "cls", {}),
}


def texts(count: int = 9, longest: int = 60) -> list[list[int]]:
    draw = random.Random(3)
    lengths = [1, longest, *(draw.randrange(2, longest) for _ in range(count - 2))]
    return [[draw.randrange(2, VOCABULARY) for _ in range(length)] for length in lengths]


def saved_encoder(name: str, folder: Path, **sizes: Any) -> Any:
    """A random encoder with its pooling, saved into folder."""
    family, pooling, changes = CASES[name]
    config = getattr(transformers, f"{family}Config")(**(SIZES | changes | sizes), attn_implementation="eager")
    torch.manual_seed(7)
    model = getattr(transformers, f"{family}Model")(config).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "LayerNorm" in parameter_name or "bias" in parameter_name:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    model.save_pretrained(folder)
    write_pooling(folder, pooling)
    return model


def write_pooling(folder: Path, pooling: str, *, more: tuple[str, ...] = ("Normalize",)) -> None:
    kinds = ["Transformer", "Pooling", *more]
    steps = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else "", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(steps))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    modes = {f"pooling_mode_{mode}": mode == POOLINGS[pooling] for mode in POOLINGS.values()}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(modes))


def true_vector(model: Any, text: list[int], pooling: str) -> torch.Tensor:
    """[hidden], of length one"""
    with torch.no_grad():
        states = model(torch.tensor([text])).last_hidden_state[0].float()
    pooled = {"mean": states.mean(0), "cls": states[0], "last": states[-1]}[pooling]
    return pooled / pooled.norm()


def write_gguf_encoder(path: Path, model: Any, stored: gguf.GGMLQuantizationType, **more: int) -> None:
    """Write an encoder as converters do, and put what the quantised matrices decode to back into it."""
    config = model.config
    writer = gguf.GGUFWriter(path, "bert")
    values = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "block_count": config.num_hidden_layers,
        "attention.head_count": config.num_attention_heads,
        "pooling_type": 2,
    }
    for key, value in (values | more).items():
        writer.add_uint32(f"bert.{key}", value)
    writer.add_float32("bert.attention.layer_norm_epsilon", config.layer_norm_eps)
    writer.add_bool("bert.attention.causal", False)
    names = {hf: ours for ours, hf in MODEL_NAMES.values()}
    for ours, hf in LAYER_NAMES.values():
        for i in range(config.num_hidden_layers):
            for end in ("weight", "bias"):
                names[f"encoder.layer.{i}.{hf}.{end}"] = f"blk.{i}.{ours}.{end}"
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name not in names:
                continue
            array = parameter.numpy()
            quantised = array.ndim == 2 and "position" not in name and "token_type" not in name
            kind = stored if quantised else gguf.GGMLQuantizationType.F32
            rows = gguf.quants.quantize(array, kind)
            parameter.copy_(torch.from_numpy(gguf.quants.dequantize(rows, kind).reshape(array.shape).copy()))
            writer.add_tensor(names[name], rows, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
