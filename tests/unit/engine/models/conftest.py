"""A page pool just large enough to drive a model's forward, and small random checkpoints to drive."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.batch import ForwardBatch, GroupMeta
from engine.kernels import registry
from engine.models import Model, load_model
from engine.spec import read_spec
from engine.spec.model_spec import AttentionKind

PAGE_TOKENS = 4


class PagedHarness:
    """Sequences over one flat buffer in the real order (page, then layer), their pages handed out in shuffled order."""

    def __init__(self, model: Model, num_pages: int = 96) -> None:
        self.model = model
        layers = model.spec.layers
        attention = layers[0].attention
        planes, heads, dim = 2, attention.num_kv_heads, attention.head_dim
        if attention.kind is AttentionKind.LATENT:
            planes, heads, dim = 1, 1, attention.kv_elements_per_token()
        flat = torch.full((num_pages, len(layers), planes, heads, PAGE_TOKENS, dim), torch.nan)
        self.views = [flat[:, i] for i in range(len(layers))]
        order = torch.randperm(num_pages, generator=torch.Generator().manual_seed(7))
        self.free = order.tolist()
        self.pages: dict[int, list[int]] = {}
        self.lengths: dict[int, int] = {}

    def step(self, new_tokens: dict[int, list[int]]) -> dict[int, torch.Tensor]:
        """Feed some sequences their next tokens -> logits of every one of them, by sequence."""
        ids, positions, pages, offsets, starts, contexts = [], [], [], [], [0], []
        for sequence, tokens in new_tokens.items():
            begin = self.lengths.get(sequence, 0)
            end = begin + len(tokens)
            table = self.pages.setdefault(sequence, [])
            while len(table) * PAGE_TOKENS < end:
                table.append(self.free.pop())
            for position, token in zip(range(begin, end), tokens, strict=True):
                ids.append(token)
                positions.append(position)
                pages.append(table[position // PAGE_TOKENS])
                offsets.append(position % PAGE_TOKENS)
            self.lengths[sequence] = end
            starts.append(len(ids))
            contexts.append(end)
        width = max(len(self.pages[s]) for s in new_tokens)
        tables = torch.zeros(len(new_tokens), width, dtype=torch.int32)
        for row, sequence in enumerate(new_tokens):
            tables[row, : len(self.pages[sequence])] = torch.tensor(self.pages[sequence], dtype=torch.int32)
        batch = ForwardBatch(
            token_ids=torch.tensor(ids),
            positions=torch.tensor(positions),
            query_starts=torch.tensor(starts, dtype=torch.int32),
            context_lens=torch.tensor(contexts, dtype=torch.int32),
            logit_rows=torch.arange(len(ids)),
            groups=[GroupMeta(tables, torch.tensor(pages), torch.tensor(offsets))],
            kv_views=self.views,
            layer_groups=[0] * len(self.views),
            max_query_tokens=max(len(t) for t in new_tokens.values()),
            max_context_tokens=max(contexts),
        )
        logits = self.model.forward(batch)
        return {s: logits[starts[row] : starts[row + 1]] for row, s in enumerate(new_tokens)}

    def run(self, prompts: list[list[int]], chunk: int) -> list[torch.Tensor]:
        """Feed whole prompts, `chunk` tokens a step of each that has any left -> all logits of each prompt."""
        found: list[list[torch.Tensor]] = [[] for _ in prompts]
        for begin in range(0, max(len(p) for p in prompts), chunk):
            new = {i: p[begin : begin + chunk] for i, p in enumerate(prompts) if begin < len(p)}
            for sequence, logits in self.step(new).items():
                found[sequence].append(logits)
        return [torch.cat(parts) for parts in found]


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    """These tensors are small: a thread pool only makes such tests slow where cores are shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=["preferred", "reference"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run the test with the kernels this machine prefers, and with plain torch alone."""
    if request.param == "reference":
        monkeypatch.setattr(registry, "BACKENDS", ("engine.kernels.reference",))
        registry._loaded.cache_clear()
    yield request.param
    registry._loaded.cache_clear()


@pytest.fixture
def harness() -> Callable[..., PagedHarness]:
    return PagedHarness


@pytest.fixture
def load() -> Callable[..., Model]:
    def _load(path: Path, dtype: torch.dtype = torch.float32, **options: Any) -> Model:
        return load_model(read_spec(path), "cpu", dtype, lambda done, total: None, **options)

    return _load
