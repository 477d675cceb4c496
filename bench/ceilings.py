"""What a figure could be at best: bytes that must be read and operations that must be done, at a device's rates.

A decode step reads each weight that it uses once and each cached token of each sequence; a prompt multiplies. Rates are
those that plain copies and large products reach on a device, measured, not a data sheet's.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path

from bench.shapes import SHAPES, scaled, write_shape
from engine.spec import read_spec
from engine.spec.model_spec import AttentionKind, LayerSpec, ModelSpec
from engine.spec.tensor_table import tensor_table

EIGHT_BIT_GAIN = 2.0  # of a device's products of eight-bit numbers over those of sixteen
# What a matrix's number takes, multipliers included, by what weights are made into.
BITS = {"stored": 16.0, "fp8": 8.0, "int8": 8.0, "int8-mixed": 8.3, "int4": 4.25, "fp4": 4.5}
KV_BYTES = 2
ROUTED = "experts_"


@dataclass(frozen=True, slots=True)
class Rates:
    copy_bytes_s: float
    products_s: float  # operations of 16-bit products


RATES = {"NVIDIA H200": Rates(4.2e12, 790e12)}


@dataclass(frozen=True, slots=True)
class Work:
    num_bytes: float
    operations: float

    def seconds(self, rates: Rates, gain: float = 1.0) -> float:
        return max(self.num_bytes / rates.copy_bytes_s, self.operations / rates.products_s / gain)


def rates_of(machine: str) -> Rates | None:
    return next((rates for name, rates in RATES.items() if name in machine), None)


@cache
def shape_spec(model: str, scale: str = "full") -> ModelSpec | None:
    """Of a shape that benchmarks know. None: of none."""
    if model not in SHAPES:
        return None
    with tempfile.TemporaryDirectory(prefix="bayard-shape-") as folder:
        write_shape(Path(folder), scaled(SHAPES[model], scale))
        return read_spec(folder)


@dataclass(frozen=True, slots=True)
class Model:
    """A model as its work is counted."""

    spec: ModelSpec
    weights: str = "stored"  # of BITS

    def decode(self, batch: float, context: float) -> Work:
        """One step of so many sequences of so many tokens."""
        read, used, head = self._elements(batch)
        kept = self._cached(context)
        num_bytes = (read + head) * BITS[self.weights] / 8 + batch * kept * KV_BYTES
        return Work(num_bytes, batch * (2 * (used + head) + self._attended(context)))

    def prefill(self, tokens: float) -> Work:
        """One prompt and its first token."""
        read, used, head = self._elements(tokens)
        before = sum(self._span_sum(layer, tokens) for layer in self.spec.layers)
        return Work((read + head) * BITS[self.weights] / 8, tokens * 2 * used + 2 * head + before)

    def run_seconds(
        self, requests: int, inputs: int, outputs: int, longest_out: float, rates: Rates, gain: float = 1.0
    ) -> float:
        """All prompts, and after them all decodes at once: no fewer steps than the longest answer has tokens."""
        prompt, answer = inputs / requests, outputs / requests
        prompts = Work(0.0, requests * self.prefill(prompt).operations)
        step = self.decode(requests, prompt + answer / 2)
        weights = self.decode(requests, 0).num_bytes
        cached = (step.num_bytes - weights) * answer
        decodes = Work(weights * longest_out + cached, step.operations * answer)
        return prompts.seconds(rates, gain) + decodes.seconds(rates, gain)

    def _elements(self, rows: float) -> tuple[float, float, float]:
        """Of matrices: read for so many rows, used by each of them; and the head's."""
        read = used = head = 0.0
        for (role, layer), info in tensor_table(self.spec).items():
            count = prod(info.shape)
            if len(info.shape) < 2 or (role == "embed" and not self.spec.tie_embeddings):
                continue
            if layer is None:
                head += count
                continue
            mlp = self.spec.layers[layer].mlp
            share = mlp.experts_per_token / mlp.num_experts if role.startswith(ROUTED) and mlp.num_experts else 1.0
            read += count * (1 - (1 - share) ** rows)
            used += count * share
        return read, used, head

    def _cached(self, context: float) -> float:
        return sum(layer.attention.kv_elements_per_token() * _span(layer, context) for layer in self.spec.layers)

    def _attended(self, context: float) -> float:
        return sum(_operations(layer) * _span(layer, context) for layer in self.spec.layers)

    @staticmethod
    def _span_sum(layer: LayerSpec, tokens: float) -> float:
        """Operations of all of a prompt's tokens, each with those up to it."""
        within = _span(layer, tokens)
        return _operations(layer) * (within * within / 2 + (tokens - within) * within)


def _span(layer: LayerSpec, context: float) -> float:
    return min(context, layer.attention.window_tokens or context)


def _operations(layer: LayerSpec) -> float:
    """Of a query with one token before it: products with its key and with its value."""
    attention = layer.attention
    if attention.kind is AttentionKind.LATENT:
        return 2.0 * attention.num_heads * (2 * (attention.latent_dim or 0) + (attention.rope_head_dim or 0))
    return 4.0 * attention.num_heads * attention.head_dim
