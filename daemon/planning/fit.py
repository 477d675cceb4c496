"""Memory of a profile, from the real tensor table and the real page size; never from a parameter count."""

from __future__ import annotations

from dataclasses import dataclass

from daemon.planning.kv_bytes import kv_bytes_per_token
from daemon.planning.profile import MemoryEstimate, MemoryItem
from daemon.planning.traffic import Traffic
from daemon.planning.units import human_bytes, human_tokens
from engine.messages import Knobs
from engine.spec.model_spec import ModelSpec

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

_PLAIN_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
# Where the CPU kernels' form of a block is larger than the file's.
_CPU_PACKED = {"Q4_K": 37 / 36, "Q5_K": 45 / 44}

WEIGHTS = "weights"
KV_PAGES = "KV pages"
ACTIVATIONS = "activations"
RUNTIME = "runtime"

# Resident on the host beside weights, pages and activations, measured: interpreter, torch and libraries once a model is
# loaded, and what the first steps add to that (thread stacks, allocators, code paged in). Pages of the model's own
# files, where rows of an embedding table are read beside the packed head, are the system's to take back: not counted.
_CPU_LOADED_BYTES = 254 << 20
_CPU_WARM_BYTES = 12 << 20
# Context, libraries and graphs of a CUDA process on the device.
_GPU_RUNTIME_BYTES = 900 << 20
# What allocators keep beyond the live peak of a step.
_ACTIVATION_SLACK = 1.3


@dataclass(frozen=True, slots=True)
class FitModel:
    """Predicts peak memory of one model on one kind of device. Owner: one planning answer."""

    spec: ModelSpec
    traffic: Traffic
    on_cpu: bool
    dtype: str
    kv_dtype: str
    page_tokens: int
    correction_bytes: int = 0  # measured peak minus prediction of an earlier run of this model here
    known_weights: MemoryItem | None = None  # weights(), worked out before: of thousands of tensors it takes a while

    @property
    def kv_bytes_per_token(self) -> int:
        return kv_bytes_per_token(self.spec, self.kv_dtype)

    @property
    def page_bytes(self) -> int:
        return self.kv_bytes_per_token * self.page_tokens

    def pages_for(self, tokens: int) -> int:
        return -(-tokens // self.page_tokens)

    def weights(self) -> MemoryItem:
        """Weights as the worker holds them: blocks stay as stored, plain numbers are at most as wide as activations."""
        if self.known_weights is not None:
            return self.known_weights
        held = 0
        for tensor in self.spec.tensors:
            if len(tensor.shape) < 2:
                held += tensor.num_elements * 4
            else:
                held += self._matrix_bytes(tensor.dtype, tensor.num_elements, tensor.size_bytes)
        return MemoryItem(WEIGHTS, held, f"{len(self.spec.tensors)} tensors, mostly {self.spec.source_dtype}")

    def _matrix_bytes(self, kind: str, elements: int, stored_bytes: int) -> int:
        if kind in _PLAIN_BYTES:
            return elements * min(_PLAIN_BYTES[kind], DTYPE_BYTES[self.dtype])
        return int(stored_bytes * _CPU_PACKED.get(kind, 1.0)) if self.on_cpu else stored_bytes

    def activations(self, knobs: Knobs) -> MemoryItem:
        """Peak of a step's live tensors: the widest point of a layer, or the logits."""
        tokens = knobs.token_budget
        hidden = self.spec.hidden_size
        widest = 0
        for layer in self.spec.layers:
            attention = layer.attention
            qkv = (attention.num_heads + 2 * attention.num_kv_heads) * attention.head_dim
            mixed = qkv + attention.num_heads * attention.head_dim
            active = max(1, layer.mlp.experts_per_token)
            mlp = 3 * layer.mlp.intermediate_size * active + 3 * layer.mlp.shared_intermediate_size
            widest = max(widest, mixed, mlp)
        element = DTYPE_BYTES[self.dtype]
        layer_bytes = tokens * (3 * hidden + widest) * element
        rows = min(knobs.max_running, knobs.token_budget)
        # Logits, their sorted copy and the probabilities.
        logits_bytes = rows * self.spec.vocab_size * 4 * 3 if self.spec.generates else 0
        size = int(_ACTIVATION_SLACK * (layer_bytes + logits_bytes))
        return MemoryItem(
            ACTIVATIONS,
            size,
            f"a step of {tokens:,} tokens, {rows:,} {'rows of logits' if self.spec.generates else 'texts'}",
        )

    def runtime(self) -> MemoryItem:
        size = _CPU_LOADED_BYTES + _CPU_WARM_BYTES if self.on_cpu else _GPU_RUNTIME_BYTES
        size = max(0, size + self.correction_bytes)
        detail = "interpreter and libraries" if self.on_cpu else "device context, libraries and graphs"
        if self.correction_bytes:
            detail += f", corrected by a measured {human_bytes(self.correction_bytes)}"
        return MemoryItem(RUNTIME, size, detail)

    def loaded_bytes(self) -> int:
        """Resident memory of a CPU worker that has loaded the model and computed nothing: no page is touched yet."""
        return self.weights().size_bytes + _CPU_LOADED_BYTES

    def allocated_bytes(self, knobs: Knobs, kv_tokens: int) -> int:
        """What an accelerator's allocator holds of a warm worker: all but the device's context and libraries."""
        return self.estimate(knobs, kv_tokens).total_bytes - self.runtime().size_bytes

    def kv(self, kv_tokens: int) -> MemoryItem:
        if self.spec.is_encoder:
            return MemoryItem(KV_PAGES, 0, "none: an encoder keeps nothing of a text")
        pages = self.pages_for(kv_tokens)
        detail = f"{human_tokens(kv_tokens)} tokens at {human_bytes(self.kv_bytes_per_token)}, {self.kv_dtype}"
        return MemoryItem(KV_PAGES, pages * self.page_bytes, detail)

    def fixed_bytes(self, knobs: Knobs) -> int:
        """Everything but the KV pool."""
        return self.weights().size_bytes + self.activations(knobs).size_bytes + self.runtime().size_bytes

    def estimate(self, knobs: Knobs, kv_tokens: int) -> MemoryEstimate:
        items = (self.weights(), self.kv(kv_tokens), self.activations(knobs), self.runtime())
        return MemoryEstimate(items, self.kv_bytes_per_token)

    def kv_tokens_within(self, budget_bytes: int, knobs: Knobs) -> int:
        """Tokens of KV that fit beside everything else, in whole pages; 0 where nothing fits."""
        left = budget_bytes - self.fixed_bytes(knobs)
        if left <= 0:
            return 0
        if self.page_bytes == 0:
            return 1 << 40  # a model that caches nothing per token
        return left // self.page_bytes * self.page_tokens
