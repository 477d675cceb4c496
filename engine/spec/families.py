"""The decoder families Bayard knows, as data: what their checkpoints are called and how they differ from Llama."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from enum import StrEnum

from engine.errors import UnsupportedFormat
from engine.spec.model_spec import CheckpointFormat


class Bias(StrEnum):
    """Which attention projections carry a bias."""

    STATED = "stated"  # all four, or none, as attention_bias says
    QKV = "qkv"


class Window(StrEnum):
    """Which layers attend to a sliding window, when the checkpoint states one."""

    NEVER = "never"
    EVERY_LAYER = "every_layer"
    UPPER_LAYERS = "upper_layers"  # from max_window_layers up, and only if use_sliding_window


@dataclass(frozen=True, slots=True)
class Family:
    key: str  # ModelSpec.architecture
    title: str
    hf_architectures: tuple[str, ...]
    gguf_architectures: tuple[str, ...]
    bias: Bias = Bias.STATED
    window: Window = Window.NEVER
    qk_norm: bool = False  # RMS norm of each head of q and k before the rotation
    gguf_interleaved: bool = False  # GGUF stores q and k rows so that the rotation pairs neighbours


FAMILIES: tuple[Family, ...] = (
    Family("llama", "Llama 2, 3 and relatives", ("LlamaForCausalLM",), ("llama",), gguf_interleaved=True),
    Family("mistral", "Mistral", ("MistralForCausalLM",), (), window=Window.EVERY_LAYER),
    Family("qwen2", "Qwen2, Qwen2.5", ("Qwen2ForCausalLM",), ("qwen2",), bias=Bias.QKV, window=Window.UPPER_LAYERS),
    Family("qwen3", "Qwen3", ("Qwen3ForCausalLM",), ("qwen3",), qk_norm=True, window=Window.UPPER_LAYERS),
)


def family_of(key: str) -> Family:
    """The family with a ModelSpec's architecture key."""
    return next(f for f in FAMILIES if f.key == key)


def family_named(architecture: str, stored_as: CheckpointFormat, model: str) -> Family:
    """The family of a stored architecture name. Raises: UnsupportedFormat, naming the nearest that works."""
    known = {
        name: family
        for family in FAMILIES
        for name in (family.hf_architectures if stored_as is CheckpointFormat.HF else family.gguf_architectures)
    }
    if architecture in known:
        return known[architecture]
    nearest = difflib.get_close_matches(architecture, known, n=1, cutoff=0.5)
    shown = architecture if len(architecture) <= 80 else architecture[:77] + "..."
    raise UnsupportedFormat(
        f"{model} has the architecture {shown!r}, which is not supported; supported are {', '.join(sorted(known))}.",
        f"The nearest that works is {nearest[0]}." if nearest else "Import a model of a supported architecture.",
    )
