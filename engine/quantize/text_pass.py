"""One text through a model: batches of windows with pages of their own, and a model that holds a layer at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from engine.batch import ForwardBatch, GroupMeta
from engine.errors import UnsupportedFormat
from engine.kernels.cpu.memory import begin_new_chunk
from engine.kv.layout import PageLayout, solve_layout
from engine.layers.embedding import Embedding
from engine.layers.linear import Linear, Observer
from engine.models import loading
from engine.models.checkpoint import Progress, check_size
from engine.models.decoder import Decoder
from engine.models.loading import BUILDERS, Model, op_query
from engine.models.parts import Parts
from engine.models.streamed_layers import StreamedLayers
from engine.spec.model_spec import LayerSpec, ModelSpec

WINDOW_TOKENS = 512
STEP_TOKENS = 512  # what a layer makes of them is many times what it is given


def window_tokens(*specs: ModelSpec) -> int:
    """How long windows are that all of these models can read."""
    return min(WINDOW_TOKENS, *(spec.max_context_tokens for spec in specs))


def windows_of(tokens: Sequence[int], longest: int) -> list[list[int]]:
    """The text cut in windows, none of a single token: there is nothing to predict in it. longest: see window_tokens"""
    cut = [list(tokens[start : start + longest]) for start in range(0, len(tokens), longest)]
    return [window for window in cut if len(window) > 1]


def batch_of(
    spec: ModelSpec, windows: Sequence[Sequence[int]], device: torch.device, dtype: torch.dtype
) -> ForwardBatch:
    """A step that feeds whole windows, each a sequence, and asks for all their logits."""
    layout = solve_layout(spec, bytes_per_element=dtype.itemsize)
    large = _large_pages(layout, sum(_blocks(layout, window) for window in windows))
    views = layout.views(torch.zeros(large * layout.large_page_elements, dtype=dtype, device=device), large)
    return _step(layout, windows, 0, views, device, asks_logits=True)


def learning_steps(
    spec: ModelSpec, windows: Sequence[Sequence[int]], device: torch.device, dtype: torch.dtype, *, whole_cache: bool
) -> list[ForwardBatch]:
    """Steps that feed whole windows, about STEP_TOKENS each, and ask for no logits.

    A layer's cache is that of the next too: of long texts all layers' keys and values are gigabytes.
    whole_cache: a layer's cache holds all steps' keys and values; else each step's are written over the last one's
    """
    layout = solve_layout(spec, bytes_per_element=dtype.itemsize)
    groups: list[list[Sequence[int]]] = []
    for window in windows:
        if not groups or sum(map(len, groups[-1])) + len(window) > STEP_TOKENS:
            groups.append([])
        groups[-1].append(window)
    blocks = [sum(_blocks(layout, window) for window in group) for group in groups]
    large = _large_pages(layout, sum(blocks) if whole_cache else max(blocks))
    views = _one_for_all(layout, large, device, dtype)
    firsts = [sum(blocks[:index]) if whole_cache else 0 for index in range(len(groups))]
    return [
        _step(layout, group, first, views, device, asks_logits=False)
        for group, first in zip(groups, firsts, strict=True)
    ]


def _blocks(layout: PageLayout, window: Sequence[int]) -> int:
    return -(-len(window) // layout.page_tokens)


def _large_pages(layout: PageLayout, blocks: int) -> int:
    return max(-(-blocks // group.ratio) for group in layout.groups) + 1


def _step(
    layout: PageLayout,
    windows: Sequence[Sequence[int]],
    first: int,
    views: Sequence[Tensor],
    device: torch.device,
    *,
    asks_logits: bool,
) -> ForwardBatch:
    """Windows whose pages lie side by side from the page first on."""
    size = layout.page_tokens
    blocks = [_blocks(layout, window) for window in windows]
    table = torch.zeros(len(windows), max(blocks), dtype=torch.int32)
    pages, offsets, positions = [], [], []
    for row, window in enumerate(windows):
        table[row, : blocks[row]] = torch.arange(first, first + blocks[row], dtype=torch.int32)
        places = torch.arange(len(window))
        pages.append(first + places // size)
        offsets.append(places % size)
        positions.append(places)
        first += blocks[row]
    index = torch.int64 if device.type == "cpu" else torch.int32
    lengths = torch.tensor([len(window) for window in windows], dtype=torch.int32)
    starts = torch.cat((torch.zeros(1, dtype=torch.int32), lengths.cumsum(0).to(torch.int32)))
    group = GroupMeta(table.to(device), torch.cat(pages).to(device, index), torch.cat(offsets).to(device, index))
    return ForwardBatch(
        token_ids=torch.tensor([token for window in windows for token in window], device=device, dtype=index),
        positions=torch.cat(positions).to(device, index),
        query_starts=starts.to(device),
        context_lens=lengths.to(device),
        logit_rows=torch.arange(int(lengths.sum()) if asks_logits else 0, device=device, dtype=index),
        groups=[group] * len(layout.groups),
        kv_views=list(views),
        layer_groups=list(layout.layer_groups),
        max_query_tokens=int(lengths.max()),
        max_context_tokens=int(lengths.max()),
    )


def _one_for_all(layout: PageLayout, large: int, device: torch.device, dtype: torch.dtype) -> list[Tensor]:
    """A view a layer, all of one memory where they are of one shape: each layer's numbers until the next one's."""
    shapes = [
        (large * group.ratio, group.planes, group.num_kv_heads, layout.page_tokens, group.head_dim)
        for group in layout.groups
    ]
    kept = {shape: torch.zeros(shape, dtype=dtype, device=device) for shape in set(shapes)}
    return [kept[shapes[index]] for index in layout.layer_groups]


def logits_of(model: Model, batch: ForwardBatch) -> Tensor:
    """-> [R, vocab] float32"""
    return model.forward(batch)


@torch.inference_mode()
def pass_through(
    spec: ModelSpec,
    steps: Sequence[ForwardBatch],
    device: torch.device,
    dtype: torch.dtype,
    observer: Observer,
    passed: Callable[[int], None],
    progress: Progress,
    capabilities: frozenset[str] = frozenset(),
) -> None:
    """All steps through a layer before the next one is made, the observer being shown each projection's input.

    What is held beside the layer is the text's states, and what a layer makes of one step.
    passed: is given each layer's index when all steps have been through it and it is no longer held
    Raises: UnsupportedFormat, ConfigError
    """
    layers, embedded, through = _streamed(spec, device, dtype, observer, progress, capabilities)
    states = torch.empty(sum(step.num_tokens for step in steps), spec.hidden_size, dtype=dtype, device=device)
    parts = states.split([step.num_tokens for step in steps])  # type: ignore[no-untyped-call]
    for part, step in zip(parts, steps, strict=True):
        part.copy_(embedded(step))
    for layer in spec.layers:
        layers.hold(layer.index)
        for part, step in zip(parts, steps, strict=True):
            added, residual = through(part, step)
            torch.add(residual, added, out=part)
            del added, residual
        layers.let_go()
        begin_new_chunk()
        passed(layer.index)


def _streamed(
    spec: ModelSpec,
    device: torch.device,
    dtype: torch.dtype,
    observer: Observer,
    progress: Progress,
    capabilities: frozenset[str],
) -> tuple[
    StreamedLayers[Any],
    Callable[[ForwardBatch], Tensor],
    Callable[[Tensor, ForwardBatch], tuple[Tensor, Tensor]],
]:
    """A model's layers, one at a time; what embeds a step's tokens; and what takes states through the layer held."""
    builder = BUILDERS.get(spec.architecture)
    if builder is None or not (isinstance(builder, type) and issubclass(builder, Decoder)):
        raise UnsupportedFormat(
            f"{spec.name}: models of the architecture {spec.architecture} are not run layer by layer.",
            "Choose fp8, int8 or int4 without calibration.",
        )
    check_size(spec)

    class WatchedParts(builder.parts_of):  # type: ignore[name-defined,misc]
        def embedding_and_head(self) -> tuple[Embedding, Linear]:
            """No head: it may be larger than a layer, and nobody asks for logits."""
            if not self.spec.tie_embeddings:
                self.checkpoint.passed(["lm_head"], None)
            return self.ops.embedding(self.matrix("embed")), Linear([], 0)

    WatchedParts.observer = staticmethod(observer)

    class StreamedDecoder(builder):  # type: ignore[valid-type,misc]
        parts_of = WatchedParts
        streams = True

        def in_order(self, parts: Parts, make: Callable[[Parts, LayerSpec], Any]) -> Sequence[Any]:
            self.streamed = super().in_order(parts, make)
            return self.streamed  # type: ignore[no-any-return]

    query = op_query(spec, device, dtype, None, "exact", capabilities)
    checkpoint = loading.MappedCheckpoint(spec, progress)  # by its module: benchmarks put random weights there
    made = StreamedDecoder(spec, checkpoint, device, dtype, query, WINDOW_TOKENS)
    return made.streamed, made._embedded, made._through_layers
