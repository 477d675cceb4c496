"""Which precisions a checkpoint's matrices are offered in on a device."""

from __future__ import annotations

from daemon.planning.budget import DeviceBudget
from daemon.planning.strategy import GOALS, Strategy
from engine.spec.model_spec import ModelSpec
from engine.spec.precision import WeightPrecision

# What a candidate's merit is multiplied with: rounding has to buy a lot, or be what makes a model fit at all.
WORTH: dict[WeightPrecision, float] = {
    WeightPrecision.STORED: 1.0,
    WeightPrecision.FP8: 0.25,
    WeightPrecision.INT8: 0.25,
    WeightPrecision.INT8_MIXED: 0.25,
    WeightPrecision.INT4: 0.12,
    WeightPrecision.FP4: 0.12,
}
_PLAIN = frozenset({"F32", "F16", "BF16"})
_ON_CPU = (WeightPrecision.INT8, WeightPrecision.INT4)
_ON_ACCELERATOR = (WeightPrecision.FP8, WeightPrecision.INT8, WeightPrecision.INT4)


def offered_precisions(
    spec: ModelSpec, budget: DeviceBudget, strategy: Strategy, asked: str | None
) -> tuple[WeightPrecision, ...]:
    """As stored first. What is rounded already is not rounded again, nor anything where quality is what matters."""
    if asked is not None:
        return (WeightPrecision(asked),)
    stored = (WeightPrecision.STORED,)
    plain = spec.quantisation is None and spec.source_dtype in _PLAIN
    if spec.is_encoder or not plain or GOALS[strategy].prefers_exact_kv:
        return stored
    return stored + (_ON_CPU if budget.on_cpu else _ON_ACCELERATOR)


def precision_note(spec: ModelSpec, precision: WeightPrecision) -> str:
    """What a person should know before taking a rounded candidate."""
    if precision is WeightPrecision.STORED:
        return ""
    return f"rounded from {spec.source_dtype}; `bayard quality` measures what that costs"
