"""Traffic: what one step of a model reads and computes, by how its weights are stored.

Sorted out from the real tensor table, never from a parameter count in a name. Bytes are as stored.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from engine.spec.model_spec import AttentionKind, MlpKind, ModelSpec, TensorInfo

_EMBEDDING_NAMES = ("token_embd.", "embed_tokens.", "word_embeddings.", "wte.")
_HEAD_NAMES = ("lm_head.", "output.weight")
_EXPERT_MARKS = ("_exps.", ".experts.", "_exps_")


@dataclass(frozen=True, slots=True)
class WeightShare:
    """All matrices of one role that are stored in one way."""

    kind: str  # "Q4_1", "BF16", ...
    size_bytes: int
    elements: int


@dataclass(frozen=True, slots=True)
class Traffic:
    dense: tuple[WeightShare, ...]  # read whole in each step
    experts: tuple[WeightShare, ...]  # read as far as the router asks
    head: WeightShare | None  # runs over rows whose logits are wanted
    embedding: WeightShare | None  # one row a token
    other_bytes: int  # norms, biases
    num_experts: int
    experts_per_token: int

    @property
    def weight_bytes(self) -> int:
        shares = [*self.dense, *self.experts, self.embedding]
        if self.head is not None and self.head is not self.embedding:
            shares.append(self.head)
        return sum(share.size_bytes for share in shares if share is not None) + self.other_bytes

    def expert_fraction(self, rows: int) -> float:
        """Share of the experts that `rows` tokens touch, were the router even."""
        if not self.num_experts:
            return 0.0
        miss = 1.0 - self.experts_per_token / self.num_experts
        return 1.0 - miss ** max(rows, 0)


def traffic_of(spec: ModelSpec) -> Traffic:
    """Sort a model's tensors by what a step does with them."""
    dense: list[TensorInfo] = []
    experts: list[TensorInfo] = []
    embedding: list[TensorInfo] = []
    head: list[TensorInfo] = []
    other_bytes = 0
    for tensor in spec.tensors:
        if len(tensor.shape) < 2:
            other_bytes += tensor.size_bytes
        elif any(mark in tensor.name for mark in _EMBEDDING_NAMES):
            embedding.append(tensor)
        elif any(tensor.name.startswith(mark) for mark in _HEAD_NAMES):
            head.append(tensor)
        elif any(mark in tensor.name for mark in _EXPERT_MARKS):
            experts.append(tensor)
        else:
            dense.append(tensor)
    moe = next((layer.mlp for layer in spec.layers if layer.mlp.kind is MlpKind.EXPERTS), None)
    embedding_share = _one(embedding)
    head_share = _one(head)
    return Traffic(
        dense=_shares(dense),
        experts=_shares(experts),
        head=head_share if head_share is not None else embedding_share,
        embedding=embedding_share,
        other_bytes=other_bytes,
        num_experts=moe.num_experts if moe else 0,
        experts_per_token=moe.experts_per_token if moe else 0,
    )


def _shares(tensors: Iterable[TensorInfo]) -> tuple[WeightShare, ...]:
    sizes: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for tensor in tensors:
        sizes[tensor.dtype][0] += tensor.size_bytes
        sizes[tensor.dtype][1] += tensor.num_elements
    return tuple(WeightShare(kind, size, elements) for kind, (size, elements) in sorted(sizes.items()))


def _one(tensors: list[TensorInfo]) -> WeightShare | None:
    """Mixed storage of one role is rare; its larger kind names it."""
    shares = _shares(tensors)
    if not shares:
        return None
    kind = max(shares, key=lambda share: share.size_bytes).kind
    return WeightShare(kind, sum(s.size_bytes for s in shares), sum(s.elements for s in shares))


def kv_elements_per_token(spec: ModelSpec) -> int:
    """Cached elements of one token over all layers."""
    return sum(layer.attention.kv_elements_per_token() for layer in spec.layers)


def kv_elements_read(spec: ModelSpec, context_tokens: float) -> float:
    """Elements of the cache that one decoded token reads after `context_tokens`."""
    total = 0.0
    for layer in spec.layers:
        attention = layer.attention
        if attention.kind is AttentionKind.LINEAR:
            continue
        seen = context_tokens if attention.window_tokens is None else min(context_tokens, attention.window_tokens)
        total += seen * attention.kv_elements_per_token()
    return total


def attention_flops(spec: ModelSpec, new_tokens: int, context_tokens: float) -> float:
    """Multiply-adds times two of attention scores and values for `new_tokens` that each see `context_tokens`."""
    total = 0.0
    for layer in spec.layers:
        attention = layer.attention
        if attention.kind is AttentionKind.LINEAR:
            continue
        seen = context_tokens if attention.window_tokens is None else min(context_tokens, attention.window_tokens)
        total += 4.0 * new_tokens * seen * attention.num_heads * attention.head_dim
    return total
