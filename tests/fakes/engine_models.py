"""Small stand-ins for a model: specs without a checkpoint, and a model whose next token depends on all it can see.

HashModel writes each token's id into the pages and answers from what attention would read back, so a wrong page, a
lost write or a wrong window changes its tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from engine.batch import ForwardBatch
from engine.core import EngineCore
from engine.devices.cpu import CpuDevice
from engine.grammar import GrammarCompiler
from engine.kv.layout import solve_layout
from engine.messages import Knobs
from engine.spec.model_spec import (
    AttentionKind,
    AttentionSpec,
    CheckpointFormat,
    LayerSpec,
    MlpKind,
    MlpSpec,
    ModelSpec,
    RopeSpec,
)

VOCAB = 97


class GraphDevice(CpuDevice):
    """A CPU that captures: replaying a graph runs it again and leaves its result where the capture left it."""

    def __init__(self) -> None:
        super().__init__()
        self.capabilities = replace(self.capabilities, graphs=True)
        self.captures = 0
        self.replays = 0

    def capture_graph(self, run, memory):
        self.captures += 1
        result = run().clone()
        return (run, result), result, memory

    def copy_to_host(self, tensor):
        return super().copy_to_host(tensor.clone())  # taken in order, before a later replay overwrites it

    def replay_graph(self, graph):
        self.replays += 1
        run, result = graph
        result.copy_(run())


def attention(kind: AttentionKind = AttentionKind.FULL, heads: int = 1, dim: int = 2, window: int | None = None):
    rope = RopeSpec(10000.0, dim)
    return AttentionSpec(kind, heads, heads, dim, dim**-0.5, rope, window_tokens=window)


def spec_of(*layers: AttentionSpec, vocab: int = VOCAB, context: int = 4096) -> ModelSpec:
    mlp = MlpSpec(MlpKind.DENSE, 8)
    return ModelSpec(
        name="tiny",
        architecture="llama",
        format=CheckpointFormat.HF,
        path="",
        files=(),
        hidden_size=8,
        vocab_size=vocab,
        max_context_tokens=context,
        norm_eps=1e-5,
        tie_embeddings=True,
        layers=tuple(LayerSpec(i, layer, mlp) for i, layer in enumerate(layers)),
        tensors=(),
    )


@dataclass
class HashModel:
    spec: ModelSpec
    vocab: int = VOCAB
    broken_ids: frozenset[int] = frozenset()  # a sequence ending in one of these gets NaN logits
    habit: bool = False  # mostly goes round in a small circle, so that guesses are often right

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        for layer in self.spec.layers:
            view = batch.kv_views[layer.index]
            group = batch.groups[batch.layer_groups[layer.index]]
            value = (batch.token_ids + 1 + 7 * layer.index).to(view.dtype)
            view[group.write_pages, 0, 0, group.write_offsets, 0] = value
        # No two alike: which of two equal logits a filter keeps is nobody's promise.
        logits = (torch.arange(self.vocab) * 1e-3).repeat(len(batch.logit_rows), 1)
        starts = batch.query_starts.tolist()
        for out, row in enumerate(batch.logit_rows.tolist()):
            sequence = next(i for i in range(batch.num_sequences) if starts[i] <= row < starts[i + 1])
            length = int(batch.positions[row]) + 1
            state = 17
            for layer in self.spec.layers:
                group = batch.groups[batch.layer_groups[layer.index]]
                window = layer.attention.window_tokens
                first = 0 if window is None else max(0, length - window)
                view = batch.kv_views[layer.index]
                size = view.shape[3]
                table = group.block_tables[sequence].tolist()
                for position in range(first, length):
                    seen = int(view[table[position // size], 0, 0, position % size, 0])
                    state = (state * 31 + seen * (position + 3)) % 1_000_003
            chosen = state % self.vocab
            if self.habit and state % 9:
                chosen = (int(batch.token_ids[row]) * 5 + 1) % 11
            logits[out, chosen] = 5.0
            logits[out, (state // 7) % self.vocab] += 3.0
            if int(batch.token_ids[row]) in self.broken_ids:
                logits[out] = float("nan")
        return logits


def core_of(
    spec: ModelSpec,
    *,
    large_pages: int = 64,
    page_tokens: int = 4,
    knobs: Knobs | None = None,
    max_context: int = 4096,
    model: HashModel | None = None,
    device: CpuDevice | None = None,
    overlap: bool | None = None,
    grammars: GrammarCompiler | None = None,
    swap_large_pages: int = 0,
    clock: Callable[[], float] = time.monotonic,
) -> EngineCore:
    layout = solve_layout(spec, bytes_per_element=4, page_tokens=page_tokens)
    return EngineCore(
        model or HashModel(spec),
        layout,
        num_large_pages=large_pages,
        kv_dtype=torch.float32,
        device=device or CpuDevice(),
        overlap=overlap,
        knobs=knobs or Knobs(max_running=8, token_budget=32, prefill_chunk=16),
        max_context_tokens=max_context,
        vocab_size=spec.vocab_size,
        grammars=grammars,
        swap_bytes=swap_large_pages * layout.large_page_elements * 4,
        clock=clock,
    )
