"""ModelSpec: what a checkpoint is. Planning, page layout, loading and running all read this one description.

Read from config.json or a GGUF header without torch and without touching tensor data. Imports only the standard
library and what describes quantised matrices. Sizes are elements unless the name says bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from math import prod

from engine.spec.quantisation import Quantisation


class CheckpointFormat(StrEnum):
    GGUF = "gguf"
    HF = "hf"


class AttentionKind(StrEnum):
    FULL = "full"
    SLIDING = "sliding"
    LATENT = "latent"
    LINEAR = "linear"
    BIDIRECTIONAL = "bidirectional"  # an encoder's: each token attends to its whole text, nothing is cached


class MlpKind(StrEnum):
    DENSE = "dense"
    EXPERTS = "experts"


class PoolingKind(StrEnum):
    """Which of a text's last hidden states is its embedding."""

    CLS = "cls"  # the first
    MEAN = "mean"  # their mean
    LAST = "last"


class ExpertStorage(StrEnum):
    """How a checkpoint holds a layer's experts."""

    ONE_MATRIX_EACH = "one_matrix_each"  # gate, up and down of each, stacked or not
    TRANSPOSED = "transposed"  # stacks of transposed matrices, gate and up in turns
    MXFP4_BLOCKS = "mxfp4_blocks"  # stacks of blocks beside their scales, gate and up in turns


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary embedding. scaling holds the family's own parameters (kind "llama3", "linear", "yarn", ...)."""

    theta: float
    rotary_dim: int  # leading dimensions of a head that rotate
    scaling_kind: str = "none"
    scaling: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    kind: AttentionKind
    num_heads: int
    num_kv_heads: int
    head_dim: int  # LATENT: of a head's query and key, the rotary part last
    scale: float  # multiplies q.k
    rope: RopeSpec | None
    window_tokens: int | None = None  # SLIDING only
    softcap: float | None = None
    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: bool = False
    qk_norm_whole: bool = False  # one norm over all heads of q, one over all of k, in place of a head at a time
    sinks: bool = False
    latent_dim: int | None = None  # LATENT: compressed width that is cached
    rope_head_dim: int | None = None  # LATENT: the shared rotary part that is cached beside it
    q_latent_dim: int | None = None  # LATENT: compressed width of queries; None: they are not compressed
    value_dim: int | None = None  # LATENT: of a head's value

    def kv_elements_per_token(self) -> int:
        """Cached elements of one token in one layer, K and V together."""
        if self.kind is AttentionKind.LATENT:
            return (self.latent_dim or 0) + (self.rope_head_dim or 0)
        if self.kind in (AttentionKind.LINEAR, AttentionKind.BIDIRECTIONAL):
            return 0
        return 2 * self.num_kv_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class MlpSpec:
    kind: MlpKind
    intermediate_size: int  # of one expert for EXPERTS
    activation: str = "silu"  # of the gate: "silu", "gelu_tanh", "swiglu_clamped"; an encoder, without one, has "gelu"
    num_experts: int = 0
    experts_per_token: int = 0
    shared_intermediate_size: int = 0  # always-on experts, summed
    normalise_router: bool = True
    bias: bool = False
    router_score: str = "softmax"  # or "sigmoid"
    router_wide: bool = False  # logits are computed in float32 whatever the activations are
    router_correction: bool = False  # a bias an expert that only the choice sees
    router_scale: float = 1.0  # multiplies the chosen experts' weights
    router_groups: int = 1  # experts are chosen from the best router_groups_kept of so many groups
    router_groups_kept: int = 1
    storage: ExpertStorage = ExpertStorage.ONE_MATRIX_EACH
    router_group_top: int = 2  # a group is as good as the sum of its so many best experts


@dataclass(frozen=True, slots=True)
class LayerSpec:
    index: int
    attention: AttentionSpec
    mlp: MlpSpec


@dataclass(frozen=True, slots=True)
class PoolingSpec:
    """How a text becomes one vector, which is always brought to length one."""

    kind: PoolingKind
    prompts: tuple[tuple[str, str], ...] = ()  # by name: what the model wants before texts of some purpose
    default_prompt: str = ""  # the name of the one used when none is asked for; "": none


@dataclass(frozen=True, slots=True)
class KvScheme:
    """What a checkpoint says of the multipliers it brings for a KV cache of bytes."""

    kind: str = "fp8"  # of the codes they were made for, or "int8"
    fault: str = ""  # why they cannot be used


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One stored tensor. shape is the torch order: [out_features, in_features] for a matrix."""

    name: str  # as stored in the file
    dtype: str  # "F32", "BF16", "Q4_K", ... (GGUF names; safetensors names for HF)
    shape: tuple[int, ...]
    file: str
    offset_bytes: int  # from the start of the file
    size_bytes: int

    @property
    def num_elements(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    name: str
    architecture: str  # the family's key in engine.models, e.g. "llama"
    format: CheckpointFormat
    path: str
    files: tuple[str, ...]
    hidden_size: int
    vocab_size: int
    max_context_tokens: int
    norm_eps: float
    tie_embeddings: bool
    layers: tuple[LayerSpec, ...]
    tensors: tuple[TensorInfo, ...]
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    source_dtype: str = "F32"  # what most weight bytes are stored as
    extra: tuple[tuple[str, float], ...] = field(default=())  # family scalars, e.g. logit scaling
    quantisation: Quantisation | None = None  # of a Hugging Face folder; None: matrices are plain
    pooling: PoolingSpec | None = None  # None: the checkpoint states no way to embed a text
    generates: bool = True  # False: there are no logits, so it embeds alone
    first_position: int = 0  # an encoder's position of a text's first token
    kv_scheme: KvScheme | None = None  # None: multipliers for a KV cache, if there are some, are for E4M3

    @property
    def is_encoder(self) -> bool:
        """Whether its tokens attend both ways, so that it needs no pages and can only embed."""
        return any(layer.attention.kind is AttentionKind.BIDIRECTIONAL for layer in self.layers)

    @property
    def weight_bytes(self) -> int:
        return sum(t.size_bytes for t in self.tensors)

    @property
    def num_parameters(self) -> int:
        return sum(t.num_elements for t in self.tensors)

    def kv_bytes_per_token(self, bytes_per_element: int) -> int:
        """Cached bytes of one token over all layers, were every layer to keep every token."""
        return bytes_per_element * sum(layer.attention.kv_elements_per_token() for layer in self.layers)
