"""Family: what sets one kind of decoder apart from Llama, as data that the spec's readers and the models share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from engine.spec.fields import Fields
from engine.spec.model_spec import LayerSpec

Adapt = Callable[[Fields, tuple[LayerSpec, ...]], tuple[LayerSpec, ...]]
Scalars = Callable[[Fields], dict[str, float]]


class Bias(StrEnum):
    """Which attention projections carry a bias."""

    STATED = "stated"  # all four, or none, as attention_bias says
    STATED_QKV = "stated_qkv"  # q, k and v, or none, as attention_bias says
    QKV = "qkv"


class Window(StrEnum):
    """Which layers attend to a sliding window, when the checkpoint states one."""

    NEVER = "never"
    EVERY_LAYER = "every_layer"
    UPPER_LAYERS = "upper_layers"  # from max_window_layers up, and only if use_sliding_window
    PATTERN = "pattern"  # as layer_types says, else all but each window_period-th layer


class Norms(StrEnum):
    """Where a layer's norms stand."""

    BEFORE = "before"  # at the input of attention and MLP
    AFTER = "after"  # at their output, before it is added
    BOTH = "both"


def as_it_is(stated: Fields, layers: tuple[LayerSpec, ...]) -> tuple[LayerSpec, ...]:
    return layers


def no_scalars(stated: Fields) -> dict[str, float]:
    return {}


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    key: str  # ModelSpec.architecture, and model_type in config.json
    title: str
    hf_architectures: tuple[str, ...]
    gguf_architectures: tuple[str, ...]
    bias: Bias = Bias.STATED
    window: Window = Window.NEVER
    window_period: int = 1
    default_window: int = 0  # tokens, where the checkpoint states none; 0: no window
    norms: Norms = Norms.BEFORE
    qk_norm: bool = False  # RMS norm of each head of q and k before the rotation
    gguf_interleaved: bool = False  # GGUF stores q and k rows so that the rotation pairs neighbours
    hf_interleaved: bool = False  # so do Hugging Face folders
    partial_rotary: float | None = None  # the share of a head that rotates where none is stated; None: all, always
    fused_qkv: bool = False  # q, k and v are stored as one matrix
    fused_gate_up: bool = False  # so are gate and up
    hf_norms_below_one: bool = False  # Hugging Face folders store norm weights less one
    latent: bool = False  # attention over one compressed row a token
    experts: bool = False  # layers have experts; tells apart families of one GGUF architecture
    next_token_layers: bool = False  # checkpoints may hold layers for speculation after the last one; they are left out
    tied: bool = False  # embeddings are tied unless the checkpoint says otherwise
    quantisations: tuple[str, ...] = ()  # quant_method of a form that only this family has
    activation: str = "silu"  # of the gate: a key of ACTIVATIONS
    names: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # stored names that differ, as in tensor_table
    understands: tuple[str, ...] = ()  # further values that adapt or scalars read, by their names in config.json
    adapt: Adapt = as_it_is  # Llama's layers -> this family's
    scalars: Scalars = no_scalars  # -> ModelSpec.extra


# An activation -> the names that config.json has for it.
ACTIVATIONS: dict[str, tuple[str, ...]] = {
    "silu": ("silu",),
    "gelu_tanh": ("gelu_pytorch_tanh", "gelu_tanh"),
    "swiglu_clamped": ("silu",),
}
