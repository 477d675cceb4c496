"""Which inputs grow large: a set of columns for each input of each layer, learnt from one run over a text.

The columns of activations that hold outliers stay the same whatever is said, so a few hundred tokens show them.
Source: the predictor of MixQ (SC'24), whose threshold of 6 is for activations of about unit size; ours is relative.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.models.checkpoint import Progress
from engine.models.rounding import OutlierSet, input_of
from engine.quantize.text_pass import batch_of, streamed_model, window_tokens, windows_of
from engine.spec.model_spec import ModelSpec

OUTLIER_COLUMNS = 128
THRESHOLD = 6.0  # times the root mean square of an input's numbers


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

    def watch(roles: list[str], layer: int, x: Tensor) -> None:
        if roles[0] != "router":
            found[layer, input_of(roles[0])] = outlying(x, threshold)

    windows = windows_of(tokens, window_tokens(spec))
    model = streamed_model(spec, device, dtype, watch, progress, capabilities)
    model.forward(batch_of(spec, windows, device, dtype, learning=True))
    return found


def outlying(x: Tensor, threshold: float = THRESHOLD, most: int = OUTLIER_COLUMNS) -> OutlierSet:
    """The set on the host. threshold: times the input's usual size. Shapes: x [M, K]"""
    wide = x.to(torch.float32)
    largest = wide.abs().amax(dim=0)
    limit = threshold * float(wide.square().mean().sqrt())
    chosen = torch.argsort(largest, descending=True, stable=True)[:most]
    columns = chosen[largest[chosen] > limit].sort().values.to(device="cpu", dtype=torch.int64)
    return OutlierSet(columns, limit)
