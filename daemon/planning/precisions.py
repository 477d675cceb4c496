"""Which precisions a checkpoint's matrices are offered in on a device."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from daemon.planning.budget import DeviceBudget
from daemon.planning.kv_bytes import BYTE_KINDS
from daemon.planning.profile import Candidate, Choice, Profile, WhyNot
from daemon.planning.strategy import GOALS, Strategy
from daemon.planning.units import human_bytes
from engine.spec.model_spec import ModelSpec
from engine.spec.precision import WeightPrecision


class WhenToRound(StrEnum):
    """Whether a plan may lower a model's accuracy below the checkpoint's when nobody asked for that precision."""

    ASKED = "asked"  # never: rounded candidates are shown with their price, and taken by --weights or --kv
    TO_FIT = "to-fit"  # where nothing else fits


# What a rounded candidate's merit is multiplied with beside other rounded ones: the most exact that fits wins.
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


def rounding_note(
    spec: ModelSpec, profile: Profile, weights: str | None, price: str | None, cache_price: str | None = None
) -> str:
    """What a person should know before taking a rounded candidate, and how it is asked for; empty for an exact one.

    weights: what was asked for. price, cache_price: what this rounding was measured to cost, of weights and of KV
    """
    if not (asking := _asking(profile)):
        return ""
    told = [f"only if asked for: {' '.join(asking)}"] if weights is None else []
    if profile.weights != WeightPrecision.STORED:
        told.insert(0, f"rounded from {spec.source_dtype}; {price or '`bayard quality` measures what that costs'}")
    if cache_price:
        told.insert(0, cache_price)
    return "; ".join(told)


def is_rounding(profile: Profile, weights: str | None, kv_dtype: str | None) -> bool:
    """Whether it would make the model less exact than what was asked for, or what it is by itself."""
    rounds_weights = profile.weights != WeightPrecision.STORED and weights is None
    return rounds_weights or (profile.kv_dtype in BYTE_KINDS and kv_dtype is None)


def against_strategy(profile: Profile) -> tuple[Choice, ...]:
    """Where rounding was asked for with a strategy that rounds nothing by itself: the wish wins, and that is said."""
    asking = _asking(profile)
    if not asking or not GOALS[profile.strategy].prefers_exact_kv:
        return ()
    why = f"asked for, and that wins: by itself the strategy {profile.strategy} rounds nothing"
    return (Choice("accuracy", " ".join(asking), why),)


def only_if_asked(candidates: Sequence[Candidate], budgets: Sequence[DeviceBudget]) -> tuple[WhyNot, ...]:
    """Rounded candidates that would run, where nothing else does and nobody has asked for them."""
    usable = {budget.device: human_bytes(budget.usable_bytes) for budget in budgets}
    best = {(one.profile.device, one.profile.weights): one.profile for one in reversed(candidates)}
    return tuple(
        WhyNot(
            f"{profile.weights} weights, {profile.kv_dtype} KV on {profile.device_name} ({profile.device})",
            f"{human_bytes(profile.memory.total_bytes)} of {usable[profile.device]} fit, but less exact than the "
            f"checkpoint is, and workers.round_weights is {WhenToRound.ASKED}",
            None,
            None,
            f"plan it with {' '.join(_asking(profile))}",
        )
        for profile in best.values()
    )


def _asking(profile: Profile) -> list[str]:
    """The options that ask for what it rounds."""
    weights = [] if profile.weights == WeightPrecision.STORED else [f"--weights {profile.weights}"]
    return weights + ([f"--kv {profile.kv_dtype}"] if profile.kv_dtype in BYTE_KINDS else [])
