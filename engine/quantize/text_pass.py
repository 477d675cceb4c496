"""One text through a model: a batch of windows with pages of their own, and a model that holds a layer at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from engine.batch import ForwardBatch, GroupMeta
from engine.errors import UnsupportedFormat
from engine.kv.layout import PageLayout, solve_layout
from engine.layers.experts import ExpertsMlp
from engine.layers.linear import Observer
from engine.layers.mlp import GatedMlp
from engine.models import loading
from engine.models.checkpoint import Progress, check_size
from engine.models.decoder import Decoder
from engine.models.loading import BUILDERS, Model, op_query
from engine.models.parts import Parts
from engine.spec.model_spec import LayerSpec, ModelSpec

WINDOW_TOKENS = 512
PIECE_TOKENS = 512


def window_tokens(*specs: ModelSpec) -> int:
    """How long windows are that all of these models can read."""
    return min(WINDOW_TOKENS, *(spec.max_context_tokens for spec in specs))


def windows_of(tokens: Sequence[int], longest: int) -> list[list[int]]:
    """The text cut in windows, none of a single token: there is nothing to predict in it. longest: see window_tokens"""
    cut = [list(tokens[start : start + longest]) for start in range(0, len(tokens), longest)]
    return [window for window in cut if len(window) > 1]


def batch_of(
    spec: ModelSpec,
    windows: Sequence[Sequence[int]],
    device: torch.device,
    dtype: torch.dtype,
    *,
    learning: bool = False,
) -> ForwardBatch:
    """A step that feeds whole windows, each a sequence, and asks for all their logits.

    learning: no logits are asked for, and a layer's cache is that of the next too: of long texts
    all logits, and all layers' keys and values, are gigabytes
    """
    layout = solve_layout(spec, bytes_per_element=dtype.itemsize)
    size = layout.page_tokens
    blocks = [-(-len(window) // size) for window in windows]
    most = max(blocks)
    table = torch.zeros(len(windows), most, dtype=torch.int32)
    pages, offsets, positions = [], [], []
    first = 0
    for row, window in enumerate(windows):
        table[row, : blocks[row]] = torch.arange(first, first + blocks[row], dtype=torch.int32)
        places = torch.arange(len(window))
        pages.append(first + places // size)
        offsets.append(places % size)
        positions.append(places)
        first += blocks[row]
    large = max(-(-first // group.ratio) for group in layout.groups) + 1
    if learning:
        views = _one_for_all(layout, large, device, dtype)
    else:
        views = layout.views(torch.zeros(large * layout.large_page_elements, dtype=dtype, device=device), large)
    index = torch.int64 if device.type == "cpu" else torch.int32
    lengths = torch.tensor([len(window) for window in windows], dtype=torch.int32)
    starts = torch.cat((torch.zeros(1, dtype=torch.int32), lengths.cumsum(0).to(torch.int32)))
    group = GroupMeta(table.to(device), torch.cat(pages).to(device, index), torch.cat(offsets).to(device, index))
    total = int(lengths.sum())
    return ForwardBatch(
        token_ids=torch.tensor([token for window in windows for token in window], device=device, dtype=index),
        positions=torch.cat(positions).to(device, index),
        query_starts=starts.to(device),
        context_lens=lengths.to(device),
        logit_rows=torch.arange(0 if learning else total, device=device, dtype=index),
        groups=[group] * len(layout.groups),
        kv_views=views,
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


class InPieces:
    """A layer's second half, which looks at each token by itself, over some tokens at a time.

    What it holds between its projections is many times what it is given.
    """

    def __init__(self, mlp: GatedMlp | ExpertsMlp) -> None:
        self._mlp = mlp
        self.entry = mlp.entry

    def __call__(self, x: Tensor) -> Tensor:
        return torch.cat([self._mlp(piece) for piece in x.split(PIECE_TOKENS)])  # type: ignore[no-untyped-call]


def streamed_model(
    spec: ModelSpec,
    device: torch.device,
    dtype: torch.dtype,
    observer: Observer,
    progress: Progress,
    capabilities: frozenset[str] = frozenset(),
    between: Callable[[], None] | None = None,
) -> Decoder:
    """A model for one forward, whose observer sees the input of each projection while that layer alone is held.

    between: called before each layer is made, when the one before has been let go of
    Raises: UnsupportedFormat, ConfigError
    """
    builder = BUILDERS.get(spec.architecture)
    if builder is None or not (isinstance(builder, type) and issubclass(builder, Decoder)):
        raise UnsupportedFormat(
            f"{spec.name}: models of the architecture {spec.architecture} are not run layer by layer.",
            "Choose fp8, int8 or int4 without calibration.",
        )
    check_size(spec)

    class WatchedParts(builder.parts_of):  # type: ignore[name-defined,misc]
        def mlp(self, layer: LayerSpec) -> InPieces:
            return InPieces(super().mlp(layer))

    WatchedParts.observer = staticmethod(observer)

    class StreamedDecoder(builder):  # type: ignore[valid-type,misc]
        parts_of = WatchedParts
        streams = True

        def in_order(self, parts: Parts, make: Callable[[Parts, LayerSpec], Any]) -> Sequence[Any]:
            def made(parts: Parts, layer: LayerSpec) -> Any:
                if between is not None:
                    between()
                return make(parts, layer)

            return super().in_order(parts, made)  # type: ignore[no-any-return]

    query = op_query(spec, device, dtype, None, "exact", capabilities)
    checkpoint = loading.MappedCheckpoint(spec, progress)  # by its module: benchmarks put random weights there
    made = StreamedDecoder(spec, checkpoint, device, dtype, query, WINDOW_TOKENS)
    assert isinstance(made, Decoder)
    return made
