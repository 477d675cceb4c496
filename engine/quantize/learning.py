"""What a run over a text teaches about each layer, given on as soon as the layer has been passed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.models.checkpoint import Progress
from engine.models.rounding import OutlierSet, input_of
from engine.quantize.int4_search import InputSample, RunningSample
from engine.quantize.kv_form import best_scales
from engine.quantize.outliers import THRESHOLD, RunningOutliers
from engine.quantize.text_pass import learning_steps, pass_through, window_tokens, windows_of
from engine.spec.model_spec import ModelSpec
from engine.spec.precision import WeightPrecision


@dataclass(slots=True)
class LayerInputs:
    """By the input's name."""

    samples: dict[str, InputSample] = field(default_factory=dict)
    outliers: dict[str, OutlierSet] = field(default_factory=dict)
    kv_scales: Tensor | None = None  # [2], of the layer's keys and values; None: not asked for


def learn(
    spec: ModelSpec,
    tokens: Sequence[int],
    precision: WeightPrecision,
    device: torch.device,
    dtype: torch.dtype,
    done: Callable[[int, LayerInputs], None],
    progress: Progress,
    capabilities: frozenset[str] = frozenset(),
    *,
    kv: str = "",
    threshold: float = THRESHOLD,
) -> None:
    """Run the text through the model, a layer held at a time; done(layer, inputs), who owns them then, in order.

    kv: the cache that multipliers are learnt for too; "": none. threshold: of outliers, times an input's usual size
    Blocks: for one forward and all that done does
    """
    samples: dict[str, RunningSample] = {}
    outliers: dict[str, RunningOutliers] = {}
    shown_by: dict[str, str] = {}  # some inputs are those of two projections, and shown by each
    windows = windows_of(tokens, window_tokens(spec))
    steps = learning_steps(spec, windows, device, dtype, whole_cache=bool(kv))
    total = sum(step.num_tokens for step in steps)

    def passed(layer: int) -> None:
        found = LayerInputs(
            {name: running.found() for name, running in samples.items()},
            {name: running.found(threshold) for name, running in outliers.items()},
            best_scales(steps[0].kv_views[layer], kv) if kv else None,
        )
        for kept in (samples, outliers, shown_by):
            kept.clear()
        done(layer, found)

    def watch(roles: list[str], layer: int, x: Tensor) -> None:
        if roles[0] == "router":
            return
        name = input_of(roles[0])
        if precision is WeightPrecision.STORED or shown_by.setdefault(name, roles[0]) != roles[0]:
            return
        if precision is WeightPrecision.INT8_MIXED:
            outliers.setdefault(name, RunningOutliers()).add(x)
        else:
            samples.setdefault(name, RunningSample(total)).add(x)

    pass_through(spec, steps, device, dtype, watch, passed, progress, capabilities)


def learn_outliers(
    spec: ModelSpec,
    tokens: Sequence[int],
    device: torch.device,
    dtype: torch.dtype,
    progress: Progress,
    *,
    threshold: float = THRESHOLD,
    capabilities: frozenset[str] = frozenset(),
) -> dict[tuple[int, str], OutlierSet]:
    """By layer and input; at most OUTLIER_COLUMNS columns, the largest first where there are more.

    Blocks: for as long as reading the checkpoint and one forward take
    """
    found: dict[tuple[int, str], OutlierSet] = {}

    def done(layer: int, inputs: LayerInputs) -> None:
        found.update({(layer, name): known for name, known in inputs.outliers.items()})

    precision = WeightPrecision.INT8_MIXED
    learn(spec, tokens, precision, device, dtype, done, progress, capabilities, threshold=threshold)
    return found
